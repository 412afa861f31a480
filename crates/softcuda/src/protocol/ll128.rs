//! LL128: lines of 128 bytes, 15 words of data and one that is the step's flag. A step consists of
//! blocks of 16 lines; a proxy thread looks at the flags of all of them, also behind the data.
//!
//! NCCL's kernels spread the data of a block over its lines in an order that follows from the
//! threads of a warp. Here it is linear: both ends of a connection are softcuda's, and no
//! proxy thread reads the data.

use std::sync::atomic::Ordering;

use super::{Connection, Current, Lines, PEERS, Primitives, Progress};
use crate::{Unknown, address::Address};

/// Bytes of data of a line.
const DATA: usize = 120;
/// Bytes of a line.
const LINE: usize = 128;
/// Lines of a block.
const LINES: usize = 16;

pub(super) struct Ll128;

impl Primitives {
    pub(super) fn advance_ll128(&mut self, current: &mut Current) -> Result<Progress, Unknown> {
        self.advance_lines::<Ll128>(current)
    }
}

impl Lines for Ll128 {
    fn wire(data: usize) -> (usize, usize) {
        let lines = data.div_ceil(DATA * LINES) * LINES;
        (lines, lines * LINE)
    }

    fn move_line(primitives: &Primitives, current: &Current, line: usize, data: usize) -> bool {
        let receives = primitives.receives(current);
        if !receives.iter().all(|connection| has_arrived(connection, line)) {
            return false;
        }
        let length = DATA.min(data.saturating_sub(line * DATA));
        let mut arrived = [[0; DATA]; PEERS];
        let mut slices: [&[u8]; PEERS] = [&[]; PEERS];
        for ((connection, data), slice) in receives.iter().zip(&mut arrived).zip(&mut slices) {
            // SAFETY: a line of the step's buffer, whose size `check_step` has compared. The flag
            // has arrived, and the data was written before it.
            unsafe { place(connection, line).read_into(&mut data[..length]) };
            *slice = data;
        }
        let mut value = [0; DATA];
        let part = &mut value[..length];
        primitives.combine_line(current, line * DATA, &slices[..receives.len()], part);
        primitives.output_line(current, line * DATA, part);
        for connection in primitives.sends(current) {
            store(connection, line, &value);
        }
        true
    }

    fn post_send(connection: &mut Connection, _lines: usize) {
        connection.post_send(1);
    }
}

fn place(connection: &Connection, line: usize) -> Address {
    connection.lines().plus(line * LINE)
}

fn has_arrived(connection: &Connection, line: usize) -> bool {
    // SAFETY: the flag of a line of the step's buffer, whose size `check_step` has compared.
    // Acquire: the data was written before the flag.
    let flag = unsafe { place(connection, line).plus(DATA).word() }.load(Ordering::Acquire);
    flag == connection.step + 1
}

fn store(connection: &Connection, line: usize, data: &[u8; DATA]) {
    let place = place(connection, line);
    // SAFETY: a line of the step's buffer, whose size `check_step` has compared. Credit means that
    // the receiver has read the line that was there.
    unsafe { place.write_from(data) };
    // SAFETY: as above. Release: the data is written.
    unsafe { place.plus(DATA).word() }.store(connection.step + 1, Ordering::Release);
}
