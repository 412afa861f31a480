//! Rails, and jobs that load them, in simulated time. A rail serves its jobs by turns, a piece of each,
//! as an adapter serves its queue pairs. The jobs use the product's splitter as the transport does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use mpib_proto::{MAX_RAILS, SLOTS};

use super::super::measure::Measure;
use super::*;
use crate::device::PortMeter;

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const MS: u64 = 1_000_000;

/// From the end of a part on the wire to its completion, in ns.
const LATENCY: u64 = 3_000;
/// Up to so much later the thread sees it.
const POLL: u64 = 2_000;
/// What a rail serves of a job in a turn.
const PIECE: usize = 16 << 10;

/// A port of the host.
#[derive(Debug)]
struct Wire {
    /// In bytes per second.
    rate: u64,
    /// The parts that wait: job, number of the message, bytes. A job has its place in the order of the
    /// turns as long as it has some.
    turns: VecDeque<VecDeque<(usize, u64, usize)>>,
    is_busy: bool,
    carried: u64,
}

impl Wire {
    /// Lets a part wait for the turn of its job.
    fn wait(&mut self, part: (usize, u64, usize)) {
        match self.turns.iter_mut().find(|turn| turn.front().is_some_and(|first| first.0 == part.0)) {
            Some(turn) => turn.push_back(part),
            None => self.turns.push_back(VecDeque::from([part])),
        }
    }

    /// Takes a piece of the part whose turn it is: its bytes, and the part if that is the last one.
    fn next(&mut self) -> Option<(usize, Option<(usize, u64)>)> {
        let mut turn = self.turns.pop_front()?;
        let (job, number, left) = turn.front_mut()?;
        let (piece, part) = (PIECE.min(*left), (*job, *number));
        *left -= piece;
        let is_last = *left == 0;
        if is_last {
            turn.pop_front();
        }
        if !turn.is_empty() {
            self.turns.push_back(turn);
        }
        Some((piece, is_last.then_some(part)))
    }
}

/// The ports as the connections of one process know them.
#[derive(Debug, Clone)]
pub(super) struct Process(pub(super) Vec<Arc<PortMeter>>);

/// A connection that keeps messages in flight. Like NCCL's proxy it takes them back in their order.
#[derive(Debug)]
struct Job {
    splitter: Splitter,
    /// By rail: its port.
    ports: Vec<usize>,
    size: usize,
    depth: usize,
    /// Number of the next message.
    next: u64,
    /// The parts that are in flight of each message, from the oldest one on.
    window: VecDeque<RailSet>,
    /// By slot: what each rail carries, and whether that is measured.
    slots: Vec<(Split, bool)>,
    /// By rail: work requests in flight.
    in_flight: [u32; MAX_RAILS],
    /// By rail: the parts in its completion queue, by the number of the message.
    queues: [VecDeque<u64>; MAX_RAILS],
    /// Bytes of the parts that have completed.
    done: u64,
}

/// What happens at a time. The second number is the order of what happens at the same time.
type Event = Reverse<(u64, u64, What)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A wire has served a piece.
    Free { wire: usize },
    /// A part of a message has completed.
    Completed { job: usize, number: u64, rail: usize },
}

#[derive(Debug)]
pub(super) struct World {
    wires: Vec<Wire>,
    jobs: Vec<Job>,
    events: BinaryHeap<Event>,
    happened: u64,
    now: u64,
    /// Whether jobs begin together: see [`World::steps`].
    in_steps: bool,
    random: u64,
}

impl World {
    /// Ports of these rates in MB/s.
    pub(super) fn new(rates: &[u64], seed: u64) -> Self {
        let wire =
            |rate: &u64| Wire { rate: rate * 1_000_000, turns: VecDeque::new(), is_busy: false, carried: 0 };
        Self {
            wires: rates.iter().map(wire).collect(),
            jobs: Vec::new(),
            events: BinaryHeap::new(),
            happened: 0,
            now: SECOND,
            in_steps: false,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    pub(super) fn process(&self) -> Process {
        Process(self.wires.iter().map(|_| Arc::default()).collect())
    }

    /// Adds a connection over these ports, which all report `speed` Mb/s, with `depth` messages of
    /// this size in flight. It begins at once.
    pub(super) fn job(&mut self, process: &Process, ports: &[usize], speed: u32, size: usize, depth: usize) {
        self.job_with(&Config::default(), process, ports, speed, size, depth);
    }

    /// Adds such a connection with these settings.
    pub(super) fn job_with(
        &mut self,
        config: &Config,
        process: &Process,
        ports: &[usize],
        speed: u32,
        size: usize,
        depth: usize,
    ) {
        let speeds = vec![(speed, speed); ports.len()];
        let roles: Vec<RailRole> = RailRole::all().take(ports.len()).collect();
        let limits = Limits::new(config, &speeds);
        let reported = Arc::new(Reported::new(&speeds));
        let meters: Vec<_> = ports.iter().map(|port| Arc::clone(&process.0[*port])).collect();
        let (source, measure) = match ports.len() {
            1 => (Source::Fixed(0), None),
            _ => {
                let measure = Measure::new(&meters, Arc::clone(&reported), shares::MEASURED, self.now);
                (Source::Measured(reported), Some(Box::new(measure)))
            }
        };
        let splitter = Splitter::new(Plan::Plain, source, measure, limits, &roles);
        self.jobs.push(Job {
            splitter,
            ports: ports.to_vec(),
            size,
            depth,
            next: 0,
            window: VecDeque::new(),
            slots: vec![(Split::NONE, false); SLOTS],
            in_flight: [0; MAX_RAILS],
            queues: Default::default(),
            done: 0,
        });
        self.post(self.jobs.len() - 1);
    }

    /// Changes the rate of a port in MB/s. What was posted keeps its time.
    pub(super) fn set_rate(&mut self, port: usize, rate: u64) {
        self.wires[port].rate = rate * 1_000_000;
    }

    /// Sets the goodput that a process has measured on a port, in bytes per second.
    pub(super) fn set_measured(&self, Process(meters): &Process, port: usize, rate: u64) {
        meters[port].set_goodput(rate, self.now);
    }

    /// Returns the bytes that were posted on a port.
    pub(super) fn carried(&self, port: usize) -> u64 {
        self.wires[port].carried
    }

    /// Returns a number below `n`.
    fn random(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    /// Posts messages of a job until as many as it wants are in flight.
    fn post(&mut self, index: usize) {
        while self.jobs[index].window.len() < self.jobs[index].depth {
            let number = self.jobs[index].next;
            let job = &mut self.jobs[index];
            let (size, now) = (job.size, self.now);
            let (mut split, slot) = (Split::NONE, (number % SLOTS as u64) as u8);
            assert!(job.splitter.split(size, |rail| job.in_flight[rail], &mut split));
            job.splitter.posted(&split);
            let measured = job.splitter.begin(slot, split.rails(), size, |rail| split.bytes(rail), || now);
            job.slots[usize::from(slot)] = (split, measured);
            job.window.push_back(split.rails());
            job.next += 1;
            for part in split.parts() {
                let job = &mut self.jobs[index];
                job.in_flight[part.rail] += 1;
                let port = job.ports[part.rail];
                self.wires[port].carried += part.len as u64;
                self.wires[port].wait((index, number, part.len));
                if !self.wires[port].is_busy {
                    self.serve(port);
                }
            }
        }
    }

    fn happens(&mut self, at: u64, what: What) {
        self.happened += 1;
        self.events.push(Reverse((at, self.happened, what)));
    }

    /// Lets a wire serve the next piece.
    fn serve(&mut self, port: usize) {
        let wire = &mut self.wires[port];
        let next = wire.next();
        wire.is_busy = next.is_some();
        let Some((piece, part)) = next else { return };
        let end = self.now + piece as u64 * SECOND / wire.rate;
        self.happens(end, What::Free { wire: port });
        let Some((job, number)) = part else { return };
        let rail = self.jobs[job].ports.iter().position(|of| *of == port).expect("a rail of the job");
        self.happens(end + LATENCY, What::Completed { job, number, rail });
    }

    /// Polls what the oldest message of a job waits for, like a test of it.
    fn test(&mut self, index: usize) {
        let (now, job) = (self.now, &mut self.jobs[index]);
        while let Some(oldest) = job.window.front() {
            let polled = *oldest | job.splitter.busy();
            let Some(rail) = polled.iter().find(|rail| !job.queues[*rail].is_empty()) else { break };
            while let Some(number) = job.queues[rail].pop_front() {
                let slot = (number % SLOTS as u64) as u8;
                let (split, measured) = job.slots[usize::from(slot)];
                job.in_flight[rail] -= 1;
                if measured {
                    job.splitter.completed(slot, rail, split.bytes(rail), || now);
                }
                let oldest = job.next - job.window.len() as u64;
                job.window[(number - oldest) as usize].remove(rail);
            }
            while job.window.front().is_some_and(|parts| parts.is_empty()) {
                job.window.pop_front();
            }
        }
        if !self.in_steps {
            self.post(index);
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: u64) {
        let end = self.now + time;
        while let Some(Reverse((at, _, what))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            let What::Completed { job, number, rail } = what else {
                let What::Free { wire } = what else { continue };
                self.now = self.now.max(at);
                self.serve(wire);
                continue;
            };
            self.now = self.now.max(at + self.random(POLL));
            let of = &mut self.jobs[job];
            of.queues[rail].push_back(number);
            of.done += of.slots[number as usize % SLOTS].0.bytes(rail) as u64;
            self.test(job);
        }
        self.now = end.max(self.now);
    }

    /// Lets all jobs post together each time that all messages are done, and returns how long such a
    /// step took in this time, on average, in ns.
    pub(super) fn steps(&mut self, time: u64) -> f64 {
        self.in_steps = true;
        let (from, mut steps) = (self.now, 0);
        while self.now < from + time {
            while self.jobs.iter().any(|job| !job.window.is_empty()) {
                let next = self.events.peek().map_or(self.now, |Reverse((at, ..))| *at);
                self.run(next.saturating_sub(self.now));
            }
            (0..self.jobs.len()).for_each(|job| self.post(job));
            steps += 1;
        }
        (self.now - from) as f64 / f64::from(steps)
    }

    /// Returns the bytes per second that each job completes in this time.
    pub(super) fn goodput(&mut self, time: u64) -> Vec<f64> {
        let done = |world: &Self| -> Vec<u64> { world.jobs.iter().map(|job| job.done).collect() };
        let (from, before) = (self.now, done(self));
        self.run(time);
        let took = (self.now - from) as f64 / SECOND as f64;
        done(self).iter().zip(before).map(|(after, before)| (after - before) as f64 / took).collect()
    }
}
