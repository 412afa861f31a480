//! Parts that an immediate of another rail has announced, and that do not come.
//!
//! A rail that loses data is noticed by its sender. This is for a peer that breaks the protocol: it
//! announces a part and never sends it.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Fast};
use crate::housekeeping::TICK;
use crate::proto::{SLOTS, Sequence, rails};
use crate::transport::progress::Progress;
use crate::transport::recv::RecvState;

/// The oldest group of which a part has arrived and another one has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Incomplete {
    seq: Sequence,
    got: u8,
    missing: u8,
}

/// How long the oldest incomplete group has been as it is.
#[derive(Debug)]
pub(super) struct Promises {
    limit: Duration,
    oldest: Option<Incomplete>,
    waited: Duration,
    last: Instant,
}

impl Promises {
    /// The limit is `MPIB_PEER_TIMEOUT_MS`, and not less than the time in which adapters give up.
    pub(super) fn new(config: &Config) -> Self {
        let limit = config.peer_timeout.max(config.retry_time().longest);
        Self { limit, oldest: None, waited: Duration::ZERO, last: Instant::now() }
    }

    /// Takes in what is incomplete now. Returns whether it has not changed for the limit.
    fn add(&mut self, now: Instant, oldest: Option<Incomplete>) -> bool {
        // A pause of this process does not count.
        let passed = now.saturating_duration_since(self.last).min(2 * TICK);
        self.waited = if oldest == self.oldest { self.waited + passed } else { Duration::ZERO };
        (self.oldest, self.last) = (oldest, now);
        oldest.is_some() && self.waited >= self.limit
    }
}

impl RecvState {
    /// Returns an error if the peer has announced a part of a group and has not sent it for too
    /// long. Called at each pass of housekeeping.
    pub(super) fn check_promises(&mut self) -> Fast<()> {
        let found = self.oldest_incomplete();
        if !self.promises.add(Instant::now(), found) {
            return Ok(());
        }
        // NCCL may have paused: the part may be in a queue that nobody has polled.
        self.poll()?;
        match self.oldest_incomplete() {
            Some(still) if Some(still) == found => Err(self.broken_promise(still)),
            _ => Ok(()),
        }
    }

    fn oldest_incomplete(&self) -> Option<Incomplete> {
        if self.outstanding == 0 {
            return None;
        }
        let incomplete = |seq: Sequence| {
            let (got, missing) = self.slots[usize::from(seq.slot()) % SLOTS].parts();
            (self.is_outstanding(seq) && got != 0 && missing != 0).then_some(Incomplete { seq, got, missing })
        };
        self.cts.next().predecessors().filter_map(incomplete).last()
    }

    #[cold]
    fn broken_promise(&self, Incomplete { seq, got, missing }: Incomplete) -> Box<Error> {
        let named = |mask: u8| {
            let name = |rail: usize| format!("rail {rail} ({})", self.comm.rails[rail].nic.name());
            rails(mask).map(name).collect::<Vec<_>>().join(", ")
        };
        let what = format!(
            "{} sent a part of group {} on {}, which announces a part on {} that has not come for {:.1} s \
             (MPIB_PEER_TIMEOUT_MS, or the time in which adapters give up, if that is longer)",
            self.comm.peer.name(),
            seq.number(),
            named(got),
            named(missing),
            self.promises.limit.as_secs_f64(),
        );
        Error::Protocol(what).into()
    }
}
