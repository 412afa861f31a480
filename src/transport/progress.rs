//! How `test` makes progress: it polls the queues that its request waits for, and handles what has
//! completed.

use crate::error::Fast;
use crate::transport::comm::Comm;
use crate::transport::queues::CompletionQueue;
use crate::verbs::{Batch, Completion};

/// Batches of completions that [`poll`](Progress::poll) polls from one CQ at most. The limit keeps a
/// call short, however many completions there are.
const BATCHES: usize = 32;

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

    /// Returns whether a call that has handled completions polls on for a request.
    fn polls_on(&self, request: Self::Request) -> bool;

    /// Returns the mask of the rails whose completions a request waits for.
    fn awaited(&self, request: Self::Request) -> u8;

    /// Handles failed rails and messages of the peer.
    fn handle_news(&mut self) -> Fast<()>;

    /// Returns whether it is about to be known whether data is lost for good. The end of the peer is
    /// no news until then.
    fn may_have_lost(&self) -> bool {
        false
    }

    /// Returns whether this end waits for an episode, a rail or flushes: the comm then stays marked.
    fn is_busy(&mut self) -> bool;

    /// Handles one successful completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()>;

    /// Handles what the comm is marked for: failed rails and messages of the peer.
    #[cold]
    #[inline(never)]
    fn look_closer(&mut self) -> Fast<()> {
        self.comm().check_usable()?;
        self.look_while_idle()?;
        let refused = self.comm().peer.check_refused();
        self.comm().fail_on_error(refused)
    }

    /// Polls every CQ, for a comm that is marked.
    #[cold]
    fn poll_marked(&mut self) -> Fast<()> {
        self.comm().not_failed()?;
        let polled = self.poll();
        self.comm().fail_on_error(polled)
    }

    /// Like [`look_closer`](Self::look_closer), for housekeeping, while NCCL makes no call. The end of
    /// the connection is left to NCCL's next call.
    #[cold]
    fn look_while_idle(&mut self) -> Fast<()> {
        self.comm().unmark();
        let handled = self.handle_news();
        self.comm().fail_on_error(handled)?;
        let driven = self.comm().drive_mailbox();
        self.comm().fail_on_error(driven)?;
        let busy = self.is_busy();
        let comm = self.comm();
        if busy || comm.is_busy() || comm.peer.has_refused() {
            comm.mark();
        }
        Ok(())
    }

    /// Polls every CQ until it is empty, or until [`BATCHES`].
    fn poll(&mut self) -> Fast<()> {
        for index in 0..self.comm().queues.end() {
            for _ in 0..BATCHES {
                if !self.poll_queue(index)? {
                    break;
                }
            }
        }
        self.comm().watch.polled();
        Ok(())
    }

    /// Polls one batch from a CQ. Returns whether anything has completed.
    fn poll_queue(&mut self, index: usize) -> Fast<bool> {
        let mut batch = Batch::new();
        let Some(queue) = self.comm().queues.get(index) else { return Ok(false) };
        let rails = queue.rails;
        match queue.cq.poll(&mut batch) {
            Ok([]) => Ok(false),
            Ok(completions) => self.handle_of(index, completions).map(|()| true),
            Err(e) => self.comm().rails_failed(rails, e).map(|()| false),
        }
    }

    /// Handles completions of one of several CQs, or of a shared CQ.
    #[inline(never)]
    fn handle_of(&mut self, index: usize, completions: &[Completion]) -> Fast<()> {
        match self.comm().queues.get(index).and_then(CompletionQueue::one_rail) {
            Some(rail) => self.handle(rail, completions),
            None => self.handle_shared(index, completions),
        }
    }

    /// Handles completions of a CQ that several rails share. Those of queue pairs that the
    /// connection has not kept are ignored.
    #[inline(never)]
    fn handle_shared(&mut self, index: usize, completions: &[Completion]) -> Fast<()> {
        for completion in completions {
            let queue = self.comm().queues.get(index);
            if let Some(rail) = queue.and_then(|queue| queue.rail_of(completion.qpn())) {
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
}

/// Makes progress for a request that is not completed.
#[inline(always)]
pub(crate) fn progress<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    if state.comm().is_marked() {
        return progress_marked(state, request);
    }
    let mut batch = Batch::new();
    let Some(only) = &state.comm().queues.only else { return progress_several(state, request, &mut batch) };
    match only.poll(&mut batch) {
        // Most polls end here.
        Ok([]) => state.comm().found_nothing(S::outstanding(request)),
        // The next call polls what did not fit into the batch.
        Ok(completions) => state.handle(0, completions).map_err(|e| state.comm().fail(e)),
        Err(e) => state.comm().rails_failed(1, e).map_err(|e| state.comm().fail(e)),
    }
}

/// Like [`progress`], for a comm of several CQs or a shared one. Polls up to two CQs that the request
/// waits for, as long as it [polls on](Progress::polls_on).
#[inline(always)]
fn progress_several<S: Progress>(state: &mut S, request: S::Request, batch: &mut Batch) -> Fast<()> {
    let awaited = state.awaited(request);
    state.comm().queues.choose(awaited);
    let mut any = false;
    for index in [0, 1] {
        let queue = match state.comm().queues.get(index) {
            Some(queue) if queue.rails & awaited != 0 => queue,
            _ => continue,
        };
        match queue.cq.poll(batch) {
            Ok([]) => {}
            Ok(completions) => {
                state.handle_of(index, completions).map_err(|e| state.comm().fail(e))?;
                if !state.polls_on(request) {
                    return Ok(());
                }
                any = true;
            }
            Err(e) => {
                let rails = queue.rails;
                return state.comm().rails_failed(rails, e).map_err(|e| state.comm().fail(e));
            }
        }
    }
    if any { Ok(()) } else { state.comm().found_nothing(S::outstanding(request)) }
}

/// Like [`progress`], for a comm that has failed or that an event may have ended.
#[cold]
#[inline(never)]
fn progress_marked<S: Progress>(state: &mut S, request: S::Request) -> Fast<()> {
    state.poll_marked()?;
    if !state.pending(request) {
        return Ok(());
    }
    // A failed completion names the cause; the event that comes with it does not. So the completion
    // is checked first.
    state.look_closer()?;
    match S::outstanding(request) {
        Some(outstanding) if !state.may_have_lost() => state.comm().check_peer(outstanding),
        _ => Ok(()),
    }
}
