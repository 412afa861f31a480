//! What NCCL holds while a send, a receive or a flush is in flight.

mod cell;

use std::fmt;
use std::sync::{Arc, Weak};

use nccl_net_versions::{Sizes, Tagged};

use crate::error::{Error, Fast};
use crate::proto::SLOTS;
use cell::{Found, RequestCell};

/// Requests per comm: NCCL has at most 32 operations in flight, each of up to 8 sends.
pub(crate) const REQUESTS: usize = SLOTS;

/// One entry of its comm's pool. A request does not keep its comm alive: the requests of a closed
/// comm are invalid.
#[derive(Debug)]
pub struct Request {
    cell: RequestCell,
    owner: Weak<dyn Owner>,
    index: usize,
}

/// The comm of a request, as the request drives it.
pub(crate) trait Owner: fmt::Debug + Send + Sync {
    /// Polls the comm's queues for the request with this index.
    ///
    /// # Errors
    /// The comm has failed.
    fn progress(&self, index: usize) -> Fast<()>;

    /// Names the operation of the request with this index: send, receive or flush.
    fn operation(&self, index: usize) -> &'static str;
}

/// The requests of one comm, made once.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<[Tagged<Request>]>);

impl Pool {
    /// Makes `requests` free requests of `owner`.
    pub(crate) fn new<O: Owner + 'static>(owner: &Weak<O>, requests: usize) -> Self {
        let owner: Weak<dyn Owner> = owner.clone();
        let one = |index| Request { cell: RequestCell::new(), owner: owner.clone(), index };
        Self((0..requests).map(|index| Tagged::new(one(index))).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Tagged<Request> {
        &self.0[index]
    }

    /// The state of a request.
    #[inline]
    pub(crate) fn cell(&self, index: usize) -> &RequestCell {
        self.get(index).cell()
    }

    /// Returns the place of a free one of the [`REQUESTS`] that begin at index `start`. The search
    /// begins at place `next`, which is then the place behind the one found.
    #[inline]
    pub(crate) fn free(&self, start: usize, next: &mut u8) -> Option<u8> {
        let place = *next;
        *next = place.wrapping_add(1);
        if self.cell(start + usize::from(place)).is_free() { Some(place) } else { self.search(start, next) }
    }

    /// Only reached if NCCL tests an older request after a newer one.
    #[cold]
    fn search(&self, start: usize, next: &mut u8) -> Option<u8> {
        let place = (0..REQUESTS).map(|i| next.wrapping_add(i as u8));
        let place = place.into_iter().find(|place| self.cell(start + usize::from(*place)).is_free())?;
        *next = place.wrapping_add(1);
        Some(place)
    }
}

impl Request {
    /// Collects a completed request of one message and returns its size; the request is invalid
    /// afterwards. Returns `None` if there is more to do: see [`test`](Self::test).
    #[inline]
    pub fn finished(&self) -> Option<usize> {
        self.cell.collect_one()
    }

    /// Makes progress. Returns `true`, once, when the request is completed, and stores its sizes.
    ///
    /// # Errors
    /// The comm has failed or is closed, or the request was collected before.
    pub fn test(&self, sizes: &mut Sizes) -> Fast<bool> {
        // `finished` has found it so; the usual case goes straight to the queues.
        if !self.cell.is_in_flight() && self.collect(sizes)? {
            return Ok(true);
        }
        self.owner.upgrade().ok_or_else(closed)?.progress(self.index)?;
        self.collect(sizes)
    }

    /// Collects the request if it is completed.
    fn collect(&self, sizes: &mut Sizes) -> Fast<bool> {
        let count = match self.cell.completed() {
            Found::Pending => return Ok(false),
            Found::Stale => return Err(self.stale()),
            Found::Done(count) => count,
        };
        for (message, size) in self.cell.sizes(count).enumerate() {
            sizes.set(message, size).map_err(|_| too_large(self.index))?;
        }
        self.cell.free();
        Ok(true)
    }

    #[cold]
    fn stale(&self) -> Box<Error> {
        let what = self.owner.upgrade().map_or("request", |owner| owner.operation(self.index));
        Error::Argument(format!("the {what} was already done: its request is no longer valid")).into()
    }

    /// The state, for the comm that completes it.
    #[inline]
    pub(crate) fn cell(&self) -> &RequestCell {
        &self.cell
    }
}

#[cold]
fn closed() -> Box<Error> {
    Error::Argument("the request's connection is closed".into()).into()
}

#[cold]
fn too_large(index: usize) -> Box<Error> {
    Error::Internal(format!("request {index} is completed with more bytes than its receive has room for"))
        .into()
}
