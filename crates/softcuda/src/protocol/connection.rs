//! A connection between a kernel and a peer: the step counters, the buffers, and the FIFO by which a
//! kernel passes sizes to a proxy thread.

use std::sync::atomic::Ordering;

use super::{Direction, Protocol, Registration};
use crate::{Unknown, address::Address, layout};

/// Steps that a connection's buffers hold.
const STEPS: u64 = 8;
/// The mode of a FIFO entry whose offset is valid.
const MODE_OFFSET: u32 = 1;
/// The flag of a connection whose network reaches the user's buffers.
const DIRECT_NIC: u64 = 4;
/// The size in a FIFO entry that the proxy thread has sent.
const FREE: i64 = -1;

/// The FIFO between a kernel and a proxy thread; null where there is no proxy thread.
#[derive(Debug, Clone)]
enum Fifo {
    Arrays { sizes: Address, offsets: Address },
    Entries { entries: Address, size: usize, mode: usize, offset: layout::Field, bytes: usize },
}

/// What the opening of a connection needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub(super) protocol: Protocol,
    pub(super) direction: Direction,
    /// Bytes of a step, if the connection does not state them.
    pub(super) step_bytes: usize,
    /// The first step is a multiple of this number.
    pub(super) multiple: u64,
    /// The registration of the work's buffers with the network.
    pub(super) registration: Registration,
}

/// An open connection. Between `open` and `close` this kernel is the only one that uses it, and
/// the communicator keeps what it points to: the counters, the FIFO and eight steps of buffers.
#[derive(Debug)]
pub(super) struct Connection {
    /// The next step.
    pub(super) step: u64,
    /// Bytes of a step.
    pub(super) step_bytes: usize,
    /// Whether the network reads or writes the user's buffer itself.
    pub(super) registered: bool,
    saved_step: Address,
    buffer: Address,
    head: Address,
    tail: Address,
    fifo: Fifo,
}

impl Connection {
    /// Opens the connection at `info`.
    ///
    /// # Safety
    /// `info` is a connection of a communicator that lives until this value is dropped, with this
    /// layout, and no other kernel uses it until then.
    pub(super) unsafe fn open(
        info: Address,
        layout: &layout::Connection,
        opening: Opening,
    ) -> Result<Self, Unknown> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { info.bytes(layout.size) };
        let pointer = |field: layout::Field| Address::new(field.size(&bytes));
        let buffers = layout::Field::whole(layout.buffers + 8 * opening.protocol as usize, 8);
        let (buffer, head, tail) = (pointer(buffers), pointer(layout.head), pointer(layout.tail));
        for (address, name) in [(buffer, "buffer"), (head, "head"), (tail, "tail")] {
            if address.is_null() {
                return Err(Unknown::new("connection without", name).found(opening.protocol));
            }
        }
        let step_bytes = match (opening.protocol, layout.step_size) {
            (Protocol::Simple, Some(field)) => field.size(&bytes),
            _ => opening.step_bytes,
        };
        let reaches_user = match opening.registration {
            Registration::None => false,
            Registration::Whole => true,
            _ => layout.flags.get(&bytes) & DIRECT_NIC != 0,
        };
        let connection = Self {
            step: layout.step.get(&bytes).next_multiple_of(opening.multiple),
            step_bytes,
            registered: reaches_user && opening.protocol == Protocol::Simple,
            saved_step: info.plus(layout.step.offset),
            buffer,
            head,
            tail,
            fifo: fifo(layout, &bytes),
        };
        connection.announce_opening(opening)?;
        Ok(connection)
    }

    /// Returns the credits of the steps that the rounding skipped, and shows the proxy thread that
    /// the user's buffer may be written.
    fn announce_opening(&self, opening: Opening) -> Result<(), Unknown> {
        let has_entries = matches!(&self.fifo, Fifo::Entries { entries, .. } if !entries.is_null());
        if self.registered && !has_entries {
            return Err(Unknown::new("registration", "network, on a connection without FIFO entries"));
        }
        if opening.direction == Direction::Receive && opening.protocol == Protocol::Simple {
            // SAFETY: the counter of this connection (see the type).
            unsafe { self.head.word() }.store(self.step, Ordering::Release);
            if self.registered {
                self.announce(0);
            }
        }
        Ok(())
    }

    /// Returns whether the receiver has freed the buffers of this many further steps.
    pub(super) fn has_credit(&self, steps: u64) -> bool {
        // SAFETY: the counter of this connection (see the type). Acquire: the receiver has read the
        // buffer before it freed the step.
        let head = unsafe { self.head.word() }.load(Ordering::Acquire);
        // The head of shared buffers begins at -8: there is no credit before a proxy thread has
        // allotted a buffer.
        head.wrapping_add(STEPS) >= self.step + steps
    }

    /// Returns whether this many further steps have arrived.
    pub(super) fn has_arrived(&self, steps: u64) -> bool {
        // SAFETY: the counter of this connection (see the type). Acquire: the sender wrote the
        // buffer before it counted the step.
        unsafe { self.tail.word() }.load(Ordering::Acquire) >= self.step + steps
    }

    /// Counts steps that the buffers now hold.
    pub(super) fn post_send(&mut self, steps: u64) {
        self.step += steps;
        // SAFETY: the counter of this connection (see the type). Release: the buffer is written.
        unsafe { self.tail.word() }.store(self.step, Ordering::Release);
    }

    /// Counts a step of LL, whose receiver looks at flags only.
    pub(super) fn skip(&mut self) {
        self.step += 1;
    }

    /// Frees the buffers of steps.
    pub(super) fn post_receive(&mut self, steps: u64) {
        self.step += steps;
        // SAFETY: the counter of this connection (see the type). Release: the buffer has been read.
        unsafe { self.head.word() }.store(self.step, Ordering::Release);
    }

    /// Shows the proxy thread how many bytes the next step has.
    pub(super) fn announce(&self, bytes: usize) {
        let slot = (self.step % STEPS) as usize;
        match &self.fifo {
            Fifo::Arrays { sizes, .. } if !sizes.is_null() => {
                // SAFETY: one of eight `int` of this connection (see the type).
                let size = unsafe { sizes.plus(4 * slot).half_word() };
                size.store(bytes as u32, Ordering::Release);
            }
            Fifo::Entries { entries, size, bytes: offset, .. } if !entries.is_null() => {
                // SAFETY: the size in one of eight entries of this connection (see the type).
                let word = unsafe { entries.plus(size * slot + offset).word() };
                word.store(bytes as u64, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Returns whether the proxy thread has sent the step that ends `steps` before the next one.
    pub(super) fn is_sent(&self, steps: u64) -> bool {
        let Fifo::Entries { entries, size, bytes, .. } = &self.fifo else { return true };
        let slot = (self.step.wrapping_sub(steps) % STEPS) as usize;
        // SAFETY: the size in one of eight entries of this connection (see the type). `open`
        // refuses a registered connection without entries; `close` calls this for registered ones.
        unsafe { entries.plus(size * slot + bytes).word() }.load(Ordering::Acquire) == FREE as u64
    }

    /// Returns the buffer of the next step. The proxy thread may have placed it.
    pub(super) fn slot(&self) -> Address {
        let slot = (self.step % STEPS) as usize;
        let placed = match &self.fifo {
            Fifo::Arrays { offsets, .. } if !offsets.is_null() => {
                // SAFETY: one of eight `int` of this connection (see the type). The proxy thread
                // wrote it before it counted the step that was waited for.
                Some(unsafe { offsets.plus(4 * slot).read::<u32>() } as usize)
            }
            Fifo::Entries { entries, size, mode, offset, .. } if !entries.is_null() => {
                let entry = entries.plus(size * slot);
                // SAFETY: one of eight entries of this connection (see the type). The proxy thread
                // wrote it before it counted the step that was waited for.
                let (mode, wide, narrow) = unsafe {
                    let place = entry.plus(offset.offset);
                    let wide = if offset.size == 8 { place.read::<u64>() } else { 0 };
                    (entry.plus(*mode).read::<u32>(), wide, place.read::<u32>())
                };
                let value = if offset.size == 8 { wide as usize } else { narrow as usize };
                (mode == MODE_OFFSET).then_some(value)
            }
            _ => None,
        };
        self.buffer.plus(placed.unwrap_or(slot * self.step_bytes))
    }

    /// Returns the buffer of the next step of LL and LL128, which the proxy thread never places.
    pub(super) fn lines(&self) -> Address {
        self.buffer.plus((self.step % STEPS) as usize * self.step_bytes)
    }

    /// Keeps the next step for the next kernel.
    pub(super) fn close(&self) {
        // SAFETY: the counter of this connection (see the type). Release: the next kernel of the
        // channel may run on another thread.
        unsafe { self.saved_step.word() }.store(self.step, Ordering::Release);
    }
}

fn fifo(layout: &layout::Connection, connection: &[u8]) -> Fifo {
    let pointer = |field: &layout::Field| Address::new(field.size(connection));
    match &layout.fifo {
        layout::Fifo::Arrays { sizes, offsets } => {
            Fifo::Arrays { sizes: pointer(sizes), offsets: pointer(offsets) }
        }
        layout::Fifo::Entries { entries, size, mode, offset, bytes } => Fifo::Entries {
            entries: pointer(entries),
            size: *size,
            mode: mode.offset,
            offset: *offset,
            bytes: bytes.offset,
        },
    }
}
