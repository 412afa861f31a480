//! What NCCL holds while a send, a receive or a flush is in flight.

pub(crate) mod cell;

use std::ffi::c_int;
use std::mem;
use std::sync::Arc;

use nccl_net_versions::{Sizes, Slab, Tagged};

use crate::element::Element;
use crate::error::{Error, Fast};
use crate::transport::recv::Receiver;
use crate::transport::send::Sender;

use cell::{Found, RequestCell};

/// One request of a comm. It refers to the part of the comm that makes progress; the comm owns its
/// requests.
#[derive(Debug)]
pub struct Request {
    cell: Element<RequestCell>,
    owner: Owner,
}

/// The comm of a request, the kind of request, and its index among those of the kind.
// The index takes no room: it lies beside the number of the case.
#[derive(Debug)]
pub(crate) enum Owner {
    Send(u8, Arc<Sender>),
    Receive(u8, Arc<Receiver>),
    Flush(u8, Arc<Receiver>),
}

/// The requests of one kind of a comm, made once. After their end they are known as closed.
#[derive(Debug)]
pub(crate) struct Requests<const N: usize>(Slab<Request, [Tagged<Request>; N]>);

impl<const N: usize> Requests<N> {
    /// Makes the requests. `owner` returns the owner of the request with an index.
    pub(crate) fn new(cells: &Cells<N>, owner: impl Fn(u8) -> Owner) -> Self {
        let one = |index| Request { cell: cells.share(index), owner: owner(index) };
        Self(Slab::array(|index| one(index as u8)))
    }

    /// Returns a request, whose index is below `N`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u8) -> &Tagged<Request> {
        // No bounds check for each message.
        &self.0[usize::from(index) % N]
    }
}

impl Request {
    /// Collects a completed request of one message and returns its size; the request is invalid
    /// afterwards. Returns `None` if there is more to do: see [`test`](Self::test).
    #[inline(always)]
    pub(crate) fn collect_one(&self) -> Option<c_int> {
        self.cell.collect_one().map(|size| size as c_int)
    }

    /// Makes progress. Returns `true`, once, when the request is completed, and stores its sizes.
    ///
    /// # Errors
    /// The comm has failed, or the request was collected before.
    #[inline(always)]
    pub(crate) fn test(&self, sizes: &mut Sizes) -> Fast<bool> {
        let cell = &*self.cell;
        // `collect_one` has found it so; the usual case goes straight to the queues.
        if !cell.is_in_flight() && self.collect(sizes)? {
            return Ok(true);
        }
        self.progress()?;
        if cell.is_in_flight() {
            return Ok(false);
        }
        match cell.collect_one() {
            Some(size) => sizes.set(0, size).map(|()| true).map_err(|_| self.too_large()),
            None => self.collect(sizes),
        }
    }

    /// Makes progress on a request of one message that is in flight. Returns the message's size, once,
    /// when the request is completed.
    ///
    /// # Errors
    /// The comm has failed.
    pub(crate) fn test_one(&self) -> Fast<Option<usize>> {
        if let Some(size) = self.cell.collect_one() {
            return Ok(Some(size));
        }
        self.progress()?;
        Ok(self.cell.collect_one())
    }

    #[inline(always)]
    fn progress(&self) -> Fast<()> {
        match &self.owner {
            Owner::Send(index, sender) => sender.progress(*index),
            Owner::Receive(index, receiver) => receiver.progress(*index),
            Owner::Flush(index, receiver) => receiver.progress_flush(*index),
        }
    }

    /// Collects the request if it is completed.
    #[inline(always)]
    fn collect(&self, sizes: &mut Sizes) -> Fast<bool> {
        // A call by the caller's reference would keep the sizes in memory in the usual case too.
        let mut moved = mem::replace(sizes, Sizes::IGNORED);
        let collected = self.collect_any(&mut moved);
        *sizes = moved;
        collected
    }

    /// Collects the request if it is completed, with any number of messages.
    #[inline(never)]
    fn collect_any(&self, sizes: &mut Sizes) -> Fast<bool> {
        let cell = &*self.cell;
        let count = match cell.completed() {
            Found::Pending => return Ok(false),
            Found::Stale => return Err(self.stale()),
            Found::Done(count) => count,
        };
        for (message, size) in cell.sizes(count).enumerate() {
            sizes.set(message, size).map_err(|_| self.too_large())?;
        }
        cell.free();
        Ok(true)
    }

    #[cold]
    fn stale(&self) -> Box<Error> {
        let what = match &self.owner {
            Owner::Send(..) => "send",
            Owner::Receive(..) => "receive",
            Owner::Flush(..) => "flush",
        };
        Error::Argument(format!("the {what} was already done: its request is no longer valid")).into()
    }

    #[cold]
    fn too_large(&self) -> Box<Error> {
        let (Owner::Send(index, _) | Owner::Receive(index, _) | Owner::Flush(index, _)) = &self.owner;
        let why = format!("request {index} is completed with more bytes than its receive has room for");
        Error::Internal(why).into()
    }
}

/// The states of `N` requests, made once. The comm completes them, and the requests that NCCL holds
/// collect them.
#[derive(Debug, Clone)]
pub(crate) struct Cells<const N: usize>(Arc<[RequestCell; N]>);

impl<const N: usize> Cells<N> {
    /// Makes free requests.
    pub(crate) fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| RequestCell::new())))
    }

    /// Returns the state of a request, whose index is below `N`, as the request refers to it.
    pub(crate) fn share(&self, index: u8) -> Element<RequestCell> {
        Element::of(self.0.clone(), usize::from(index))
    }

    /// The state of a request, whose index is below `N`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u8) -> &RequestCell {
        // No bounds check for each message.
        &self.0[usize::from(index) % N]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RequestCell> {
        self.0.iter()
    }

    /// Returns the index behind `index`, in rotation.
    #[inline(always)]
    pub(crate) fn after(index: u8) -> u8 {
        ((usize::from(index) + 1) % N) as u8
    }

    /// Returns a free request, from index `next` on in rotation. `next` is then the index behind it.
    #[inline(never)]
    pub(crate) fn find_free(&self, next: &mut u8) -> Option<u8> {
        let mut index = *next;
        for _ in 0..N {
            let after = Self::after(index);
            if self.get(index).is_free() {
                *next = after;
                return Some(index);
            }
            index = after;
        }
        None
    }
}
