//! Which failures cost a connection a rail, and which cost the connection. How it gives a rail up.

use std::time::{Duration, Instant};

use crate::error::{Error, Fast, wc_status};
use crate::proto::{Message, rails};
use crate::stats::Reason;
use crate::transport::comm::Comm;
use crate::transport::rail::Rail;
use crate::transport::send_queue::NotPosted;

/// How long the peer may take to answer in an episode. Its process may be stopped meanwhile.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Returns whether another rail may carry what failed so. The other failures are mistakes: they
/// would happen on any rail.
fn is_fault_of_a_rail(error: &Error) -> bool {
    match error {
        // A port that is down fails requests with almost any status.
        Error::Completion(c) => !wc_status(c.status).is_mistake || c.port.is_some(),
        Error::Verbs { .. } => true,
        _ => false,
    }
}

impl Comm {
    /// Returns the rails that are not given up.
    pub(crate) fn living(&self) -> u8 {
        self.layout.all_rails() & !self.failures.dead
    }

    /// Returns the rails on drained ports.
    pub(crate) fn drained(&self) -> u8 {
        self.rails_that(|rail| rail.nic.meter().scale() == 0)
    }

    /// Returns the mask of the rails that `fits` accepts.
    fn rails_that(&self, fits: impl Fn(&Rail) -> bool) -> u8 {
        let fitting = self.rails.iter().enumerate().filter(|(_, rail)| fits(rail));
        fitting.fold(0, |mask, (i, _)| mask | 1 << i)
    }

    /// Returns the living rails that data is to use: those that are not `drained`, or all if there is
    /// no other.
    pub(crate) fn undrained(&self, drained: u8) -> u8 {
        let living = self.living();
        if living & !drained != 0 || living == 0 {
            return living & !drained;
        }
        let names: Vec<_> = rails(living).map(|rail| self.rails[rail].nic.name()).collect();
        if self.rails[living.trailing_zeros() as usize].nic.meter().is_ignored_first() {
            let (peer, names) = (self.peer.name(), names.join(", "));
            tracing::warn!(
                target: "net",
                "{names} carries data although it is drained: the connection with {peer} has no other rail"
            );
        }
        living
    }

    /// Handles the failure of a rail, with all its stripes. The next call gives it up.
    ///
    /// # Errors
    /// `error`, if it is not a fault of the rail, if the comm does not go on without one, or if no
    /// other rail is left and the comm does not wait for one.
    #[cold]
    pub(crate) fn rail_failed(&mut self, rail: usize, error: impl Into<Box<Error>>) -> Fast<()> {
        self.rails_failed(1 << rail, error.into())
    }

    /// Handles work requests that were not posted on a rail. If they cost the comm no more than the
    /// rail, they count as posted: they are lost with it.
    #[cold]
    pub(crate) fn not_posted(&mut self, rail: usize, why: NotPosted) -> Fast<()> {
        self.rail_failed(rail, why.of_rail())
    }

    /// Handles a failed call of the adapter's library for a queue of these rails. If they cost the
    /// comm no more than the rails, the request of the call counts as posted: it is lost with them.
    #[cold]
    pub(crate) fn rails_failed(&mut self, which: u8, error: Box<Error>) -> Fast<()> {
        let failed = self.with_stripes(which);
        if failed & !self.failures.noticed() == 0 {
            return Ok(());
        }
        let is_last = self.living() & !(self.failures.new | failed) == 0;
        let gives_up = is_last && self.failures.wait.is_zero();
        if !self.failures.enabled || !is_fault_of_a_rail(&error) || gives_up {
            return Err(error);
        }
        self.failures.new |= failed;
        self.report_failure(failed, &error.to_string());
        self.failures.first.get_or_insert(*error);
        self.mark();
        Ok(())
    }

    /// Returns the rails that join the same two ports as this one.
    pub(crate) fn stripes_of(&self, rail: usize) -> u8 {
        self.rails_that(|other| other.joins_the_ports_of(&self.rails[rail]))
    }

    /// Returns these rails and all that join the same two ports as one of them.
    fn with_stripes(&self, which: u8) -> u8 {
        rails(which).fold(0, |all, rail| all | self.stripes_of(rail))
    }

    /// Reports the failure of rails to the process: its other connections over the same port or
    /// route give theirs up, too, and one line is logged.
    fn report_failure(&self, failed: u8, why: &str) {
        let mut rest = failed;
        while rest != 0 {
            let rail = rest.trailing_zeros() as usize;
            self.watch.rail_failed(rail, Reason::Completion, why);
            rest &= !(1 << rail | self.stripes_of(rail));
        }
    }

    /// Returns the rails that are to be given up since the last call.
    pub(crate) fn take_failed(&mut self) -> u8 {
        std::mem::take(&mut self.failures.new) | self.watch.take_condemned()
    }

    /// Reports the rails that the peer has given up, and this end has not.
    pub(crate) fn given_up_by_the_peer(&mut self, which: u8) {
        let new = which & !self.failures.noticed();
        if new != 0 {
            self.watch.given_up_by_the_peer(self.with_stripes(new), "the peer has given it up");
        }
    }

    /// Moves the queue pairs of rails to ERR, before they are polled for the last time and
    /// [given up](Self::give_up).
    pub(crate) fn stop_rails(&mut self, which: u8) {
        self.failures.dead |= which;
        self.failback.drop_attempt();
        rails(which).for_each(|rail| self.rails[rail].fail());
    }

    /// Destroys everything that the comm has on these rails: no packet of theirs reads or writes
    /// memory any more.
    ///
    /// # Errors
    /// No rail is left, and the comm does not wait for one. The error is that of the first failure.
    pub(crate) fn give_up(&mut self, which: u8) -> Fast<()> {
        self.pings &= !which;
        for rail in rails(which) {
            let in_flight = self.rails[rail].give_up();
            self.stats.completed(rail, in_flight);
            self.stats.rail_missing(rail, Some(&self.watch.cause(rail).unwrap_or_default()));
            self.watch.set_rail(rail, None);
        }
        self.queues_changed();
        // NCCL's profiler gets no event for parts that change their rail.
        if let Some(profiler) = &mut self.profiler {
            profiler.stop_all();
            profiler.keep(!which);
        }
        if self.living() == 0 && self.failures.none_since.is_none() {
            self.failures.none_since = Some(Instant::now());
            let (peer, s) = (self.peer.name(), self.failures.wait.as_secs());
            tracing::info!(
                target: "net",
                "the connection with {peer} has no rail left; it waits up to {s} s for one to come back (MPIB_FAILOVER_WAIT)"
            );
        }
        self.check_rails()
    }

    /// Returns an error if the comm has been without a rail for too long: that of the first failure.
    pub(crate) fn check_rails(&mut self) -> Fast<()> {
        let wait = self.failures.wait;
        if self.failures.none_since.is_none_or(|since| since.elapsed() < wait) {
            return Ok(());
        }
        let none = || {
            let cause = (0..self.rails.len()).find_map(|rail| self.watch.cause(rail)).unwrap_or_default();
            Error::Peer(format!("no rail of the connection with {} works: {cause}", self.peer.name()))
        };
        Err(self.failures.first.take().unwrap_or_else(none).into())
    }

    /// Adds the first failure of a rail to an error: a peer that has ended fails its rails, too.
    pub(crate) fn after_failures(&self, e: Error) -> Error {
        match &self.failures.first {
            Some(first) => Error::Peer(format!("{e}; the first failure: {first}")),
            None => e,
        }
    }

    /// Returns an error unless the comm goes on without a failed rail, as the peer expects.
    #[cold]
    pub(crate) fn needs_failover(&self, message: &str) -> Fast<()> {
        if self.failures.enabled {
            return Ok(());
        }
        let peer = self.peer.name();
        let what =
            format!("{peer} sent {message} since a rail failed there, and MPIB_FAILOVER=0 is set here");
        Err(Error::Peer(what).into())
    }

    /// Returns the error for a message that this end does not expect.
    #[cold]
    pub(crate) fn unexpected(&self, message: &Message) -> Box<Error> {
        Error::Protocol(format!("{} sent {} on an established connection", self.peer.name(), message.name()))
            .into()
    }

    /// Returns an error if the peer has not answered in an episode for too long.
    pub(crate) fn check_answer(&mut self) -> Fast<()> {
        match self.answer_due {
            Some(since) if since.elapsed() >= ANSWER_LIMIT => {
                let (peer, s) = (self.peer.name(), ANSWER_LIMIT.as_secs());
                let what = format!("{peer} did not answer within {s} s after a rail failed");
                Err(self.after_failures(Error::Peer(what)).into())
            }
            _ => Ok(()),
        }
    }
}
