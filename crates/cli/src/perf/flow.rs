//! One direction of a connection at one end: the sends or receives of one round, and the requests
//! in flight.

use std::{
    collections::VecDeque,
    fmt,
    mem::ManuallyDrop,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use super::{
    pattern,
    region::{Layout, Region},
};
use crate::failure::{Failure, Kind};
use crate::output::units;
use nccl_net_host::{Comm, MAX_GROUP, Mr, NO_SIZES, Receiver, Recv, Request, Sender};

/// The first tag of a group; the others follow.
pub(super) const FIRST_TAG: i32 = 0x6d70;

/// A comm with its registered memory.
pub(super) struct End<'a, Way> {
    pub(super) comm: &'a Comm<Way>,
    pub(super) mr: Mr,
    /// Stays mapped after a failure: the plugin may still access it until the process ends.
    pub(super) region: ManuallyDrop<Region>,
}

impl<'a, Way> End<'a, Way> {
    pub(super) fn new(comm: &'a Comm<Way>, layout: Layout) -> Result<Self, Failure> {
        let region = ManuallyDrop::new(Region::new(layout)?);
        // SAFETY: `close` unmaps the memory after deregMr, and nothing else does. Slots are filled
        // and checked while no request is in flight.
        let mr = unsafe { comm.reg_mr(region.addr(), layout.len()) }?;
        Ok(Self { comm, mr, region })
    }

    pub(super) fn close(self) -> Result<(), Failure> {
        self.comm.dereg_mr(self.mr)?;
        drop(ManuallyDrop::into_inner(self.region));
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
}

impl Round {
    pub(super) const fn messages(&self) -> usize {
        self.groups * self.receives
    }

    /// Returns the number of the message in a slot, `salt`ed for its direction.
    const fn number(&self, slot: usize, salt: u64) -> u64 {
        (self.first + slot as u64) ^ salt
    }
}

/// Fills the slots to send.
pub(super) fn prepare_send(end: &mut End<'_, Sender>, round: &Round, salt: u64, alive: impl Fn()) {
    for slot in 0..round.messages() {
        pattern::fill(end.region.slot(slot), round.number(slot, salt));
        alive();
    }
}

/// Fills the slots to receive into with other bytes than the expected ones.
pub(super) fn prepare_recv(end: &mut End<'_, Receiver>, round: &Round, salt: u64, alive: impl Fn()) {
    for slot in 0..round.messages() {
        pattern::poison(end.region.slot(slot), round.number(slot, salt));
        alive();
    }
}

/// Checks every received byte, and that the bytes behind each message did not change.
pub(super) fn check(
    end: &mut End<'_, Receiver>,
    round: &Round,
    salt: u64,
    alive: impl Fn(),
) -> Result<(), Failure> {
    for slot in 0..round.messages() {
        let message = round.number(slot, salt);
        let wrong = |what: String| {
            let text = format!("message {} of {}: {what}", message ^ salt, units::size(round.size as u64));
            Err(Failure::new(Kind::Data, text))
        };
        if let Some(mut mismatch) = pattern::check(end.region.slot(slot), message) {
            if let pattern::Origin::Message { number, .. } = &mut mismatch.origin {
                *number ^= salt;
            }
            return wrong(mismatch.to_string());
        }
        if let Some(at) = end.region.overrun(slot) {
            return wrong(format!("the plugin wrote {at} bytes behind the message's end"));
        }
        alive();
    }
    Ok(())
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
            let offset = self.end.region.slot_offset(slot % self.round.slots);
            let since = Instant::now();
            let Some(request) = self.end.comm.isend(&self.end.mr, offset, self.round.size, tag)? else {
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
}

impl<'a> Receiving<'a> {
    pub(super) fn new(end: &'a End<'a, Receiver>, round: Round) -> Self {
        Self { end, round, next: 0, done: 0, flight: VecDeque::with_capacity(round.depth) }
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
            self.end.comm.irecv_consumed(&request)?;
            self.done += 1;
            moved = true;
        }
        while self.next < self.round.groups && self.flight.len() < self.round.depth {
            let Some(request) = self.post(self.next)? else { break };
            self.flight.push_back((request, self.next, Instant::now()));
            self.next += 1;
            moved = true;
        }
        Ok(moved)
    }

    pub(super) fn post(&self, group: usize) -> Result<Option<Request>, Failure> {
        let recv = |member: usize| Recv {
            mr: &self.end.mr,
            offset: self.end.region.slot_offset((group * self.round.receives + member) % self.round.slots),
            len: self.round.size,
            tag: FIRST_TAG + member as i32,
        };
        let all: [Recv<'_>; MAX_GROUP] =
            std::array::from_fn(|member| recv(member.min(self.round.receives - 1)));
        let group = &all[..self.round.receives];
        Ok(match self.round.optional {
            true => self.end.comm.irecv_optional(group)?,
            false => self.end.comm.irecv(group)?,
        })
    }

    pub(super) fn check_sizes(&self, group: usize, sizes: &[i32]) -> Result<(), Failure> {
        let fits = |s: &i32| usize::try_from(*s) == Ok(self.round.size) || (self.round.optional && *s == 0);
        let wrong = sizes.iter().position(|s| !fits(s));
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
