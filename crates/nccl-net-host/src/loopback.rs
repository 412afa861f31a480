//! Both ends of a connection in one process.

use std::time::{Duration, Instant};

use crate::{Comm, Error, Net, RecvComm, Request, SendComm, Sizes, error::Result, memory::NO_SIZES};

/// Calls `poll` until it gives a value; fails with [`Error::TimedOut`] after `limit`.
pub fn until<T>(
    what: &'static str,
    limit: Duration,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut since = None;
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        std::thread::yield_now();
        // Without a look at the clock if the first poll succeeds.
        if since.get_or_insert_with(Instant::now).elapsed() > limit {
            return Err(Error::TimedOut { what, limit });
        }
    }
}

impl Net {
    /// Connects a device to itself: listens, polls `connect` and `accept` in turn, and closes the
    /// listener.
    pub fn connect_to_itself(&self, dev: i32, limit: Duration) -> Result<(SendComm, RecvComm)> {
        let listener = self.listen(dev)?;
        let mut handle = listener.handle().clone();
        let (mut send, mut recv) = (None, None);
        let comms = until("connect and accept", limit, || {
            if send.is_none() {
                send = self.connect(dev, &mut handle)?;
            }
            if recv.is_none() {
                recv = listener.accept()?;
            }
            Ok((send.is_some() && recv.is_some()).then(|| send.take().zip(recv.take())).flatten())
        })?;
        listener.close()?;
        Ok(comms)
    }
}

impl<End> Comm<End> {
    /// Polls a request until it is done; returns the sizes of its messages.
    pub fn wait(&self, request: &mut Request, limit: Duration) -> Result<Sizes> {
        let mut sizes = NO_SIZES;
        until("test", limit, || Ok(self.test(request, &mut sizes)?.then_some(())))?;
        Ok(sizes)
    }
}
