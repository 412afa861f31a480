//! Puts, signals and gets between the ranks of a group, with everything checked on which NCCL relies:
//! a signal is there once for each put, and only after the put and all before it.
//!
//! Memory that no operation uses has `MARK`, and is compared before it is used again. A source is
//! filled with `SPENT` once its put is done, so data that is sent from it afterwards is wrong at the
//! target.

use std::collections::VecDeque;
use std::ffi::c_int;

use crate::pair::{LIMIT, Polling, pattern};
use crate::rma::{ADD, Group, INC, NOWHERE, OF_SIGNALS, Pending, Window};
use crate::rng::Rng;

/// Bytes that nobody may have written: those of targets that are not in use, and behind data.
const MARK: u8 = 0xEE;
/// Bytes of a source whose put is done.
const SPENT: u8 = 0x5A;
/// Room of an area besides its data.
const SLACK: usize = 64;
/// Around each limit: inside of a command, behind it, over the data link.
const SIZES: [usize; 7] = [0, 1, 8, 64, 960, 961, 4096];
/// Gets of a rank that are under way at most.
const GETS: usize = 3;

/// What is transferred, and where it is.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Contexts of each rank.
    pub contexts: c_int,
    /// The kinds of memory of sources, of targets, and of signals.
    pub kinds: [c_int; 3],
    /// Puts from one rank to another that are under way at most.
    pub depth: usize,
    /// Bytes of the largest put and get.
    pub largest: usize,
}

impl Plan {
    /// All memory of one kind.
    pub fn new(kind: c_int, contexts: c_int) -> Self {
        Self { contexts, kinds: [kind; 3], depth: 6, largest: 200_000 }
    }

    fn size(&self, rng: &mut Rng) -> usize {
        match rng.below(8) {
            0 => self.largest,
            1 | 2 => rng.below(self.largest),
            _ => rng.pick(&SIZES).min(self.largest),
        }
    }

    /// Bytes of an area.
    fn area(&self) -> usize {
        (self.largest + SLACK).next_multiple_of(8)
    }

    /// Returns a place in an area for `size` bytes, which need not be aligned.
    fn place(&self, rng: &mut Rng, size: usize) -> usize {
        rng.below(SLACK.min(self.area() - size))
    }
}

/// The traffic of a group.
pub struct OneSided<'a> {
    group: &'a Group,
    plan: Plan,
    sources: Window,
    targets: Window,
    /// A word for each rank, and one for all of them.
    signals: Window,
    /// The word for all, by rank.
    totals: Vec<u64>,
    /// By rank and target.
    ways: Vec<Vec<Way>>,
    /// What gets read, a pattern on each rank, and where they write.
    fixed: Window,
    fetched: Window,
    /// By rank and place.
    gets: Vec<[Option<Get>; GETS]>,
    rng: Rng,
}

/// What goes from one rank to another.
#[derive(Default)]
struct Way {
    /// The puts that no signal has proved yet, in their order.
    under_way: VecDeque<Put>,
    /// The requests that the origin has not completed, each with its put.
    requests: Vec<(Pending, u64)>,
    begun: u64,
    completed: u64,
    seen: u64,
    /// The word of the way, after all puts, and as it was seen.
    sum: u64,
    word: u64,
}

/// A put.
struct Put {
    /// What the target's area has once the data is there.
    data: Vec<u8>,
    /// What the word of the way has after the put, if the put changes it.
    word: Option<u64>,
}

/// A get.
#[derive(Debug, Clone, Copy)]
struct Get {
    request: Pending,
    /// The rank that is read, and the place there.
    from: usize,
    remote: usize,
    size: usize,
    /// The place in the area where the data goes.
    local: usize,
}

impl<'a> OneSided<'a> {
    pub fn new(group: &'a Group, plan: Plan, rng: Rng) -> Self {
        let (ranks, area) = (group.len(), plan.area() / 8);
        let words = ranks * plan.depth * area;
        let ways = (0..ranks).map(|_| (0..ranks).map(|_| Way::default()).collect()).collect();
        let [here, there, signals] = plan.kinds;
        let traffic = Self {
            group,
            plan,
            sources: group.window(here, words, 0),
            targets: group.window(there, words, 0),
            signals: group.window(signals, ranks + 1, OF_SIGNALS),
            totals: vec![0; ranks],
            ways,
            fixed: group.window(here, area, 0),
            fetched: group.window(there, GETS * area, 0),
            gets: vec![[None; GETS]; ranks],
            rng,
        };
        for rank in 0..ranks {
            traffic.fixed.write(rank, 0, &pattern(8 * area, rank as u64));
            traffic.targets.write(rank, 0, &vec![MARK; 8 * words]);
            traffic.fetched.write(rank, 0, &vec![MARK; GETS * 8 * area]);
        }
        traffic
    }

    /// Returns where puts between two ranks are kept in a rank's window.
    fn area(&self, other: usize, put: u64) -> usize {
        (other * self.plan.depth + put as usize % self.plan.depth) * self.plan.area()
    }

    /// Begins as many puts as fit, up to `puts` of each way in all. Looks at the signals.
    pub fn step(&mut self, puts: u64) {
        for from in 0..self.group.len() {
            self.collect_gets(from);
            if self.ways[from].iter().any(|way| way.begun < puts) {
                self.get(from);
            }
            for to in 0..self.group.len() {
                self.look(from, to);
                self.collect(from, to);
                if self.ways[from][to].begun < puts && self.has_room(from, to) {
                    self.put(from, to, self.ways[from][to].begun + 1 == puts);
                }
            }
        }
        self.group.progress();
    }

    /// Returns whether the area of the next put is free at both ends.
    fn has_room(&self, from: usize, to: usize) -> bool {
        let (way, depth) = (&self.ways[from][to], self.plan.depth as u64);
        // Requests are not completed in order.
        way.begun - way.seen < depth && way.requests.iter().all(|(_, number)| way.begun - number < depth)
    }

    /// Begins a put. With `proves` its signal proves it.
    fn put(&mut self, from: usize, to: usize, proves: bool) {
        let Self { group, plan, .. } = *self;
        let (rng, number) = (&mut self.rng, self.ways[from][to].begun);
        let (size, context) = (plan.size(rng), rng.below(plan.contexts as usize) as c_int);
        let (seed, at, place) = (rng.draw(), plan.place(rng, size), plan.place(rng, size));
        // A put that no signal proves occupies its area.
        let proves = proves || self.ways[from][to].under_way.len() + 1 >= plan.depth || rng.below(3) > 0;
        let for_all = rng.below(2) == 0;
        let (value, operation, strong) = Self::addend(rng);
        let (source, target) = (self.area(to, number) + at, self.area(from, number));
        self.check_unused(&self.targets, to, target);
        let mut data = vec![MARK; plan.area()];
        data[place..place + size].copy_from_slice(&pattern(size, seed));
        self.sources.write(from, source, &data[place..place + size]);
        let (src, dst) = match size {
            0 => (NOWHERE, NOWHERE),
            _ => (self.sources.at(from, source), self.targets.at(from, target + place)),
        };
        let way = &mut self.ways[from][to];
        let sum = if proves { &mut way.sum } else { &mut self.totals[to] };
        let request = if proves || for_all {
            *sum = sum.wrapping_add(value);
            let index = if proves { from } else { group.len() };
            let signal = (self.signals.at(from, 8 * index), value, operation);
            group.put_signal_as((from, context), src, size, dst, to, signal, strong)
        } else {
            group.put_by((from, context), src, size, dst, to)
        };
        way.requests.push((request, number));
        way.under_way.push_back(Put { data, word: proves.then_some(way.sum) });
        way.begun += 1;
    }

    /// Returns what a signal adds, by which operation, and whether it is a strong one. No few of them
    /// add up to 0.
    fn addend(rng: &mut Rng) -> (u64, u32, bool) {
        let strong = rng.below(2) == 0;
        match rng.below(4) {
            0 => (1, INC, strong),
            1 => (1, ADD, strong),
            2 => (1 + (rng.draw() >> 32), ADD, strong),
            _ => (1 + (rng.draw() >> 8), ADD, strong),
        }
    }

    /// Begins a get now and then.
    fn get(&mut self, rank: usize) {
        let Self { group, plan, .. } = *self;
        let rng = &mut self.rng;
        let index = rng.below(GETS);
        if self.gets[rank][index].is_some() || rng.below(8) > 0 {
            return;
        }
        let (size, from) = (plan.size(rng), rng.below(group.len()));
        let (remote, local) = (plan.place(rng, size), plan.place(rng, size));
        self.check_unused(&self.fetched, rank, index * plan.area());
        let to = self.fetched.at(rank, index * plan.area() + local);
        let request = group.get(rank, from, self.fixed.at(rank, remote), size, to);
        self.gets[rank][index] = Some(Get { request, from, remote, size, local });
    }

    /// Compares what a rank's gets have brought.
    fn collect_gets(&mut self, rank: usize) {
        let Self { group, fetched, gets, plan, .. } = self;
        let area = plan.area();
        for (index, place) in gets[rank].iter_mut().enumerate() {
            let Some(get) = *place else { continue };
            if !group.test(get.request).expect("a get that does not fail") {
                continue;
            }
            group.flush(rank, fetched, get.from);
            let mut expected = vec![MARK; area];
            let there = &pattern(area, get.from as u64)[get.remote..get.remote + get.size];
            expected[get.local..get.local + get.size].copy_from_slice(there);
            let came = fetched.read(rank, index * area, area);
            assert!(came == expected, "rank {rank}: {get:?}: {}", difference(&came, &expected));
            fetched.write(rank, index * area, &vec![MARK; area]);
            *place = None;
        }
    }

    /// Compares what the signals say that is there.
    fn look(&mut self, from: usize, to: usize) {
        let proved = self.proved(from, to);
        for _ in 0..proved {
            let Some(Put { data, word }) = self.ways[from][to].under_way.pop_front() else { return };
            let (number, area) = (self.ways[from][to].seen, self.area(from, self.ways[from][to].seen));
            let came = self.targets.read(to, area, data.len());
            assert!(came == data, "put {number} of rank {from} to {to}: {}", difference(&came, &data));
            self.targets.write(to, area, &vec![MARK; data.len()]);
            let way = &mut self.ways[from][to];
            way.word = word.unwrap_or(way.word);
            way.seen += 1;
        }
    }

    /// Returns how many puts the word of a way proves.
    fn proved(&self, from: usize, to: usize) -> usize {
        let way = &self.ways[from][to];
        let mut before = None;
        loop {
            let word = self.signals.word(to, 8 * from);
            if word == way.word {
                return 0;
            }
            if let Some(last) = way.under_way.iter().rposition(|put| put.word == Some(word)) {
                return last + 1;
            }
            // A word in a file that is read while it is written can be half of each.
            assert!(
                before != Some(word),
                "{word:#x} is no sum of the signals of rank {from} to {to}: {:#x} was seen, of {} puts {}",
                way.word,
                way.begun,
                way.seen
            );
            before = Some(word);
        }
    }

    fn collect(&mut self, from: usize, to: usize) {
        let mut requests = std::mem::take(&mut self.ways[from][to].requests);
        requests.retain(|(request, number)| {
            let is_done = self.group.test(*request).expect("a put that does not fail");
            if is_done {
                let spent = vec![SPENT; self.plan.area()];
                self.sources.write(from, self.area(to, *number), &spent);
                self.ways[from][to].completed += 1;
            }
            !is_done
        });
        self.ways[from][to].requests = requests;
    }

    /// Asserts that nothing was written into an area that nothing uses.
    fn check_unused(&self, window: &Window, rank: usize, area: usize) {
        let came = window.read(rank, area, self.plan.area());
        let written = came.iter().position(|byte| *byte != MARK);
        assert!(written.is_none(), "written to memory of rank {rank} after its use: {area} + {written:?}");
    }

    /// Returns whether `puts` of each way have been seen and completed.
    pub fn is_done(&self, puts: u64) -> bool {
        self.ways.iter().flatten().all(|way| way.seen == puts && way.completed == puts)
            && self.gets.iter().flatten().all(Option::is_none)
    }

    /// Returns how far everything is.
    fn state(&self) -> String {
        let ways = self.ways.iter().enumerate().flat_map(|(from, ways)| {
            ways.iter().enumerate().map(move |(to, way)| {
                let Way { begun, completed, seen, .. } = way;
                format!("{from} to {to}: {begun} begun, {completed} completed, {seen} seen; ")
            })
        });
        format!("{}gets {:?}", ways.collect::<String>(), self.gets)
    }

    /// Runs to the end.
    pub fn run(&mut self, puts: u64) {
        self.run_with(puts, || {});
    }

    /// Runs to the end. `each` is called again and again meanwhile.
    pub fn run_with(&mut self, puts: u64, mut each: impl FnMut()) {
        let polling = Polling::start();
        while !self.is_done(puts) {
            each();
            self.step(puts);
            assert!(polling.pause() < LIMIT, "{puts} puts are not done: {}", self.state());
        }
        // The last put of each way proves all others.
        for (rank, total) in self.totals.iter().enumerate() {
            assert_eq!(self.signals.word(rank, 8 * self.group.len()), *total, "the word for all ranks");
        }
    }

    /// Ends the windows.
    pub fn end(self) {
        for rank in 0..self.group.len() {
            let areas = |n: usize| (0..n).map(|index| index * self.plan.area());
            areas(self.group.len() * self.plan.depth)
                .for_each(|at| self.check_unused(&self.targets, rank, at));
            areas(GETS).for_each(|at| self.check_unused(&self.fetched, rank, at));
        }
        let Self { group, sources, targets, signals, fixed, fetched, .. } = self;
        [sources, targets, signals, fixed, fetched].into_iter().for_each(|window| group.deregister(window));
    }
}

/// Describes where bytes differ from the expected ones.
fn difference(came: &[u8], expected: &[u8]) -> String {
    let differs: Vec<usize> = (0..expected.len()).filter(|at| came[*at] != expected[*at]).collect();
    let (first, last) = (differs.first().copied().unwrap_or(0), differs.last().copied().unwrap_or(0));
    format!("{} bytes of {first} to {last} differ, the first is {:#04x}", differs.len(), came[first])
}
