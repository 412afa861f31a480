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

    /// Handles what the comm is marked for.
    fn look_closer(&mut self) -> Fast<()>;

    /// Handles one successful completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()>;

    /// Polls every CQ until it is empty, or until [`BATCHES`].
    fn poll(&mut self) -> Fast<()> {
        for queue in 0..self.comm().queues.all.len() {
            for _ in 0..BATCHES {
                if !self.poll_queue(queue)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Polls one batch from a CQ. Returns whether anything has completed.
    #[inline(never)]
    fn poll_queue(&mut self, queue: usize) -> Fast<bool> {
        let mut batch = Batch::new();
        let polled = &self.comm().queues.all[queue];
        let completions = polled.cq.poll(&mut batch)?;
        if completions.is_empty() {
            return Ok(false);
        }
        match polled.one_rail() {
            Some(rail) => self.handle(rail, completions)?,
            None => self.handle_shared(queue, completions)?,
        }
        Ok(true)
    }

    /// Handles completions of a CQ that several rails share. Those of queue pairs that the
    /// connection has not kept are ignored.
    #[inline(never)]
    fn handle_shared(&mut self, queue: usize, completions: &[Completion]) -> Fast<()> {
        for completion in completions {
            if let Some(rail) = self.comm().queues.all[queue].rail_of(completion.qpn()) {
                self.handle(rail, std::slice::from_ref(completion))?;
            }
        }
        Ok(())
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
        let awaited = self.awaited(request);
        let (queues, mut queue) = (self.comm().queues.all.len(), self.comm().next_queue);
        let (mut any, mut polled) = (false, 0);
        for _ in 0..queues {
            let next = if queue + 1 < queues { queue + 1 } else { 0 };
            if awaited & self.comm().queues.all[queue].rails != 0 {
                let found = self.poll_queue(queue)?;
                any |= found;
                polled += 1;
                // A CQ that had something is likely to have more at the next call.
                self.comm().next_queue = if found { queue } else { next };
                if polled == POLLED_QUEUES {
                    break;
                }
            }
            queue = next;
        }
        Ok(any)
    }
}

/// Makes progress for a request that is not completed.
#[inline(always)]
pub(crate) fn progress<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    let comm = state.comm();
    let (false, Some(only)) = (comm.is_marked(), &comm.queues.only) else {
        return progress_unusual(state, request);
    };
    let mut batch = Batch::new();
    match only.poll(&mut batch) {
        // Most polls end here.
        Ok([]) => comm.found_nothing(S::outstanding(request)),
        // The next call polls what did not fit into the batch.
        Ok(completions) => state.handle(0, completions).map_err(|e| state.comm().fail(e)),
        Err(e) => Err(comm.fail(e)),
    }
}

/// Like [`progress`], for a comm of several rails or a shared CQ, or one that needs a closer look.
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
    state.look_closer()?;
    match S::outstanding(request) {
        Some(outstanding) => state.comm().check_peer(outstanding),
        None => Ok(()),
    }
}
