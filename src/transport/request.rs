//! What NCCL holds while a send, a receive or a flush is under way.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use nccl_net_versions::{Sizes, Tagged};

use crate::error::{Error, Fast};
use crate::proto::{MAX_RECVS, SLOTS};
use crate::transport::recv::Receiver;
use crate::transport::send::Sender;

/// Requests per comm: NCCL has at most 32 operations under way, each of up to 8 sends.
pub(crate) const REQUESTS: usize = SLOTS;

/// A place in its comm's pool. It does not keep the comm alive: a closed comm's requests are dead.
///
/// Who has the comm's state begins it and tells that it is done. `test` takes that without the state, so that it is cheap
/// for all requests that a look at the queues has found done, and works on a comm that has failed since.
#[derive(Debug)]
pub struct Request {
    /// [`FREE`], [`UNDER_WAY`], [`DONE`] and how many sizes there are, [`EARLY`], or [`OWED`].
    state: AtomicU32,
    sizes: [AtomicUsize; MAX_RECVS],
    owner: Owner,
    index: usize,
}

const FREE: u32 = 0;
const UNDER_WAY: u32 = 1;
const DONE: u32 = 2;
/// A send or a receive: the usual case.
const DONE_ONE: u32 = DONE + 1;
/// Done for NCCL, which has not asked, and its data has not come.
const EARLY: u32 = 16;
/// NCCL has taken it, and its data has not come.
const OWED: u32 = 17;

#[derive(Debug)]
enum Owner {
    Send(Weak<Sender>),
    Recv(Weak<Receiver>),
}

/// The requests of one comm, made once.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<[Tagged<Request>]>);

impl Pool {
    pub(crate) fn of_sender(owner: &Weak<Sender>) -> Self {
        Self::new(REQUESTS, || Owner::Send(owner.clone()))
    }

    pub(crate) fn of_receiver(owner: &Weak<Receiver>, requests: usize) -> Self {
        Self::new(requests, || Owner::Recv(owner.clone()))
    }

    fn new(requests: usize, owner: impl Fn() -> Owner) -> Self {
        let one =
            |index| Request { state: AtomicU32::new(FREE), sizes: Default::default(), owner: owner(), index };
        Self((0..requests).map(|index| Tagged::new(one(index))).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Tagged<Request> {
        &self.0[index]
    }

    /// A free one of the [`REQUESTS`] from index `start` on, sought from place `next` on, which is where to begin the next time.
    #[inline]
    pub(crate) fn free(&self, start: usize, next: &mut u8) -> Option<u8> {
        let place = *next;
        *next = place.wrapping_add(1);
        if self.get(start + usize::from(place)).is_free() { Some(place) } else { self.search(start, next) }
    }

    /// Only where an earlier one is tested later than a later one.
    #[cold]
    fn search(&self, start: usize, next: &mut u8) -> Option<u8> {
        let place = (0..REQUESTS).map(|i| next.wrapping_add(i as u8));
        let place = place.into_iter().find(|place| self.get(start + usize::from(*place)).is_free())?;
        *next = place.wrapping_add(1);
        Some(place)
    }
}

impl Request {
    /// The size of a message that is done; the request is free with that. `None` where there is more to it: see
    /// [`test`](Self::test).
    #[inline]
    pub fn finished(&self) -> Option<usize> {
        let state = self.state.load(Ordering::Acquire);
        if state != DONE_ONE {
            return (state == EARLY && self.turn(EARLY, OWED)).then_some(0);
        }
        let size = self.sizes[0].load(Ordering::Relaxed);
        self.state.store(FREE, Ordering::Release);
        Some(size)
    }

    /// Makes progress; `true`, once, when it is done, and the sizes told.
    pub fn test(&self, sizes: &mut Sizes) -> Fast<bool> {
        if self.taken(sizes)? {
            return Ok(true);
        }
        match &self.owner {
            Owner::Send(comm) => live(comm)?.progress(self.index)?,
            Owner::Recv(comm) => live(comm)?.progress(self.index)?,
        }
        self.taken(sizes)
    }

    /// Whether the request is done; it is free with that.
    fn taken(&self, sizes: &mut Sizes) -> Fast<bool> {
        let count = match self.state.load(Ordering::Acquire) {
            // An early one that `finished` found so is taken by now, unless its comm has failed or its data has come.
            UNDER_WAY | EARLY => return Ok(false),
            FREE | OWED => return Err(self.over()),
            state => (state - DONE) as usize,
        };
        for (i, size) in self.sizes.iter().enumerate().take(count) {
            sizes.set(i, size.load(Ordering::Relaxed)).map_err(|_| self.too_large())?;
        }
        self.state.store(FREE, Ordering::Release);
        Ok(true)
    }

    #[cold]
    fn too_large(&self) -> Box<Error> {
        Error::Internal(format!("request {} is done with more bytes than were asked for", self.index)).into()
    }

    #[cold]
    fn over(&self) -> Box<Error> {
        let what = match self.owner {
            Owner::Send(_) => "send",
            Owner::Recv(_) if self.index < SLOTS => "receive",
            Owner::Recv(_) => "flush",
        };
        Error::Argument(format!("the {what} was already done: its request is no longer valid")).into()
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.state.load(Ordering::Relaxed) == UNDER_WAY
    }

    /// NCCL is going to have it.
    #[inline]
    pub(crate) fn begin(&self) {
        self.state.store(UNDER_WAY, Ordering::Relaxed);
    }

    /// One message is done.
    #[inline]
    pub(crate) fn done_one(&self, size: usize) {
        self.sizes[0].store(size, Ordering::Relaxed);
        self.state.store(DONE_ONE, Ordering::Release);
    }

    /// Its one message is done for NCCL, which is told a size of 0; its data is to come.
    #[inline]
    pub(crate) fn done_early(&self) {
        self.state.store(EARLY, Ordering::Release);
    }

    /// Whether it was [done early](Self::done_early), and its data is to come.
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), EARLY | OWED)
    }

    /// The data of an early one is here: it is free, or tells its size where NCCL has not asked.
    #[inline]
    pub(crate) fn settle(&self, size: usize) {
        if self.state.load(Ordering::Relaxed) == OWED || !self.tell(size) {
            self.state.store(FREE, Ordering::Release);
        }
    }

    /// Whether NCCL will be told the size of an early one, which it has not asked for.
    #[cold]
    fn tell(&self, size: usize) -> bool {
        self.sizes[0].store(size, Ordering::Relaxed);
        self.turn(EARLY, DONE_ONE)
    }

    /// Nothing was done early, where NCCL has not asked.
    pub(crate) fn revoke(&self) {
        self.turn(EARLY, UNDER_WAY);
    }

    /// From one state to another, if it is in that: NCCL may ask at the same time.
    #[inline]
    fn turn(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// At most [`MAX_RECVS`] messages are done; none for a flush.
    pub(crate) fn done(&self, sizes: &[usize]) {
        let count = sizes.len().min(MAX_RECVS);
        for (place, size) in self.sizes.iter().zip(sizes) {
            place.store(*size, Ordering::Relaxed);
        }
        self.state.store(DONE + count as u32, Ordering::Release);
    }
}

fn live<T>(comm: &Weak<T>) -> Fast<Arc<T>> {
    comm.upgrade().ok_or_else(|| Error::Argument("the request's connection is closed".into()).into())
}
