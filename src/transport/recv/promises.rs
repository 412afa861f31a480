//! Parts that an immediate of another rail has announced, and that do not come.
//!
//! A rail that loses data is noticed by its sender. This is for a peer that breaks the protocol: it
//! announces a part and never sends it.

use std::time::Instant;

use crate::error::{Error, Fast};
use crate::proto::{SLOTS, Sequence, rails};
use crate::transport::progress::Progress;
use crate::transport::recv::RecvState;
use crate::transport::recv::incomplete::Incomplete;

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
            if got == 0 || !self.is_outstanding(seq) {
                return None;
            }
            // What failed rails were to bring is agreed upon first. A stopped peer takes long for that.
            let missing = rails(missing).filter(|rail| self.comm.watch.cause(*rail).is_none());
            let missing = missing.fold(0, |mask, rail| mask | 1 << rail);
            (missing != 0).then_some(Incomplete { seq, got, missing })
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
