//! One direction of a connection at one end: the sends or receives of one round, and the requests
//! in flight.

use std::{
    collections::VecDeque,
    fmt,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use super::{area::Area, cuda::Gpu, region::Layout};
use crate::failure::{Failure, Kind};
use crate::output::units;
use nccl_net_abi::NCCL_PTR_CUDA;
use nccl_net_host::{Comm, MAX_GROUP, Mr, NO_SIZES, Receiver, Recv, Request, Sender};

/// The first tag of a group; the others follow.
pub(super) const FIRST_TAG: i32 = 0x6d70;

/// A comm with its registered memory.
pub(super) struct End<'a, Way> {
    pub(super) comm: &'a Comm<Way>,
    pub(super) mr: Mr,
    pub(super) area: Area<'a>,
}

impl<'a, Way> End<'a, Way> {
    /// Makes memory and registers it, that of a GPU as a DMA-BUF if driver and device permit.
    pub(super) fn new(
        comm: &'a Comm<Way>,
        layout: Layout,
        gpu: Option<&'a Gpu>,
        dma_bufs: bool,
    ) -> Result<Self, Failure> {
        let area = Area::new(layout, gpu)?;
        let (addr, len) = (area.addr(), area.len());
        // SAFETY: `close` frees the memory after deregMr, and nothing else does. Slots are filled
        // and checked while no request is in flight.
        let mr = unsafe {
            match area.dma_buf().filter(|_| dma_bufs) {
                Some(fd) => comm.reg_dma_buf(addr, len, NCCL_PTR_CUDA, 0, fd.as_fd()),
                None if area.on_gpu() => comm.reg_mr_as(addr, len, NCCL_PTR_CUDA),
                None => comm.reg_mr(addr, len),
            }
        }?;
        Ok(Self { comm, mr, area })
    }

    pub(super) fn close(self) -> Result<(), Failure> {
        self.comm.dereg_mr(self.mr)?;
        self.area.free();
        Ok(())
    }
}

/// A sequence of messages: `groups` times `receives`, numbered from `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) first: u64,
    pub(super) groups: usize,
    /// Messages in a group.
    pub(super) receives: usize,
    /// Groups in flight.
    pub(super) depth: usize,
    /// Bytes of each message.
    pub(super) size: usize,
    /// Whether receives are optional: a request may complete before the data has arrived, and with
    /// another size.
    pub(super) optional: bool,
    /// Slots of the region. A round with more messages uses its slots again, unchecked.
    pub(super) slots: usize,
    pub(super) tail: Tail,
}

/// The last message of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// As long as the others.
    Whole,
    /// At a receiver: perhaps a byte shorter.
    Open,
    /// A byte shorter: no round follows. This says so where no message of the workers can.
    Short,
}

impl Round {
    pub(super) const fn messages(&self) -> usize {
        self.groups * self.receives
    }

    /// Returns the bytes of the message in a slot.
    pub(super) const fn len(&self, slot: usize) -> usize {
        let is_short = matches!(self.tail, Tail::Short) && slot + 1 == self.messages();
        self.size - is_short as usize
    }

    /// Returns the number of the message in a slot, `salt`ed for its direction.
    pub(super) const fn number(&self, slot: usize, salt: u64) -> u64 {
        (self.first + slot as u64) ^ salt
    }
}

/// The sends of one round.
pub(super) struct Sending<'a> {
    end: &'a End<'a, Sender>,
    round: Round,
    next: usize,
    done: usize,
    flight: VecDeque<(Request, usize, Instant)>,
    /// Time of the last completion; at first, of the start.
    last: Instant,
    /// Longest time without a completion.
    stall: Duration,
}

impl<'a> Sending<'a> {
    pub(super) fn new(end: &'a End<'a, Sender>, round: Round) -> Self {
        let flight = VecDeque::with_capacity(round.depth * round.receives);
        Self { end, round, next: 0, done: 0, flight, last: Instant::now(), stall: Duration::ZERO }
    }

    /// Returns the number of completed sends.
    pub(super) const fn done(&self) -> usize {
        self.done
    }

    /// Returns the longest time without a completion so far.
    pub(super) const fn stall(&self) -> Duration {
        self.stall
    }

    /// Tests requests and posts new ones; returns whether any call made progress.
    pub(super) fn step(&mut self, times: &mut Histogram<u64>) -> Result<bool, Failure> {
        let mut moved = false;
        for _ in 0..self.flight.len() {
            let Some((mut request, slot, since)) = self.flight.pop_front() else { break };
            let mut sizes = NO_SIZES;
            if !self.end.comm.test(&mut request, &mut sizes)? {
                self.flight.push_back((request, slot, since));
                continue;
            }
            let now = Instant::now();
            times.saturating_record(u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX));
            self.stall = self.stall.max(now - self.last);
            self.last = now;
            self.done += 1;
            moved = true;
        }
        while self.next < self.round.messages() && self.flight.len() < self.round.depth * self.round.receives
        {
            let (slot, tag) = self.place(self.next);
            let offset = self.end.area.region.slot_offset(slot % self.round.slots);
            let since = Instant::now();
            let Some(request) = self.end.comm.isend(&self.end.mr, offset, self.round.len(slot), tag)? else {
                break;
            };
            self.flight.push_back((request, slot, since));
            self.next += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Returns the slot and tag of the n-th send. The order within a group differs between groups:
    /// the tag, not the order, selects the receive.
    fn place(&self, n: usize) -> (usize, i32) {
        let (group, within) = (n / self.round.receives, n % self.round.receives);
        let member = (within + group) % self.round.receives;
        (group * self.round.receives + member, FIRST_TAG + member as i32)
    }

    pub(super) fn finished(&self) -> bool {
        self.done == self.round.messages()
    }
}

impl fmt::Display for Sending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { first, size, .. } = self.round;
        write!(
            f,
            "{} of {} sends of {} are done",
            self.done,
            self.round.messages(),
            units::size(size as u64)
        )?;
        if let Some((_, slot, since)) = self.flight.front() {
            let message = first + *slot as u64;
            write!(
                f,
                "; {} are in flight, message {message} for {:.1?}",
                self.flight.len(),
                since.elapsed()
            )?;
        }
        if self.next < self.round.messages() && self.flight.len() < self.round.depth * self.round.receives {
            let message = first + self.place(self.next).0 as u64;
            write!(f, "; isend accepts no more (NULL request) at message {message}")?;
        }
        Ok(())
    }
}

/// The receives of one round.
pub(super) struct Receiving<'a> {
    end: &'a End<'a, Receiver>,
    round: Round,
    next: usize,
    done: usize,
    flight: VecDeque<(Request, usize, Instant)>,
    /// Flushes of receives that are done.
    flushes: VecDeque<Request>,
    /// Whether the last message was shorter.
    is_short: bool,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(end: &'a End<'a, Receiver>, round: Round) -> Self {
        let (flight, flushes) = (VecDeque::with_capacity(round.depth), VecDeque::with_capacity(round.depth));
        Self { end, round, next: 0, done: 0, flight, flushes, is_short: false }
    }

    /// Returns how long the last message was. Of a round that is finished.
    pub(super) const fn tail(&self) -> Tail {
        if self.is_short { Tail::Short } else { Tail::Whole }
    }

    /// Returns whether a message of this size is a byte shorter than the others.
    fn is_shorter(&self, size: i32) -> bool {
        usize::try_from(size).is_ok_and(|size| size + 1 == self.round.size)
    }

    /// Returns the number of completed groups.
    pub(super) const fn done(&self) -> usize {
        self.done
    }

    /// Tests requests and posts new ones; returns whether any call made progress.
    pub(super) fn step(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        for _ in 0..self.flight.len() {
            let Some((mut request, group, since)) = self.flight.pop_front() else { break };
            let mut sizes = NO_SIZES;
            if !self.end.comm.test(&mut request, &mut sizes)? {
                self.flight.push_back((request, group, since));
                continue;
            }
            self.check_sizes(group, &sizes[..self.round.receives])?;
            self.is_short |= sizes[..self.round.receives].iter().any(|size| self.is_shorter(*size));
            self.end.comm.irecv_consumed(&request)?;
            match self.flush(group)? {
                Some(flush) => self.flushes.push_back(flush),
                None => self.done += 1,
            }
            moved = true;
        }
        for _ in 0..self.flushes.len() {
            let Some(mut flush) = self.flushes.pop_front() else { break };
            let mut sizes = NO_SIZES;
            if self.end.comm.test(&mut flush, &mut sizes)? {
                self.done += 1;
                moved = true;
            } else {
                self.flushes.push_back(flush);
            }
        }
        while self.next < self.round.groups && self.flight.len() + self.flushes.len() < self.round.depth {
            let Some(request) = self.post(self.next)? else { break };
            self.flight.push_back((request, self.next, Instant::now()));
            self.next += 1;
            moved = true;
        }
        Ok(moved)
    }

    pub(super) fn post(&self, group: usize) -> Result<Option<Request>, Failure> {
        let all = self.receives(group);
        let group = &all[..self.round.receives];
        Ok(match self.round.optional {
            true => self.end.comm.irecv_optional(group)?,
            false => self.end.comm.irecv(group)?,
        })
    }

    /// Makes the data of a receive that is done visible to the GPU, as NCCL does. `None`: there is
    /// nothing to wait for.
    pub(super) fn flush(&self, group: usize) -> Result<Option<Request>, Failure> {
        if !self.end.area.on_gpu() {
            return Ok(None);
        }
        Ok(self.end.comm.iflush(&self.receives(group)[..self.round.receives])?)
    }

    fn receives(&self, group: usize) -> [Recv<'_>; MAX_GROUP] {
        let recv = |member: usize| Recv {
            mr: &self.end.mr,
            offset: self
                .end
                .area
                .region
                .slot_offset((group * self.round.receives + member) % self.round.slots),
            len: self.round.size,
            tag: FIRST_TAG + member as i32,
        };
        std::array::from_fn(|member| recv(member.min(self.round.receives - 1)))
    }

    pub(super) fn check_sizes(&self, group: usize, sizes: &[i32]) -> Result<(), Failure> {
        let is_last = |member: usize| group * self.round.receives + member + 1 == self.round.messages();
        let fits = |member: usize, s: i32| {
            usize::try_from(s) == Ok(self.round.size)
                || (self.round.optional && s == 0)
                || (self.round.tail == Tail::Open && is_last(member) && self.is_shorter(s))
        };
        let wrong = (0..).zip(sizes).position(|(member, s)| !fits(member, *s));
        let Some(member) = wrong else { return Ok(()) };
        let message = self.round.first + (group * self.round.receives + member) as u64;
        let text = format!(
            "message {message}: test returned a size of {} bytes for receive {member} of {}, but {} were sent",
            sizes[member], self.round.receives, self.round.size
        );
        Err(Failure::new(Kind::Data, text))
    }

    pub(super) fn finished(&self) -> bool {
        self.done == self.round.groups
    }
}

impl fmt::Display for Receiving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { first, receives, size, .. } = self.round;
        write!(
            f,
            "{} of {} receives of {} are done",
            self.done,
            self.round.groups,
            units::size(size as u64)
        )?;
        if let Some((_, group, since)) = self.flight.front() {
            let message = first + (*group * receives) as u64;
            write!(
                f,
                "; {} are in flight, message {message} for {:.1?}",
                self.flight.len(),
                since.elapsed()
            )?;
        }
        if self.next < self.round.groups && self.flight.len() < self.round.depth {
            let message = first + (self.next * receives) as u64;
            write!(f, "; irecv accepts no more (NULL request) at message {message}")?;
        }
        Ok(())
    }
}
