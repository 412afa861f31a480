//! Data over any number of comms at once, in rounds: every message filled, moved, and checked at
//! the receiver, together with the bytes behind it and the size that `test` gives.

use std::ffi::c_int;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mpib::failure::{Failure, Kind};
use mpib::pattern;
use mpib::region::{Layout, Region};
use nccl_net_host::{Mr, NO_SIZES, Recv, RecvComm, Request, SendComm, Sizes};

/// Limit of a round, which takes seconds at most. Only a transfer that hangs reaches it.
const LIMIT: Duration = Duration::from_secs(100);

/// The messages of a transfer, the same on both ends.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Largest message of each round.
    pub(crate) size: usize,
    /// Receives of an `irecv`. Message `i` of a group is `i` bytes shorter.
    pub(crate) group: usize,
    /// Groups in flight.
    pub(crate) depth: usize,
    /// Number of the first message. A message's content is derived from its number.
    pub(crate) seed: u64,
}

/// A comm of either direction.
pub(crate) enum End {
    Send(Rc<SendComm>),
    Recv(Rc<RecvComm>),
}

impl End {
    /// # Safety
    /// As for `Comm::reg_mr`.
    unsafe fn reg_mr(&self, addr: *mut u8, len: usize) -> nccl_net_host::Result<Mr> {
        match self {
            // SAFETY: the caller's promise.
            Self::Send(comm) => unsafe { comm.reg_mr(addr, len) },
            // SAFETY: the caller's promise.
            Self::Recv(comm) => unsafe { comm.reg_mr(addr, len) },
        }
    }

    fn dereg_mr(&self, mr: Mr) -> nccl_net_host::Result<()> {
        match self {
            Self::Send(comm) => comm.dereg_mr(mr),
            Self::Recv(comm) => comm.dereg_mr(mr),
        }
    }

    fn test(&self, request: &mut Request, sizes: &mut Sizes) -> nccl_net_host::Result<bool> {
        match self {
            Self::Send(comm) => comm.test(request, sizes),
            Self::Recv(comm) => comm.test(request, sizes),
        }
    }
}

/// One comm with its memory.
pub(crate) struct Flow {
    end: End,
    region: Region,
    mr: Mr,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Due,
    UnderWay(Request),
    Done,
}

impl Step {
    const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
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

    /// Content of a slot, which differs between comms too.
    fn message(&self, flow: usize, slot: usize) -> u64 {
        (flow as u64) << 40 | (self.seed + slot as u64)
    }
}

impl Flow {
    /// Allocates and registers memory for the messages of `spec`.
    pub(crate) fn new(end: End, spec: &Spec) -> Result<Self, Failure> {
        let layout = Layout { size: spec.size.max(1), slots: spec.slots() };
        let region = Region::new(layout)?;
        // SAFETY: `end` unmaps the memory after deregMr; a flow that failed is kept until then.
        // Slots are filled before requests are posted, and checked when theirs is done.
        let mr = unsafe { end.reg_mr(region.addr(), layout.len()) }?;
        Ok(Self { end, region, mr, steps: Vec::new() })
    }

    /// Deregisters the memory. No request may be in flight, except after a failure of the comm,
    /// when no request is tested any more.
    pub(crate) fn end(self) -> Result<(), Failure> {
        Ok(self.end.dereg_mr(self.mr)?)
    }

    const fn sends(&self) -> bool {
        matches!(self.end, End::Send(_))
    }

    fn prepare(&mut self, number: usize, spec: &Spec) {
        let sends = self.sends();
        for slot in 0..spec.slots() {
            let message = spec.message(number, slot);
            let memory = &mut self.region.slot(slot)[..spec.len(slot)];
            if sends { pattern::fill(memory, message) } else { pattern::poison(memory, message) }
        }
        let requests = if sends { spec.slots() } else { spec.depth };
        self.steps = std::iter::repeat_with(|| Step::Due).take(requests).collect();
    }

    /// Starts requests in order, as many as the comm accepts.
    fn start(&mut self, spec: &Spec) -> Result<bool, Failure> {
        let mut moved = false;
        for turn in 0..self.steps.len() {
            if !matches!(self.steps[turn], Step::Due) {
                continue;
            }
            let request = match &self.end {
                End::Send(comm) => {
                    let slot = spec.slot(turn);
                    let tag = (slot % spec.group) as c_int;
                    comm.isend(&self.mr, self.region.slot_offset(slot), spec.len(slot), tag)?
                }
                End::Recv(comm) => {
                    let recv = |i: usize| Recv {
                        mr: &self.mr,
                        offset: self.region.slot_offset(turn * spec.group + i),
                        len: spec.size,
                        tag: i as c_int,
                    };
                    comm.irecv(&(0..spec.group).map(recv).collect::<Vec<_>>())?
                }
            };
            let Some(request) = request else { break };
            self.steps[turn] = Step::UnderWay(request);
            moved = true;
        }
        Ok(moved)
    }

    fn test(&mut self, number: usize, spec: &Spec) -> Result<bool, Failure> {
        let mut moved = false;
        for turn in 0..self.steps.len() {
            let Step::UnderWay(request) = &mut self.steps[turn] else { continue };
            let mut sizes = NO_SIZES;
            if !self.end.test(request, &mut sizes)? {
                continue;
            }
            moved = true;
            if let End::Recv(comm) = &self.end {
                comm.irecv_consumed(request)?;
            }
            self.steps[turn] = Step::Done;
            if self.sends() {
                judge_size("sender", spec.len(spec.slot(turn)), sizes[0])?;
                continue;
            }
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

/// Runs one round over all of `flows`. The number identifies a flow among those of its end.
pub(crate) fn round(flows: &mut [(usize, Flow)], spec: &Spec) -> Result<(), Failure> {
    for (number, flow) in flows.iter_mut() {
        flow.prepare(*number, spec);
    }
    let mut since = Instant::now();
    loop {
        let mut moved = false;
        for (number, flow) in flows.iter_mut() {
            moved |= flow.start(spec)?;
            moved |= flow.test(*number, spec)?;
        }
        if flows.iter().all(|(_, flow)| flow.steps.iter().all(Step::is_done)) {
            return Ok(());
        }
        if moved {
            since = Instant::now();
        } else if since.elapsed() > LIMIT {
            let due = |(_, f): &(usize, Flow)| f.steps.iter().filter(|s| !s.is_done()).count();
            let due: usize = flows.iter().map(due).sum();
            return Err(Failure::new(
                Kind::Timeout,
                format!("{due} requests do not complete, nothing for {LIMIT:?}"),
            ));
        }
        std::thread::yield_now();
    }
}
