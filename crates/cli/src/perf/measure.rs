//! Measures one size in rounds. Between rounds, buffers are filled and checked outside of the
//! measured time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::{
    area::Area,
    breaker::{Act, Breaker},
    flow::{End, Receiving, Round, Sending, Tail},
    link::{Message, Role, expect_message},
    one_sided::{Group, Windows},
    pingpong,
    plan::Plan,
    rails,
    report::{SizeResult, Stage, Times},
    session::{Patience, Session},
    two_sided::Comms,
    worker::Death,
};
use crate::failure::{Context, Failure};
use nccl_net_host::{Receiver, Sender};

/// Distinguishes messages from B to A from those in the other direction.
const BACKWARD: u64 = 1 << 63;

/// The longest time that is recorded: an hour in nanoseconds.
const SLOWEST: u64 = 3_600_000_000_000;

/// Most groups of a round that uses its slots again.
const MOST_GROUPS: usize = 1 << 20;

/// What moves the data of one end.
enum Traffic<'a> {
    Messages { send: Option<End<'a, Sender>>, recv: Option<End<'a, Receiver>> },
    OneSided(Windows<'a>),
}

impl<'a> Traffic<'a> {
    /// Returns the memory that is sent from, and the one that is received into.
    fn areas(&mut self) -> (Option<&mut Area<'a>>, Option<&mut Area<'a>>) {
        match self {
            Self::Messages { send, recv } => {
                (send.as_mut().map(|end| &mut end.area), recv.as_mut().map(|end| &mut end.area))
            }
            Self::OneSided(windows) => windows.areas(),
        }
    }

    fn close(self) -> Result<(), Failure> {
        match self {
            Self::Messages { send, recv } => {
                send.map_or(Ok(()), End::close)?;
                recv.map_or(Ok(()), End::close)
            }
            Self::OneSided(windows) => windows.close(),
        }
    }
}

/// Both directions of one end, and the results so far.
pub(super) struct Measurement<'a> {
    traffic: Traffic<'a>,
    times: Histogram<u64>,
    pub(super) messages: u64,
    pub(super) busy: Duration,
    /// What to do in the next round once so many sends are completed.
    pub(super) due: Option<(usize, Act)>,
    /// Longest time of a round without a completed send.
    pub(super) stall: Duration,
}

/// Measures messages of `size` bytes. Both ends return the same result.
pub(super) fn messages(session: &mut Session<'_>, comms: &Comms, size: usize) -> Result<SizeResult, Failure> {
    let (layout, _) = session.layout(size);
    let (gpu, dma_bufs) = (session.gpu, session.dma_bufs);
    let send = comms.send.as_ref().map(|comm| End::new(comm, layout, gpu, dma_bufs)).transpose()?;
    let recv = comms.recv.as_ref().map(|comm| End::new(comm, layout, gpu, dma_bufs)).transpose()?;
    measure(session, Traffic::Messages { send, recv }, size)
}

/// Measures puts, signals or gets of `size` bytes. Both ends return the same result.
pub(super) fn one_sided(
    session: &mut Session<'_>,
    group: &Group,
    size: usize,
) -> Result<SizeResult, Failure> {
    let (layout, _) = session.layout(size);
    let windows = Windows::new(group, session, layout)?;
    measure(session, Traffic::OneSided(windows), size)
}

fn measure(session: &mut Session<'_>, traffic: Traffic<'_>, size: usize) -> Result<SizeResult, Failure> {
    let (layout, depth) = session.layout(size);
    let mut this = Measurement {
        traffic,
        times: Histogram::new_with_bounds(1, SLOWEST, 3).tool("make a histogram")?,
        messages: 0,
        busy: Duration::ZERO,
        due: None,
        stall: Duration::ZERO,
    };
    let Plan { receives, optional, check, .. } = session.plan;
    let breaker = match session.role {
        Role::A => Breaker::new(session.plan.fault.as_ref(), session.trial.outage.as_ref())?,
        Role::B => None,
    };
    let slots = layout.slots;
    let round = Round { first: 0, groups: 0, receives, depth, size, optional, slots, tail: Tail::Whole };
    let groups = match &session.plan.fault {
        Some(_) if !check => MOST_GROUPS,
        _ => layout.slots / receives,
    };
    let network = session.trial.network.clone();
    let (before, stages) = match (session.role, &breaker, network) {
        (Role::A, Some(breaker), _) => {
            let before = rails::read();
            let stages = this.lead_through(session, round, groups, breaker)?;
            session.link.send(&Message::EndOfSize)?;
            (before, stages)
        }
        (Role::A, None, Some(network)) => {
            let before = rails::read();
            let stages = this.lead_in_silence(session, round, groups, &network)?;
            session.link.send(&Message::EndOfSize)?;
            (before, stages)
        }
        (Role::A, None, None) => (this.lead(session, round, groups)?, Vec::new()),
        (Role::B, ..) => (this.follow(session, round, groups)?, Vec::new()),
    };
    let rails = before.as_ref().and_then(rails::since);
    let result = this.tally(session, size, depth, rails, stages)?;
    this.traffic.close()?;
    Ok(result)
}

impl Measurement<'_> {
    /// Leads as end A: a short warm-up round, then as many rounds as the plan needs. Returns the
    /// rails' counters after the warm-up.
    fn lead(
        &mut self,
        session: &mut Session<'_>,
        mut round: Round,
        most: usize,
    ) -> Result<Option<rails::Counters>, Failure> {
        round.groups = most.min(2 * round.depth);
        let started = Instant::now();
        self.lead_round(session, &round)?;
        let each = started.elapsed() / round.groups as u32;
        let before = self.reset();
        let started = Instant::now();
        while let Some(groups) = self.next_groups(session, &round, started, each) {
            round.first += round.messages() as u64;
            round.groups = groups.min(most);
            self.lead_round(session, &round)?;
        }
        session.link.send(&Message::EndOfSize)?;
        Ok(before)
    }

    /// Returns how many groups to measure next; `None` if the plan is fulfilled. `each`: the time
    /// of one group with all overhead.
    fn next_groups(
        &self,
        session: &Session<'_>,
        round: &Round,
        started: Instant,
        each: Duration,
    ) -> Option<usize> {
        let receives = session.plan.receives as u64;
        if let Some(wanted) = session.plan.iterations {
            let left = wanted.div_ceil(receives).saturating_sub(self.messages / receives);
            return (left > 0).then(|| usize::try_from(left).unwrap_or(usize::MAX));
        }
        let left = session.plan.time.saturating_sub(started.elapsed());
        if left.is_zero() && self.messages > 0 {
            return None;
        }
        let fitting = left.as_nanos() / each.as_nanos().max(1);
        Some(usize::try_from(fitting).unwrap_or(usize::MAX).max(round.depth))
    }

    pub(super) fn lead_round(&mut self, session: &mut Session<'_>, round: &Round) -> Result<(), Failure> {
        session.link.send(&Message::Round { first: round.first, groups: round.groups })?;
        self.prepare(session, round)?;
        expect_message!(session.link, Message::Ready => ());
        session.link.send(&Message::Go)?;
        self.transfer(session, round)
    }

    /// Follows A's messages as end B.
    fn follow(
        &mut self,
        session: &mut Session<'_>,
        mut round: Round,
        most: usize,
    ) -> Result<Option<rails::Counters>, Failure> {
        let mut before = None;
        loop {
            let (first, groups) = match session.link.recv()? {
                Message::Round { first, groups } if (1..=most).contains(&groups) => (first, groups),
                Message::Unattended { first, groups } if (1..=most).contains(&groups) => {
                    (round.first, round.groups) = (first, groups);
                    self.follow_unattended(session, round)?;
                    continue;
                }
                Message::EndOfSize => return Ok(before),
                message => return session.link.unexpected(&message, "Round or EndOfSize"),
            };
            if first != 0 && round.first == 0 {
                before = self.reset();
            }
            (round.first, round.groups) = (first, groups);
            self.prepare(session, &round)?;
            session.link.send(&Message::Ready)?;
            expect_message!(session.link, Message::Go => ());
            self.transfer(session, &round)?;
        }
    }

    /// Discards the warm-up's results.
    pub(super) fn reset(&mut self) -> Option<rails::Counters> {
        self.times.reset();
        self.messages = 0;
        self.busy = Duration::ZERO;
        rails::read()
    }

    pub(super) fn prepare(&mut self, session: &Session<'_>, round: &Round) -> Result<(), Failure> {
        let (out, back) = salts(session.role);
        if !session.plan.check {
            return Ok(());
        }
        let (from, into) = self.traffic.areas();
        from.map_or(Ok(()), |area| area.fill(round, out, || session.watch.beat()))?;
        into.map_or(Ok(()), |area| area.poison(round, back, || session.watch.beat()))
    }

    /// Moves a round's messages in both directions (the measured part), and checks them. Both ends
    /// report completion before the check. A send completes only after its data has arrived; the
    /// data of optional receives is then there as well.
    fn transfer(&mut self, session: &mut Session<'_>, round: &Round) -> Result<(), Failure> {
        let started = Instant::now();
        match (&mut self.traffic, session.plan.ping_pong) {
            (Traffic::Messages { send: Some(send), recv: Some(recv) }, true) => {
                pingpong::run(session, send, recv, round, &mut self.times)?;
            }
            (Traffic::Messages { .. }, _) => {
                self.stream(session, round)?;
            }
            (Traffic::OneSided(windows), true) => windows.ping_pong(session, round, &mut self.times)?,
            (Traffic::OneSided(windows), false) => windows.stream(session, round, &mut self.times)?,
        }
        self.finish_round(session, round, started.elapsed())
    }

    /// Moves and checks a round without any message to the other worker. Returns how long the last
    /// message was.
    pub(super) fn transfer_alone(
        &mut self,
        session: &mut Session<'_>,
        round: &Round,
    ) -> Result<Tail, Failure> {
        let started = Instant::now();
        let tail = self.stream(session, round)?;
        self.busy += started.elapsed();
        self.messages += round.messages() as u64;
        self.check(session, &Round { tail, ..*round })?;
        Ok(tail)
    }

    /// Moves each direction independently, with as many groups in flight as the round has. Returns how
    /// long the last message was.
    fn stream(&mut self, session: &mut Session<'_>, round: &Round) -> Result<Tail, Failure> {
        let (send, recv) = match &self.traffic {
            Traffic::Messages { send, recv } => (send.as_ref(), recv.as_ref()),
            Traffic::OneSided(_) => (None, None),
        };
        let mut sending = send.map(|end| Sending::new(end, *round));
        let mut receiving = recv.map(|end| Receiving::new(end, *round));
        let mut patience = Patience::new(session.plan.timeout);
        loop {
            let mut moved = false;
            if let Some(sending) = &mut sending {
                moved |= sending.step(&mut self.times)?;
                if let Some((_, act)) = self.due.take_if(|(sends, _)| sending.done() >= *sends) {
                    act()?;
                }
            }
            if let Some(receiving) = &mut receiving {
                moved |= receiving.step()?;
            }
            if session.trial.death == Some(Death::Own)
                && round.first > 0
                && sending.as_ref().is_none_or(|sending| sending.done() >= round.messages() / 2)
                && receiving.as_ref().is_none_or(|receiving| receiving.done() >= round.groups / 2)
            {
                // SAFETY: ends this process as the kernel does for lack of memory.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            if sending.as_ref().is_none_or(Sending::finished)
                && receiving.as_ref().is_none_or(Receiving::finished)
            {
                let stall = sending.as_ref().map_or(Duration::ZERO, Sending::stall);
                self.stall = self.stall.max(stall);
                return Ok(receiving.as_ref().map_or(round.tail, Receiving::tail));
            }
            if moved {
                patience.moved();
                continue;
            }
            patience.idle(session.link, || {
                let parts =
                    [sending.as_ref().map(ToString::to_string), receiving.as_ref().map(ToString::to_string)];
                parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
            })?;
        }
    }

    /// Exchanges the round's duration with the other end, and checks the received messages.
    fn finish_round(
        &mut self,
        session: &mut Session<'_>,
        round: &Round,
        took: Duration,
    ) -> Result<(), Failure> {
        let theirs = self.meet(session, took)?;
        self.busy += took.max(theirs);
        self.messages += round.messages() as u64;
        self.check(session, round)
    }

    /// Exchanges the duration of this end's part with the other end's.
    pub(super) fn meet(&mut self, session: &mut Session<'_>, took: Duration) -> Result<Duration, Failure> {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        session.link.send(&Message::Finished { nanos })?;
        if let Traffic::OneSided(windows) = &self.traffic {
            windows.attend(session)?;
        }
        Ok(expect_message!(session.link, Message::Finished { nanos } => Duration::from_nanos(nanos)))
    }

    /// Checks the messages that a round has received.
    fn check(&mut self, session: &Session<'_>, round: &Round) -> Result<(), Failure> {
        let (_, into) = self.traffic.areas();
        let (Some(area), true) = (into, session.plan.check) else { return Ok(()) };
        let watch = session.watch;
        area.check(round, salts(session.role).1, || watch.beat())
    }

    /// Merges the results of both ends.
    fn tally(
        &mut self,
        session: &mut Session<'_>,
        size: usize,
        depth: usize,
        rails: Option<Vec<rails::RailBytes>>,
        stages: Vec<Stage>,
    ) -> Result<SizeResult, Failure> {
        if session.role == Role::B {
            let times =
                self.times.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
            session.link.send(&Message::Tally { times, rails })?;
            return Ok(expect_message!(session.link, Message::Result(result) => *result));
        }
        let (theirs, peer_rails) =
            expect_message!(session.link, Message::Tally { times, rails } => (times, rails));
        for (value, count) in theirs {
            self.times.saturating_record_n(value, count);
        }
        let messages = self.messages * if session.plan.both_ways() { 2 } else { 1 };
        let bytes = messages * size as u64;
        let seconds = self.busy.as_secs_f64();
        let gigabytes_per_second = if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 };
        let result = SizeResult {
            abi: session.version,
            size,
            messages,
            bytes,
            seconds,
            gigabytes_per_second,
            bus_gigabytes_per_second: gigabytes_per_second
                / if session.plan.bidirectional { 2.0 } else { 1.0 },
            messages_per_second: if seconds > 0.0 { messages as f64 / seconds } else { 0.0 },
            depth: if session.plan.ping_pong { 1 } else { depth },
            time_ns: Times::of(&self.times),
            checked: session.plan.check,
            rails,
            peer_rails,
            stages,
        };
        session.link.send(&Message::Result(Box::new(result.clone())))?;
        Ok(result)
    }
}

/// Returns the salts of this end's sends and receives.
const fn salts(role: Role) -> (u64, u64) {
    match role {
        Role::A => (0, BACKWARD),
        Role::B => (BACKWARD, 0),
    }
}
