//! A connection of Simple whose steps are sent and received one by one.

use super::{Connection, Direction, Protocol, Registration, connection};
use crate::{Unknown, address::Address, layout};

/// A connection of Simple. Each step is sent or received as a whole.
#[derive(Debug)]
pub struct StepConnection(Connection);

impl StepConnection {
    /// Opens the connection at `info`. `step_bytes` are the bytes of a step, if the connection does
    /// not state them.
    ///
    /// # Safety
    /// `info` is a connection of a communicator that lives until this value is dropped, with this
    /// layout, and no other kernel uses it until then.
    pub unsafe fn open(
        info: Address,
        layout: &layout::Connection,
        direction: Direction,
        step_bytes: usize,
    ) -> Result<Self, Unknown> {
        let protocol = Protocol::Simple;
        let registration = Registration::None;
        let opening = connection::Opening { protocol, direction, step_bytes, multiple: 1, registration };
        // SAFETY: the caller's promise.
        unsafe { Connection::open(info, layout, opening) }.map(Self)
    }

    /// Returns whether a step may be sent.
    pub fn has_credit(&self) -> bool {
        self.0.has_credit(1)
    }

    /// Returns whether a step has arrived.
    pub fn has_arrived(&self) -> bool {
        self.0.has_arrived(1)
    }

    /// Sends a step.
    pub fn send(&mut self, data: &[u8]) -> Result<(), Unknown> {
        self.check(data.len())?;
        self.0.announce(data.len());
        // SAFETY: a step's buffer, which is as large; credit means that the receiver has read it.
        unsafe { self.0.slot().write_from(data) };
        self.0.post_send(1);
        Ok(())
    }

    /// Receives a step.
    pub fn receive(&mut self, length: usize) -> Result<Vec<u8>, Unknown> {
        self.check(length)?;
        // SAFETY: a step's buffer, which is as large; it has arrived.
        let data = unsafe { self.0.slot().bytes(length) };
        self.0.post_receive(1);
        Ok(data)
    }

    /// Keeps the next step for the next kernel.
    pub fn close(&self) {
        self.0.close();
    }

    fn check(&self, length: usize) -> Result<(), Unknown> {
        if length <= self.0.step_bytes {
            return Ok(());
        }
        let found = format!("a step of {} bytes", self.0.step_bytes);
        Err(Unknown::new("step size", length).found(found))
    }
}
