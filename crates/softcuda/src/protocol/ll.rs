//! LL: lines of 16 bytes, each {data, flag, data, flag} of 32 bits. A line has arrived when both
//! flags are the step's; there are no counters on the way there.

use std::sync::atomic::Ordering;

use super::{Connection, Current, Lines, PEERS, Primitives, Progress};
use crate::{Unknown, address::Address};

/// Bytes of data of a line.
const DATA: usize = 8;
/// Bytes of a line.
const LINE: usize = 16;
/// Bits of the steps whose lines are all written. Flags wrap after 2^32 steps; an old flag in an
/// unused line would then look new.
const CLEANING: u64 = 0x7fff_fff8;

pub(super) struct Ll;

impl Primitives {
    pub(super) fn advance_ll(&mut self, current: &mut Current) -> Result<Progress, Unknown> {
        self.advance_lines::<Ll>(current)
    }
}

impl Lines for Ll {
    fn wire(data: usize) -> (usize, usize) {
        let lines = data.div_ceil(DATA);
        (lines, lines * LINE)
    }

    fn move_line(primitives: &Primitives, current: &Current, line: usize, data: usize) -> bool {
        let receives = primitives.receives(current);
        let mut arrived = [[0; DATA]; PEERS];
        for (connection, data) in receives.iter().zip(&mut arrived) {
            let Some(words) = load(connection, line) else { return false };
            *data = words;
        }
        let mut slices: [&[u8]; PEERS] = [&[]; PEERS];
        for (slice, data) in slices.iter_mut().zip(&arrived) {
            *slice = data;
        }
        let length = DATA.min(data - line * DATA);
        let mut value = [0; DATA];
        let part = &mut value[..length];
        primitives.combine_line(current, line * DATA, &slices[..receives.len()], part);
        primitives.output_line(current, line * DATA, part);
        for connection in primitives.sends(current) {
            store(connection, line, value);
        }
        true
    }

    fn post_send(connection: &mut Connection, lines: usize) {
        if connection.step & CLEANING == CLEANING {
            for line in lines..connection.step_bytes / LINE {
                store(connection, line, [0; DATA]);
            }
        }
        connection.skip();
    }
}

fn flag(connection: &Connection) -> u32 {
    (connection.step + 1) as u32
}

fn place(connection: &Connection, line: usize) -> Address {
    connection.lines().plus(line * LINE)
}

/// Returns the data of a line that has arrived.
fn load(connection: &Connection, line: usize) -> Option<[u8; DATA]> {
    let place = place(connection, line);
    let mut data = [0; DATA];
    for half in 0..2 {
        // SAFETY: a line of the step's buffer, whose size `check_step` has compared. A word of data
        // and flag is written at once.
        let word = unsafe { place.plus(8 * half).word() }.load(Ordering::Acquire);
        if (word >> 32) as u32 != flag(connection) {
            return None;
        }
        data[4 * half..4 * half + 4].copy_from_slice(&(word as u32).to_le_bytes());
    }
    Some(data)
}

fn store(connection: &Connection, line: usize, data: [u8; DATA]) {
    let place = place(connection, line);
    let flag = u64::from(flag(connection)) << 32;
    for half in 0..2 {
        let mut word = [0; 4];
        word.copy_from_slice(&data[4 * half..4 * half + 4]);
        // SAFETY: a line of the step's buffer, whose size `check_step` has compared. Credit means
        // that the receiver has read the line that was there.
        let place = unsafe { place.plus(8 * half).word() };
        place.store(flag | u64::from(u32::from_le_bytes(word)), Ordering::Release);
    }
}
