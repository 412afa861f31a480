//! The puts, signals or gets of a round, and those of the other end that arrive here.

use std::{collections::VecDeque, time::Instant};

use hdrhistogram::Histogram;

use super::{group::Request, windows::Windows};
use crate::failure::Failure;
use crate::output::units;
use crate::perf::{
    flow::Round,
    link::Role,
    session::{Patience, Session},
};

/// The requests of a round, tested in the order in which they began, as NCCL's thread does.
struct Flight<'w, 'a> {
    windows: &'w Windows<'a>,
    round: Round,
    requests: VecDeque<(Request, Instant)>,
    begun: usize,
    done: usize,
}

impl<'w, 'a> Flight<'w, 'a> {
    fn new(windows: &'w Windows<'a>, round: Round) -> Self {
        Self { windows, round, requests: VecDeque::new(), begun: 0, done: 0 }
    }

    /// Begins the next one.
    fn begin(&mut self) -> Result<(), Failure> {
        let slot = self.begun % self.round.slots;
        let since = Instant::now();
        self.requests.push_back((self.windows.begin(slot, self.round.size)?, since));
        self.begun += 1;
        Ok(())
    }

    /// Collects the oldest request if it is done; returns its time in nanoseconds.
    fn collect(&mut self) -> Result<Option<u64>, Failure> {
        let Some((request, since)) = self.requests.front() else { return Ok(None) };
        if !self.windows.group.test(request)? {
            return Ok(None);
        }
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.requests.pop_front();
        self.done += 1;
        Ok(Some(nanos))
    }

    /// Describes what is missing.
    fn state(&self) -> String {
        let Self { windows, round, requests, done, .. } = self;
        let (groups, bytes) = (round.groups, units::size(round.size as u64));
        let begun = windows.begins.then(|| {
            let (what, flight) = (windows.operation.plural(), requests.len());
            format!("{done} of {groups} {what} of {bytes} are done, {flight} are in flight")
        });
        let arrived = windows.signals().saturating_sub(windows.seen);
        let awaited = windows.awaits.then(|| format!("{arrived} of {groups} signals have arrived"));
        [begun, awaited].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

impl Windows<'_> {
    /// Moves a round: as many requests in flight as it has groups in flight, in each direction.
    pub(in crate::perf) fn stream(
        &mut self,
        session: &mut Session<'_>,
        round: &Round,
        times: &mut Histogram<u64>,
    ) -> Result<(), Failure> {
        let wanted = if self.begins { round.groups } else { 0 };
        let goal = self.seen + if self.awaits { round.groups as u64 } else { 0 };
        let mut flight = Flight::new(self, *round);
        let mut patience = Patience::new(session.plan.timeout);
        let mut arrived = self.seen;
        loop {
            self.group.progress()?;
            let now = self.signals();
            let mut moved = now != arrived;
            arrived = now;
            while let Some(nanos) = flight.collect()? {
                times.saturating_record(nanos);
                moved = true;
            }
            while flight.begun < wanted && flight.requests.len() < round.depth {
                flight.begin()?;
                moved = true;
            }
            if flight.done == wanted && arrived >= goal {
                break;
            }
            if moved {
                patience.moved();
            } else {
                patience.idle(session.link, || flight.state())?;
            }
        }
        self.make_visible(session, round)?;
        self.seen = goal;
        Ok(())
    }

    /// Makes what a round has got visible to this end's GPU.
    fn make_visible(&self, session: &mut Session<'_>, round: &Round) -> Result<(), Failure> {
        // A signal needs none: it is visible after its data.
        let has_got = self.operation.is_get() && self.begins;
        let Some(flush) = has_got.then(|| self.flush()).transpose()?.flatten() else { return Ok(()) };
        let mut patience = Patience::new(session.plan.timeout);
        while !self.group.test(&flush)? {
            self.group.progress()?;
            patience.idle(session.link, || format!("the flush of {} gets is not done", round.groups))?;
        }
        Ok(())
    }

    /// Moves a round one at a time, there and back. End A records half of each round trip.
    pub(in crate::perf) fn ping_pong(
        &mut self,
        session: &mut Session<'_>,
        round: &Round,
        times: &mut Histogram<u64>,
    ) -> Result<(), Failure> {
        let mut flight = Flight::new(self, *round);
        for n in 1..=round.groups as u64 {
            let since = Instant::now();
            if session.role == Role::B {
                self.await_signal(session, self.seen + n, &mut flight)?;
            }
            self.collect_to(round.depth - 1, session, &mut flight)?;
            flight.begin()?;
            if session.role == Role::A {
                self.await_signal(session, self.seen + n, &mut flight)?;
                let half = since.elapsed().as_nanos() / 2;
                times.saturating_record(u64::try_from(half).unwrap_or(u64::MAX));
            }
        }
        self.collect_to(0, session, &mut flight)?;
        self.seen += round.groups as u64;
        Ok(())
    }

    /// Waits until so many requests at most are in flight: a plugin has room for a limited number.
    fn collect_to(
        &self,
        most: usize,
        session: &mut Session<'_>,
        flight: &mut Flight<'_, '_>,
    ) -> Result<(), Failure> {
        let mut patience = Patience::new(session.plan.timeout);
        while flight.requests.len() > most {
            if flight.collect()?.is_none() {
                self.group.progress()?;
                patience.idle(session.link, || flight.state())?;
            }
        }
        Ok(())
    }

    /// Waits until so many signals of the other end have arrived. Collects requests meanwhile.
    fn await_signal(
        &self,
        session: &mut Session<'_>,
        goal: u64,
        flight: &mut Flight<'_, '_>,
    ) -> Result<(), Failure> {
        let mut patience = Patience::new(session.plan.timeout);
        loop {
            self.group.progress()?;
            if self.signals() >= goal {
                return Ok(());
            }
            flight.collect()?;
            patience.idle(session.link, || format!("in a round trip, {}", flight.state()))?;
        }
    }

    /// Makes progress until the other end has sent a message: its requests may need this end.
    pub(in crate::perf) fn attend(&self, session: &mut Session<'_>) -> Result<(), Failure> {
        let mut patience = Patience::new(session.link.limit());
        while !session.link.has_message() {
            self.group.progress()?;
            patience.idle(session.link, || "this end has finished its round".into())?;
        }
        Ok(())
    }
}
