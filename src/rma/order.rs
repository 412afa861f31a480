//! Which signal of a rank is due.
//!
//! NCCL lets a weak signal pass earlier puts, and a strong one pass those of other contexts. Here a
//! signal passes no earlier put of its rank: each promise of the interface follows from that, and
//! so does the usual expectation that a put which is reported as complete is visible before what its
//! origin signals later.

use std::collections::VecDeque;

use mpib_proto::Signal;

/// The puts of one rank that are not visible yet or whose signal is not applied, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Order {
    puts: VecDeque<Put>,
    /// The number of the first put.
    first: u64,
    /// How many puts, from the first on, wait for the signal that is being applied.
    applying: usize,
}

/// The number of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Put {
    is_visible: bool,
    signal: Option<Signal>,
    /// The request that is done with the put.
    request: Option<u32>,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// A put is over. This request is done.
    Done(u32),
    /// The signal is to be applied; [`Order::applied`] follows.
    Apply(Signal),
}

impl Order {
    /// Adds a put.
    pub(super) fn push(&mut self, signal: Option<Signal>, request: Option<u32>) -> Ticket {
        self.puts.push_back(Put { is_visible: false, signal, request });
        Ticket(self.first + self.puts.len() as u64 - 1)
    }

    /// Removes the put that was added last.
    pub(super) fn take_back(&mut self) {
        self.puts.pop_back();
    }

    /// Notes that the data of a put is visible, or that it has none.
    pub(super) fn is_visible(&mut self, Ticket(number): Ticket) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(put) = index.and_then(|index| self.puts.get_mut(index)) {
            put.is_visible = true;
        }
    }

    /// Returns what is due. Signals to one word that are due together are one.
    pub(super) fn next(&mut self) -> Option<Due> {
        if self.applying > 0 {
            return None;
        }
        let first = self.puts.front().filter(|put| put.is_visible)?;
        let Some(mut sum) = first.signal else {
            let over = self.pop();
            return over.map(Due::Done).or_else(|| self.next());
        };
        let same = |put: &&Put| put.is_visible && put.signal.is_none_or(|s| at(&s) == at(&sum));
        self.applying = self.puts.iter().take_while(same).count();
        let values = self.puts.iter().take(self.applying).filter_map(|put| Some(put.signal?.value));
        sum.value = values.fold(0, u64::wrapping_add);
        Some(Due::Apply(sum))
    }

    /// Notes that the signal is applied.
    pub(super) fn applied(&mut self) {
        let over = std::mem::take(&mut self.applying);
        self.puts.iter_mut().take(over).for_each(|put| put.signal = None);
    }

    /// Removes the first put, and returns its request.
    fn pop(&mut self) -> Option<u32> {
        self.first += 1;
        self.puts.pop_front()?.request
    }
}

/// Returns the word of a signal.
fn at(signal: &Signal) -> (u32, u64) {
    (signal.window, signal.offset)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const WORDS: u64 = 2;

    /// The puts that come: to each word a signal, and one put without.
    fn script() -> [Option<Signal>; 5] {
        let to = |word: u64, value| Some(Signal { window: 0, offset: 8 * word, value });
        [to(0, 1), None, to(0, 2), to(1, 4), to(0, 8)]
    }

    /// A state of the world around the machine.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct World {
        order: Order,
        tickets: Vec<Ticket>,
        visible: Vec<bool>,
        applying: Option<(u64, u64)>,
        words: [u64; WORDS as usize],
        done: Vec<u32>,
    }

    impl World {
        /// All that may happen next.
        fn successors(&self) -> Vec<Self> {
            let mut all = Vec::new();
            let mut add = |change: &dyn Fn(&mut Self)| {
                let mut next = self.clone();
                change(&mut next);
                next.check();
                all.push(next);
            };
            if let Some(signal) = script().get(self.tickets.len()) {
                add(&|next| {
                    let request = next.tickets.len() as u32;
                    let ticket = next.order.push(*signal, Some(request));
                    next.tickets.push(ticket);
                    next.visible.push(false);
                });
            }
            for (put, _) in self.visible.iter().enumerate().filter(|(_, visible)| !**visible) {
                add(&|next| {
                    next.visible[put] = true;
                    next.order.is_visible(next.tickets[put]);
                });
            }
            match self.applying {
                Some((word, value)) => add(&|next| {
                    next.words[word as usize] += value;
                    next.applying = None;
                    next.order.applied();
                }),
                None => add(&|next| match next.order.next() {
                    Some(Due::Done(request)) => next.done.push(request),
                    Some(Due::Apply(signal)) => next.applying = Some((signal.offset / 8, signal.value)),
                    None => {}
                }),
            }
            all
        }

        /// Each bit of a word is the signal of one put, and proves that put and all before it.
        fn check(&self) {
            for (put, signal) in script().iter().enumerate() {
                let Some(signal) = signal else { continue };
                let word = self.words[(signal.offset / 8) as usize];
                if word & signal.value != 0 {
                    assert!(self.visible[..=put].iter().all(|visible| *visible), "{self:?}");
                }
            }
            assert!(self.words[0] <= 11 && self.words[1] <= 4, "a signal was applied twice: {self:?}");
            assert!(self.done.iter().copied().eq(0..self.done.len() as u32), "{self:?}");
        }
    }

    #[test]
    fn a_signal_is_applied_once_and_proves_all_puts_before_it() {
        let first = World {
            order: Order::default(),
            tickets: Vec::new(),
            visible: Vec::new(),
            applying: None,
            words: [0; WORDS as usize],
            done: Vec::new(),
        };
        let (mut seen, mut left) = (HashSet::from([first.clone()]), vec![first]);
        let mut ends = 0;
        while let Some(world) = left.pop() {
            let mut fresh = 0;
            for next in world.successors() {
                if seen.insert(next.clone()) {
                    fresh += 1;
                    left.push(next);
                }
            }
            if fresh == 0 && world.done.len() == script().len() {
                assert_eq!(world.words, [11, 4]);
                assert!(world.order.puts.is_empty());
                ends += 1;
            }
        }
        assert!(ends > 0, "no way through {} states ends", seen.len());
    }
}
