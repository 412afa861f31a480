//! Reading and writing the socket of a connection.

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use super::super::end::{End, broken};
use super::{Inner, Link, LinkStatus};

/// Most bytes read under one hold of the lock.
const READ_BATCH: usize = 64 << 10;

impl Link {
    /// Writes what waits and reads what has come. Called by the thread.
    pub(in crate::control) fn on_ready(&self) -> LinkStatus {
        loop {
            let mut inner = self.lock();
            self.write(&mut inner);
            let drained = self.read(&mut inner);
            self.decode_frames(&mut inner);
            if inner.stream.is_none() {
                return if inner.broken.is_some() { LinkStatus::Broken } else { LinkStatus::Closed };
            }
            if drained {
                return LinkStatus::Open;
            }
        }
    }

    /// Reads and drops what comes after our own BYE. Returns `Closed` when the peer has closed too.
    pub(in crate::control) fn discard(&self) -> LinkStatus {
        let mut inner = self.lock();
        self.write(&mut inner);
        let Some(mut stream) = inner.stream.as_deref() else { return LinkStatus::Closed };
        let mut sink = [0; 4096];
        for _ in 0..READ_BATCH / sink.len() {
            match stream.read(&mut sink) {
                Ok(0) => return LinkStatus::Closed,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return LinkStatus::Open,
                Err(_) => return LinkStatus::Closed,
            }
        }
        // A peer that keeps sending after our BYE is not waited for.
        LinkStatus::Closed
    }

    pub(super) fn write(&self, inner: &mut Inner) {
        if inner.outbox.is_empty() || inner.held_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let Some(mut stream) = inner.stream.as_deref() else { return };
        let mut done = 0;
        let lost = loop {
            if done == inner.outbox.len() {
                break None;
            }
            match stream.write(&inner.outbox[done..]) {
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break None,
                Err(e) => break Some(e),
            }
        };
        inner.outbox.drain(..done);
        if let Some(e) = lost {
            // What the peer sent before it closed is still to be read; `read` finds the end.
            inner.outbox.clear();
            if inner.may_resume() || matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
                inner.fault.get_or_insert(e);
                return;
            }
            self.finish(inner, End::Broken(format!("sending failed: {e}")));
        }
    }

    fn broken_by(&self, inner: &mut Inner, e: &std::io::Error) {
        match inner.may_resume() {
            true => self.break_off(inner, broken(e)),
            false => self.finish(inner, End::Broken(broken(e))),
        }
    }

    /// Returns `true` when there is nothing more to read now.
    fn read(&self, inner: &mut Inner) -> bool {
        let mut batch = 0;
        let mut chunk = [0; 4096];
        while batch < READ_BATCH {
            let Some(mut stream) = inner.stream.as_deref() else { return true };
            match stream.read(&mut chunk) {
                Ok(0) => {
                    self.decode_frames(inner);
                    // An error other than EPIPE came before any FIN of the peer.
                    if let Some(e) = inner.fault.take_if(|e| e.kind() != ErrorKind::BrokenPipe) {
                        self.broken_by(inner, &e);
                        return true;
                    }
                    let why = "closed the connection without a BYE; did its process end?".to_owned();
                    // Within a handshake something between the ends may have closed it.
                    let is_done = inner.established || !inner.proved;
                    self.finish(inner, if is_done { End::Lost(why) } else { End::Broken(why) });
                    return true;
                }
                Ok(n) => {
                    inner.unread.extend_from_slice(&chunk[..n]);
                    batch += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) => {
                    self.decode_frames(inner);
                    self.broken_by(inner, &e);
                    return true;
                }
            }
        }
        false
    }
}
