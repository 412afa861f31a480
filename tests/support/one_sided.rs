//! Puts, signals and gets between the ranks of a group, with everything checked on which NCCL relies:
//! a signal is there once for each put, and only after the put and all before it.

use std::ffi::c_int;

use crate::pair::pattern;
use crate::rma::{Group, NOWHERE, OF_SIGNALS, Pending, Window};
use crate::rng::Rng;

/// Puts of a rank to another one that are under way at most.
const AREAS: usize = 6;
/// Bytes of the largest one.
const LARGEST: usize = 200_000;
const SIZES: [usize; 9] = [0, 1, 8, 64, 960, 961, 4096, 65_537, LARGEST];

/// The traffic of a group.
pub struct OneSided<'a> {
    group: &'a Group,
    contexts: c_int,
    sources: Window,
    targets: Window,
    signals: Window,
    /// By rank and target.
    ways: Vec<Vec<Way>>,
    /// What gets read, a pattern on each rank, and where they write.
    fixed: Window,
    fetched: Window,
    /// By rank: the get that is under way, its size, and the rank and place that it reads.
    gets: Vec<Option<(Pending, usize, usize, usize)>>,
    rng: Rng,
}

/// What goes from one rank to another.
#[derive(Default)]
struct Way {
    /// The data of each put whose signal is not seen yet, by area.
    under_way: Vec<Vec<u8>>,
    /// Those that the origin has not completed.
    requests: Vec<(Pending, u64)>,
    begun: u64,
    completed: u64,
    seen: u64,
}

impl<'a> OneSided<'a> {
    /// `kind`: where the windows are.
    pub fn new(group: &'a Group, kind: c_int, contexts: c_int, rng: Rng) -> Self {
        let (ranks, words) = (group.len(), group.len() * AREAS * LARGEST / 8);
        let ways = (0..ranks).map(|_| (0..ranks).map(|_| Way::default()).collect()).collect();
        let fixed = group.window(kind, LARGEST / 8, 0);
        for rank in 0..ranks {
            fixed.write(rank, 0, &pattern(LARGEST, rank as u64));
        }
        Self {
            group,
            contexts,
            fixed,
            fetched: group.window(kind, LARGEST / 8, 0),
            gets: vec![None; ranks],
            sources: group.window(kind, words, 0),
            targets: group.window(kind, words, 0),
            signals: group.window(kind, ranks, OF_SIGNALS),
            ways,
            rng,
        }
    }

    /// Where puts between two ranks are kept in a rank's window.
    fn area(other: usize, put: u64) -> usize {
        (other * AREAS + put as usize % AREAS) * LARGEST
    }

    /// Begins as many puts as fit, up to `puts` of each way in all. Looks at the signals.
    pub fn step(&mut self, puts: u64) {
        for from in 0..self.group.len() {
            if self.ways[from].iter().any(|way| way.begun < puts) || self.gets[from].is_some() {
                self.get(from);
            }
            for to in 0..self.group.len() {
                self.look(from, to);
                self.collect(from, to);
                let way = &self.ways[from][to];
                // The area is free at both ends.
                if way.begun < puts && way.begun - way.seen.min(way.completed) < AREAS as u64 {
                    self.put(from, to);
                }
            }
        }
        self.group.progress();
    }

    fn put(&mut self, from: usize, to: usize) {
        let Self { group, sources, targets, signals, ways, rng, .. } = self;
        let way = &mut ways[from][to];
        let (size, number) = (rng.pick(&SIZES), way.begun);
        let data = pattern(size, rng.draw());
        let (at, target) = (Self::area(to, number), Self::area(from, number));
        sources.write(from, at, &data);
        let context = rng.below(self.contexts as usize) as c_int;
        let signal = (signals.at(from, 8 * from), 1);
        let (src, dst) = match size {
            0 => (NOWHERE, NOWHERE),
            _ => (sources.at(from, at), targets.at(from, target)),
        };
        let request = group.put_signal((from, context), src, size, dst, to, signal);
        way.requests.push((request, number));
        way.under_way.push(data);
        way.begun += 1;
    }

    /// Compares what a rank's get has brought, and begins the next one.
    fn get(&mut self, rank: usize) {
        let Self { group, fixed, fetched, gets, rng, .. } = self;
        if let Some((request, size, from, at)) = gets[rank] {
            if !group.test(request).expect("a get that does not fail") {
                return;
            }
            let (came, there) = (fetched.read(rank, at, size), pattern(LARGEST, from as u64));
            assert!(came == there[at..at + size], "a get of {size} bytes at {at} of rank {from}");
            gets[rank] = None;
        }
        if rng.below(8) == 0 {
            let (size, from) = (rng.pick(&SIZES), rng.below(group.len()));
            let at = rng.below(LARGEST - size + 1);
            let request = group.get(rank, from, fixed.at(rank, at), size, fetched.at(rank, at));
            gets[rank] = Some((request, size, from, at));
        }
    }

    /// Compares what the signals say that is there.
    fn look(&mut self, from: usize, to: usize) {
        let seen = self.signals.word(to, 8 * from);
        let way = &mut self.ways[from][to];
        assert!(
            seen >= way.seen && seen <= way.begun,
            "{seen} signals after {} for {} puts",
            way.seen,
            way.begun
        );
        for number in way.seen..seen {
            let data = way.under_way.remove(0);
            let came = self.targets.read(to, Self::area(from, number), data.len());
            assert!(
                came == data,
                "put {number} of rank {from} to {to}, {} bytes, behind its signal",
                data.len()
            );
        }
        way.seen = seen;
    }

    fn collect(&mut self, from: usize, to: usize) {
        let (group, way) = (self.group, &mut self.ways[from][to]);
        let before = way.requests.len();
        way.requests.retain(|(request, _)| !group.test(*request).expect("a put that does not fail"));
        way.completed += (before - way.requests.len()) as u64;
    }

    /// Returns whether `puts` of each way have been seen and completed.
    pub fn is_done(&self, puts: u64) -> bool {
        self.ways.iter().flatten().all(|way| way.seen == puts && way.completed == puts)
            && self.gets.iter().all(Option::is_none)
    }

    /// Runs to the end.
    pub fn run(&mut self, puts: u64) {
        let polling = crate::pair::Polling::start();
        while !self.is_done(puts) {
            self.step(puts);
            assert!(polling.pause() < crate::pair::LIMIT, "{puts} puts are not done");
        }
    }

    /// Ends the windows.
    pub fn end(self) {
        let Self { group, sources, targets, signals, fixed, fetched, .. } = self;
        [sources, targets, signals, fixed, fetched].into_iter().for_each(|window| group.deregister(window));
    }
}
