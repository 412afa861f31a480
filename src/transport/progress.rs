//! How `test` makes progress: it polls the CQs that its request waits for, and handles what has
//! completed.

use std::sync::Arc;

use mpib_proto::RailSet;

use crate::error::Fast;
use crate::transport::comm::Comm;
use crate::transport::rail::Rail;
use crate::verbs::{Batch, Completion, Cq};

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

    /// Returns the rails whose completions a request waits for.
    fn awaited(&self, request: Self::Request) -> RailSet;

    /// Handles failed rails and messages of the peer.
    fn handle_news(&mut self) -> Fast<()>;

    /// Returns whether this end needs the peer no more to learn what has become of the data in flight.
    /// The end of the peer is no news until then.
    fn settles_alone(&self) -> bool {
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
        for index in 0..self.comm().queues.all.len() {
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
        Err(e) => state.comm().rails_failed(RailSet::of(0), e).map_err(|e| state.comm().fail(e)),
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
            Some(queue) if !(queue.rails & awaited).is_empty() => queue,
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
        Some(outstanding) if !state.settles_alone() => state.comm().check_peer(outstanding),
        _ => Ok(()),
    }
}

/// The CQs of a connection, each once. A new value replaces this one if the rails change.
#[derive(Debug)]
pub(crate) struct CompletionQueues {
    /// The CQ of a connection whose only rail shares it with no other route.
    pub(crate) only: Option<Arc<Cq>>,
    /// Those that the present call of `test` polls come first, and then the least recently polled.
    all: Vec<CompletionQueue>,
    /// How many of them the present call polls, at most two.
    chosen: usize,
}

/// One CQ and the rails that use it.
#[derive(Debug)]
struct CompletionQueue {
    cq: Arc<Cq>,
    rails: RailSet,
    owners: Owners,
}

/// Where the rail of a completion comes from.
#[derive(Debug)]
enum Owners {
    /// All completions belong to this rail.
    One(usize),
    /// The number of the queue pair names the rail.
    ByNumber(Numbers),
}

/// The rails of queue pairs by their numbers: a hash table with linear probing. At most half of its
/// places are used. The numbers of a connection's queue pairs mostly follow each other, and then
/// each is at its first place.
#[derive(Debug)]
struct Numbers {
    /// The number of a queue pair and its rail. The length is a power of two.
    places: Box<[(u32, u32)]>,
}

/// In place of a queue pair's number, which has 24 bits.
const NO_NUMBER: u32 = u32::MAX;

impl CompletionQueues {
    pub(crate) fn new(rails: &[Rail]) -> Self {
        let mut all: Vec<CompletionQueue> = Vec::with_capacity(rails.len());
        for (i, rail) in rails.iter().enumerate() {
            // A rail that is given up has none.
            let Some(cq) = &rail.cq else { continue };
            if !all.iter().any(|queue| queue.cq.id() == cq.id()) {
                all.push(CompletionQueue::new(i, cq, rails));
            }
        }
        let only = match rails {
            [Rail { cq, shares_cq: false, .. }] => cq.clone(),
            _ => None,
        };
        Self { only, all, chosen: 0 }
    }

    /// Chooses the CQs that a call polls for a request that waits for these rails.
    #[inline(always)]
    fn choose(&mut self, rails: RailSet) {
        if self.all.len() > 2 {
            choose(&mut self.all, &mut self.chosen, |queue| !(queue.rails & rails).is_empty());
        }
    }

    /// Returns a CQ by its index. The chosen ones are the first two.
    #[inline(always)]
    fn get(&self, index: usize) -> Option<&CompletionQueue> {
        self.all.get(index)
    }
}

/// Brings the two least recently polled ones that are `wanted` to the front. Those that were chosen
/// before follow all others.
#[inline(never)]
fn choose<T>(all: &mut [T], chosen: &mut usize, wanted: impl Fn(&T) -> bool) {
    all.rotate_left(std::mem::take(chosen));
    while *chosen < 2
        && let Some(next) = all[*chosen..].iter().position(&wanted)
    {
        all[*chosen..=*chosen + next].rotate_right(1);
        *chosen += 1;
    }
}

impl CompletionQueue {
    /// Returns the CQ of rail `i`, and of others among `rails`.
    fn new(i: usize, cq: &Arc<Cq>, rails: &[Rail]) -> Self {
        let (mut users, mut numbers) = (RailSet::EMPTY, Vec::new());
        let has_it = |rail: &Rail| rail.cq.as_ref().is_some_and(|other| other.id() == cq.id());
        for (i, other) in rails.iter().enumerate().filter(|(_, other)| has_it(other)) {
            users.insert(i);
            numbers.extend(other.queue_pairs().map(|queue| (queue.number(), i as u32)));
        }
        let owners = match rails[i].shares_cq {
            true => Owners::ByNumber(Numbers::new(&numbers)),
            false => Owners::One(i),
        };
        Self { cq: Arc::clone(cq), rails: users, owners }
    }

    /// Returns the rail if all completions belong to it.
    #[inline]
    fn one_rail(&self) -> Option<usize> {
        match self.owners {
            Owners::One(rail) => Some(rail),
            Owners::ByNumber(_) => None,
        }
    }

    /// Returns the rail of the queue pair with this number. `None` if the connection has not kept
    /// the queue pair: some providers keep completions of a queue pair that is destroyed.
    #[inline(always)]
    fn rail_of(&self, qpn: u32) -> Option<usize> {
        match &self.owners {
            Owners::One(rail) => Some(*rail),
            Owners::ByNumber(numbers) => numbers.rail_of(qpn),
        }
    }
}

impl Numbers {
    /// Builds the table of these numbers, each with its rail.
    fn new(numbers: &[(u32, u32)]) -> Self {
        let length = (2 * numbers.len()).next_power_of_two().max(2);
        let mut places = vec![(NO_NUMBER, 0); length].into_boxed_slice();
        for entry in numbers {
            let mut place = entry.0 as usize;
            while places[place % length].0 != NO_NUMBER {
                place += 1;
            }
            places[place % length] = *entry;
        }
        Self { places }
    }

    #[inline(always)]
    fn rail_of(&self, qpn: u32) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut place = qpn as usize & mask;
        // Half of the places are empty, so the search ends.
        loop {
            let (number, rail) = self.places[place];
            if number == qpn {
                return Some(rail as usize);
            }
            if number == NO_NUMBER {
                return None;
            }
            place = (place + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_queue_pair_names_the_rail_of_a_shared_cq() {
        // All but 21 begin at the same place, the last one of the table.
        let numbers = Numbers::new(&[(7, 2), (15, 0), (0xff_ffff, 2), (21, 5)]);
        assert_eq!(numbers.places.len(), 8);
        let found = [7, 15, 0xff_ffff, 21].map(|qpn| numbers.rail_of(qpn));
        assert_eq!(found, [Some(2), Some(0), Some(2), Some(5)]);
        let destroyed = [6, 8, 23, 0, 5, 0xff_fff7].map(|qpn| numbers.rail_of(qpn));
        assert_eq!(destroyed, [None; 6], "others are destroyed");
        assert_eq!(Numbers::new(&[]).rail_of(7), None);
    }

    #[test]
    fn each_request_polls_all_of_its_cqs() {
        let begin = || (vec!['a', 'b', 'c', 'd', 'e'], 0);
        let poll = |(all, chosen): &mut (Vec<char>, usize), wanted: &str| {
            choose(all, chosen, |queue| wanted.contains(*queue));
            all[..*chosen].iter().collect::<String>()
        };
        let mut alone = begin();
        assert_eq!([0; 4].map(|_| poll(&mut alone, "abcde")), ["ab", "cd", "ea", "bc"]);
        let mut mixed = begin();
        let chosen = [0; 3].map(|_| [poll(&mut mixed, "a"), poll(&mut mixed, "abcde")]);
        assert_eq!(chosen, [["a", "bc"], ["a", "de"], ["a", "bc"]], "one request delays no other");
        assert_eq!(poll(&mut mixed, ""), "", "a send that is not posted waits for none");
    }
}
