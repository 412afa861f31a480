//! Data over any number of comms at once, in rounds: every message filled, moved, and checked at the receiver, together
//! with the bytes behind it and the size that `test` gives.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use mpib::failure::{Failure, Kind};
use mpib::pattern;
use mpib::plugin::{Comm, Mr, Net, Recv, Request};
use mpib::region::{Layout, Region};

/// A round takes seconds at most; only what hangs takes so long.
const LIMIT: Duration = Duration::from_secs(100);

/// What to move, the same on both ends.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Largest message of each round.
    pub(crate) size: usize,
    /// Receives of an `irecv`. Message `i` of a group is `i` bytes shorter.
    pub(crate) group: usize,
    /// Groups at once.
    pub(crate) depth: usize,
    /// Number of the first message, which makes its content.
    pub(crate) seed: u64,
}

/// One comm with its memory.
pub(crate) struct Flow {
    comm: Comm,
    sends: bool,
    region: Region,
    mr: Mr,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Due,
    UnderWay(Request),
    Done,
}

impl Spec {
    fn slots(&self) -> usize {
        self.group * self.depth
    }

    fn len(&self, slot: usize) -> usize {
        self.size.saturating_sub(slot % self.group)
    }

    /// The slot that is sent as number `turn`: each round begins its groups with another message.
    fn slot(&self, turn: usize) -> usize {
        turn / self.group * self.group + (turn + self.seed as usize) % self.group
    }

    /// Content of a slot, told apart by comm too.
    fn message(&self, flow: usize, slot: usize) -> u64 {
        (flow as u64) << 40 | (self.seed + slot as u64)
    }
}

impl Flow {
    /// Memory for all that `spec` says, registered.
    pub(crate) fn new(net: &dyn Net, comm: Comm, sends: bool, spec: &Spec) -> Result<Self, Failure> {
        let layout = Layout { size: spec.size.max(1), slots: spec.slots() };
        let region = Region::new(layout)?;
        let mr = net.reg_mr(comm, region.addr(), layout.len())?;
        Ok(Self { comm, sends, region, mr, steps: Vec::new() })
    }

    /// Deregisters; for when no request is under way, or none will be asked for again.
    pub(crate) fn end(self, net: &dyn Net) -> Result<(), Failure> {
        net.dereg_mr(self.comm, self.mr)
    }

    fn prepare(&mut self, number: usize, spec: &Spec) {
        for slot in 0..spec.slots() {
            let message = spec.message(number, slot);
            let memory = &mut self.region.slot(slot)[..spec.len(slot)];
            if self.sends { pattern::fill(memory, message) } else { pattern::poison(memory, message) }
        }
        self.steps = vec![Step::Due; if self.sends { spec.slots() } else { spec.depth }];
    }

    /// Starts what can be started, in order.
    fn start(&mut self, net: &dyn Net, spec: &Spec) -> Result<bool, Failure> {
        let mut moved = false;
        for turn in 0..self.steps.len() {
            if self.steps[turn] != Step::Due {
                continue;
            }
            let request = if self.sends {
                let slot = spec.slot(turn);
                let tag = (slot % spec.group) as c_int;
                net.isend(self.comm, self.region.slot_addr(slot), spec.len(slot), tag, self.mr)?
            } else {
                let recv = |i: usize| Recv {
                    addr: self.region.slot_addr(turn * spec.group + i),
                    len: spec.size,
                    tag: i as c_int,
                    mr: self.mr,
                };
                net.irecv(self.comm, &(0..spec.group).map(recv).collect::<Vec<_>>())?
            };
            let Some(request) = request else { break };
            self.steps[turn] = Step::UnderWay(request);
            moved = true;
        }
        Ok(moved)
    }

    fn test(&mut self, number: usize, net: &dyn Net, spec: &Spec) -> Result<bool, Failure> {
        let mut moved = false;
        for turn in 0..self.steps.len() {
            let Step::UnderWay(request) = self.steps[turn] else { continue };
            let mut sizes = [0; 64];
            if !net.test(request, &mut sizes)? {
                continue;
            }
            self.steps[turn] = Step::Done;
            moved = true;
            if self.sends {
                judge_size("sender", spec.len(spec.slot(turn)), sizes[0])?;
                continue;
            }
            net.irecv_consumed(self.comm, spec.group, request)?;
            for (i, size) in sizes.iter().take(spec.group).enumerate() {
                let slot = turn * spec.group + i;
                judge_size("receiver", spec.len(slot), *size)?;
                self.judge_data(slot, spec.message(number, slot), spec.len(slot))?;
            }
        }
        Ok(moved)
    }

    fn judge_data(&mut self, slot: usize, message: u64, len: usize) -> Result<(), Failure> {
        let wrong = |text| Failure::new(Kind::Data, format!("message {message} of {len} bytes: {text}"));
        if let Some(mismatch) = pattern::check(&self.region.slot(slot)[..len], message) {
            return Err(wrong(mismatch.to_string()));
        }
        match self.region.overrun(slot) {
            Some(at) => Err(wrong(format!("something was written {at} bytes behind it"))),
            None => Ok(()),
        }
    }
}

fn judge_size(end: &str, expected: usize, given: c_int) -> Result<(), Failure> {
    if usize::try_from(given) == Ok(expected) {
        return Ok(());
    }
    Err(Failure::new(Kind::Data, format!("test gives {given} bytes at the {end}, expected {expected}")))
}

/// One round over all of `flows`, whose number among those of their end tells them apart.
pub(crate) fn round(net: &dyn Net, flows: &mut [(usize, Flow)], spec: &Spec) -> Result<(), Failure> {
    for (number, flow) in flows.iter_mut() {
        flow.prepare(*number, spec);
    }
    let mut since = Instant::now();
    loop {
        let mut moved = false;
        for (number, flow) in flows.iter_mut() {
            moved |= flow.start(net, spec)?;
            moved |= flow.test(*number, net, spec)?;
        }
        if flows.iter().all(|(_, flow)| flow.steps.iter().all(|step| *step == Step::Done)) {
            return Ok(());
        }
        if moved {
            since = Instant::now();
        } else if since.elapsed() > LIMIT {
            let due = |(_, f): &(usize, Flow)| f.steps.iter().filter(|s| **s != Step::Done).count();
            let due: usize = flows.iter().map(due).sum();
            return Err(Failure::new(
                Kind::Timeout,
                format!("{due} requests do not complete, nothing for {LIMIT:?}"),
            ));
        }
        std::thread::yield_now();
    }
}
