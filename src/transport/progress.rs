//! How `test` makes progress: it polls the queues that its request waits for, and handles what has
//! completed.

use crate::error::Fast;
use crate::transport::comm::Comm;
use crate::verbs::{Batch, Completion};

/// Batches of completions that [`poll`](Progress::poll) polls from one CQ at most. The limit keeps a
/// call short, however many completions there are.
const BATCHES: usize = 32;

/// CQs that one call polls at most. A request that waits for more polls them in rotation.
const POLLED_QUEUES: usize = 2;

/// The state of one end, as `test` drives it.
pub(crate) trait Progress {
    /// Identifies a request.
    type Request: Copy;

    /// Returns the part that both ends have.
    fn comm(&mut self) -> &mut Comm;

    /// Names what the peer still has to do for a request; `None` for a request without the peer.
    fn outstanding(request: Self::Request) -> Option<&'static str>;

    /// Returns whether a request is in flight.
    fn pending(&self, request: Self::Request) -> bool;

    /// Returns the mask of the rails whose completions a request waits for.
    fn awaited(&self, request: Self::Request) -> u8;

    /// Handles one successful completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()>;

    /// Polls the CQ of every rail until it is empty, or until [`BATCHES`].
    fn poll(&mut self) -> Fast<()> {
        for rail in 0..self.comm().rails.len() {
            for _ in 0..BATCHES {
                if !self.poll_rail(rail)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Polls one batch from the CQ of a rail. Returns whether anything has completed.
    #[inline(never)]
    fn poll_rail(&mut self, rail: usize) -> Fast<bool> {
        let mut batch = Batch::new();
        let completions = self.comm().rails[rail].cq.poll(&mut batch)?;
        if completions.is_empty() {
            return Ok(false);
        }
        self.handle(rail, completions)?;
        Ok(true)
    }

    /// Handles completions of a rail.
    #[inline(always)]
    fn handle(&mut self, rail: usize, completions: &[Completion]) -> Fast<()> {
        for completion in completions {
            if completion.status() != 0 {
                self.comm().failed_completion(rail, completion)?;
                continue;
            }
            self.completed(rail, completion)?;
        }
        Ok(())
    }

    /// Polls the CQs that a request waits for, as far as one call may. Returns whether anything has
    /// completed.
    fn poll_awaited(&mut self, request: Self::Request) -> Fast<bool> {
        let (mut any, mut polled) = (false, 0);
        let (awaited, rails, first) = (self.awaited(request), self.comm().rails.len(), self.comm().next_rail);
        for rail in (first..rails).chain(0..first) {
            if awaited >> rail & 1 == 0 {
                continue;
            }
            let found = self.poll_rail(rail)?;
            any |= found;
            polled += 1;
            // A CQ that had something is likely to have more at the next call.
            let next = if found { rail } else { (rail + 1) % rails };
            self.comm().next_rail = next;
            if polled == POLLED_QUEUES {
                break;
            }
        }
        Ok(any)
    }
}

/// Makes progress for a request that is not completed.
#[inline(always)]
pub(crate) fn progress<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    let comm = state.comm();
    let (false, [only]) = (comm.is_marked(), &*comm.rails) else {
        return progress_unusual(state, request);
    };
    let mut batch = Batch::new();
    match only.cq.poll(&mut batch) {
        // Most polls end here.
        Ok([]) => comm.found_nothing(S::outstanding(request)),
        // The next call polls what did not fit into the batch.
        Ok(completions) => state.handle(0, completions).map_err(|e| state.comm().fail(e)),
        Err(e) => Err(comm.fail(e)),
    }
}

/// Like [`progress`], for a comm of several rails, or one that needs a closer look.
#[inline(never)]
fn progress_unusual<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    if state.comm().is_marked() {
        return progress_marked(state, request);
    }
    match state.poll_awaited(request) {
        Ok(true) => Ok(()),
        Ok(false) => state.comm().found_nothing(S::outstanding(request)),
        Err(e) => Err(state.comm().fail(e)),
    }
}

/// Like [`progress`], for a comm that has failed or that an event may have ended.
#[cold]
#[inline(never)]
fn progress_marked<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    state.comm().not_failed()?;
    let polled = state.poll();
    state.comm().fail_on_error(polled)?;
    if !state.pending(request) {
        return Ok(());
    }
    // A failed completion names the cause; the event that comes with it does not. So the completion
    // is checked first.
    state.comm().check_usable()?;
    match S::outstanding(request) {
        Some(outstanding) => state.comm().check_peer(outstanding),
        None => Ok(()),
    }
}
