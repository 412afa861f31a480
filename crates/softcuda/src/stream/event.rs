//! Events: marks in streams.

use super::{Job, Mark, StreamId, Streams, canonical};
use crate::status::{Answer, Status};

impl Streams {
    /// Creates an event, which counts as reached until it is recorded.
    pub(crate) fn create_event(&self) -> u64 {
        let mut table = self.shared.table.lock();
        let event = table.number();
        table.events.insert(event, None);
        event
    }

    /// Destroys an event. Streams that wait for it still do.
    pub(crate) fn destroy_event(&self, event: u64) -> Answer {
        self.shared.table.lock().events.remove(&event).map(drop).ok_or(Status::INVALID_HANDLE)
    }

    /// Sets an event to the end of a stream as of now.
    pub(crate) fn record(&self, event: u64, stream: StreamId) -> Answer {
        let mut table = self.shared.table.lock();
        let end = table.end_of(stream)?;
        *table.events.get_mut(&event).ok_or(Status::INVALID_HANDLE)? = Some(end);
        Ok(())
    }

    /// Lets a stream wait until an event as of now is reached.
    pub(crate) fn wait_event(&self, stream: StreamId, event: u64) -> Answer {
        match self.mark_of(event)? {
            Some(mark) if mark.stream != canonical(stream) => self.add(stream, Job::Await(mark)),
            _ => Ok(()),
        }
    }

    /// Returns whether an event is reached.
    pub(crate) fn is_reached(&self, event: u64) -> Answer<bool> {
        let mark = self.mark_of(event)?;
        Ok(mark.is_none_or(|mark| self.shared.table.lock().reached(mark)))
    }

    /// Waits until an event is reached.
    pub(crate) fn synchronize_event(&self, event: u64) -> Answer {
        if let Some(mark) = self.mark_of(event)? {
            self.wait(mark);
        }
        Ok(())
    }

    fn mark_of(&self, event: u64) -> Answer<Option<Mark>> {
        self.shared.table.lock().events.get(&event).copied().ok_or(Status::INVALID_HANDLE)
    }
}
