//! The CQs of a connection. The stripes of a rail share a CQ, and so do rails on one adapter. Then
//! the number of a completion's queue pair names the rail.

use std::mem;
use std::sync::Arc;

use crate::transport::rail::Rail;
use crate::verbs::Cq;

/// The CQs of a connection, each once. A new value replaces this one if the rails change.
#[derive(Debug)]
pub(crate) struct CompletionQueues {
    /// The CQ of a connection whose only rail shares it with no other route.
    pub(crate) only: Option<Arc<Cq>>,
    pairs: Pairs<CompletionQueue>,
}

/// The CQs in pairs. A call of `test` polls one pair.
#[derive(Debug)]
struct Pairs<T> {
    current: Pair<T>,
    /// The others, least recently polled first.
    others: Vec<Pair<T>>,
}

/// The second one of the last pair may be missing.
type Pair<T> = [Option<T>; 2];

/// One CQ and the rails that use it.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) cq: Arc<Cq>,
    /// The mask of these rails.
    pub(crate) rails: u8,
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
        Self { only, pairs: Pairs::new(all) }
    }

    /// Chooses the CQs that a call polls for a request that waits for these rails.
    #[inline(always)]
    pub(crate) fn choose(&mut self, rails: u8) {
        if !self.pairs.others.is_empty() {
            self.pairs.choose(|queue| queue.rails & rails != 0);
        }
    }

    /// Returns one more than the highest index of a CQ.
    pub(crate) fn end(&self) -> usize {
        self.pairs.end()
    }

    /// Returns a CQ by its index. The chosen ones have the indices 0 and 1. If their number is odd,
    /// one index below the [`end`](Self::end) has none, and not always the last one.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&CompletionQueue> {
        self.pairs.get(index)
    }
}

impl<T> Pairs<T> {
    fn new(all: Vec<T>) -> Self {
        let mut all = all.into_iter();
        let current = [all.next(), all.next()];
        let mut others = Vec::with_capacity(all.len().div_ceil(2));
        while let Some(first) = all.next() {
            others.push([Some(first), all.next()]);
        }
        Self { current, others }
    }

    fn end(&self) -> usize {
        2 + 2 * self.others.len()
    }

    #[inline(always)]
    fn get(&self, index: usize) -> Option<&T> {
        match index {
            0 | 1 => self.current[index].as_ref(),
            _ => self.others.get(index / 2 - 1)?[index % 2].as_ref(),
        }
    }

    /// Makes the least recently polled pair with a CQ that is `wanted` the current one.
    #[inline(never)]
    fn choose(&mut self, wanted: impl Fn(&T) -> bool) {
        let next = self.others.iter().position(|pair| pair.iter().flatten().any(&wanted));
        // If no other pair has one, the current one is the least recently polled.
        if let Some(next) = next {
            let next = self.others.remove(next);
            self.others.push(mem::replace(&mut self.current, next));
        }
    }
}

impl CompletionQueue {
    /// Returns the CQ of rail `i`, and of others among `rails`.
    fn new(i: usize, cq: &Arc<Cq>, rails: &[Rail]) -> Self {
        let (mut mask, mut numbers) = (0, Vec::new());
        let has_it = |rail: &Rail| rail.cq.as_ref().is_some_and(|other| other.id() == cq.id());
        for (i, other) in rails.iter().enumerate().filter(|(_, other)| has_it(other)) {
            mask |= 1 << i;
            numbers.extend(other.queue_pairs().map(|queue| (queue.number(), i as u32)));
        }
        let owners = match rails[i].shares_cq {
            true => Owners::ByNumber(Numbers::new(&numbers)),
            false => Owners::One(i),
        };
        Self { cq: Arc::clone(cq), rails: mask, owners }
    }

    /// Returns the rail if all completions belong to it.
    #[inline]
    pub(crate) fn one_rail(&self) -> Option<usize> {
        match self.owners {
            Owners::One(rail) => Some(rail),
            Owners::ByNumber(_) => None,
        }
    }

    /// Returns the rail of the queue pair with this number. `None` if the connection has not kept
    /// the queue pair: some providers keep completions of a queue pair that is destroyed.
    #[inline(always)]
    pub(crate) fn rail_of(&self, qpn: u32) -> Option<usize> {
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
        let pairs = || Pairs::new(vec!['a', 'b', 'c', 'd', 'e']);
        let (all, first) = ("abcde", "a");
        let choose = |pairs: &mut Pairs<char>, wanted: &str| {
            pairs.choose(|queue| wanted.contains(*queue));
            let mut indexed: Vec<_> = (0..pairs.end()).filter_map(|index| pairs.get(index)).collect();
            indexed.sort_unstable();
            assert!(indexed.into_iter().eq(&['a', 'b', 'c', 'd', 'e']), "each has an index");
            pairs.current.into_iter().flatten().collect::<String>()
        };
        let mut alone = pairs();
        assert_eq!([0; 4].map(|_| choose(&mut alone, all)), ["cd", "e", "ab", "cd"]);
        let mut mixed = pairs();
        let chosen = [0; 3].map(|_| [choose(&mut mixed, first), choose(&mut mixed, all)]);
        assert_eq!(chosen, [["ab", "cd"], ["ab", "e"], ["ab", "cd"]], "one request delays no other");
        let mut two = Pairs::new(vec!['a', 'b']);
        two.choose(|queue| *queue == 'b');
        assert_eq!((two.get(0), two.get(1), two.end()), (Some(&'a'), Some(&'b'), 2));
    }
}
