//! A block of a kernel.

use std::{
    ptr, slice,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use softcuda::{
    gin::{Add, Operation, Signal, Source, Ticket, wait},
    rank::{Ran, UNTOUCHED},
};

use super::{
    Gin,
    device::Connected,
    plan::{self, COUNTED, GOT, Kind, Plan, ROUNDS, SIZES, Transfer, VALUE},
};

/// A block, whose number is its counter's too.
#[derive(Debug)]
pub(super) struct Block<'a> {
    plan: Plan,
    connected: Connected,
    /// Addresses of the windows' memory, which outlives the block.
    source: usize,
    target: usize,
    number: u32,
    lap: u32,
    /// Whether the communicator has failed, and nobody answers.
    stop: &'a AtomicBool,
}

impl<'a> Block<'a> {
    pub(super) fn new(gin: &Gin<'_>, number: u32, lap: u32, stop: &'a AtomicBool) -> Self {
        let [source, target] =
            [&gin.memory.source, &gin.memory.target].map(|buffer| buffer.pointer().expose_provenance());
        Self { plan: gin.plan, connected: gin.device.context(number), source, target, number, lap, stop }
    }

    /// Puts to all other ranks in rounds, and compares what they have put.
    pub(super) fn put(&self) -> Ran {
        let mut ran = Ran::default();
        // The wrong values of a block that was stopped are not looked at.
        let _ = self.put_all(&mut ran);
        ran
    }

    fn put_all(&self, ran: &mut Ran) -> Option<()> {
        let mut posted = Vec::new();
        for round in 0..ROUNDS {
            for to in self.plan.peers() {
                self.put_round(to, round, &mut posted)?;
            }
            if round % 2 == 1 {
                self.reuse(round, &mut posted)?;
            }
            for from in self.plan.peers() {
                self.receive_round(from, round, ran)?;
            }
        }
        self.reuse(ROUNDS - 1, &mut posted)?;
        self.until(|| self.connected.context.counter(self.number) >= self.plan.counted())?;
        // A put that is complete may have a signal that is under way. All of them only grow.
        for from in self.plan.peers() {
            let alone = self.plan.signal(Kind::Alone, from, self.number);
            self.until(|| self.connected.context.signal(alone) >= self.plan.last(Kind::Alone))?;
            self.until(|| self.word(from) >= self.plan.added_to_words())?;
        }
        Some(())
    }

    /// Returns the word of the window to which the same block of a rank adds.
    fn word(&self, from: u32) -> u64 {
        let at = ptr::with_exposed_provenance_mut(self.target + self.plan.word(from, self.number));
        // SAFETY: a word of the target, which only signals change.
        unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Acquire)
    }

    fn until(&self, holds: impl FnMut() -> bool) -> Option<()> {
        wait(holds, || self.stop.load(Ordering::Relaxed))
    }

    fn post(&self, rank: u32, operation: Operation) -> Option<Ticket> {
        self.connected.context.post(rank, operation, || self.stop.load(Ordering::Relaxed))
    }

    /// Posts the puts of a round to a rank: one with a weak signal, others, a value, and one whose
    /// strong signal says that all of them are there.
    fn put_round(&self, to: u32, round: u32, posted: &mut Vec<Ticket>) -> Option<()> {
        let (plan, block) = (&self.plan, self.number);
        let own = plan.rank();
        let signal =
            |kind, add| Signal { id: plan.signal(kind, own, block), add, strong: kind != Kind::Weak };
        let area = plan.area(own, block, round).start;
        let put = |put: usize| {
            let transfer = Transfer { from: own, to, block, round, put };
            let signal = match put {
                0 => Some(signal(Kind::Weak, Add::One)),
                _ if put + 1 == SIZES.len() => Some(signal(Kind::Strong, plan::added(round))),
                _ => None,
            };
            let source = match put {
                VALUE => Source::Value(transfer.value(self.lap)),
                _ => Source::Memory(self.connected.source(plan.put_from(transfer))),
            };
            Operation::Put {
                source,
                to: self.connected.target(area + plan::begin(put)),
                size: transfer.len() as u64,
                counter: (put == COUNTED).then_some(block),
                signal,
            }
        };
        let last = SIZES.len() - 1;
        for number in (0..last).chain([VALUE, last]) {
            posted.push(self.post(to, put(number))?);
        }
        if plan::signals_alone(round) {
            posted.push(self.post(to, Operation::Signal(signal(Kind::Alone, Add::One)))?);
        }
        let at = self.connected.target(plan.word(own, block));
        let word = Operation::WindowSignal { at, add: plan::added_to_word(round), strong: true };
        posted.push(self.post(to, word)?);
        Some(())
    }

    /// Waits for everything that was posted, and writes over what the puts up to a round have read.
    fn reuse(&self, last: u32, posted: &mut Vec<Ticket>) -> Option<()> {
        for ticket in posted.drain(..) {
            self.until(|| self.connected.context.is_complete(ticket))?;
        }
        let plan = &self.plan;
        for (to, round) in plan.peers().flat_map(|to| (0..=last).map(move |round| (to, round))) {
            for put in 0..SIZES.len() {
                let put = Transfer { from: plan.rank(), to, block: self.number, round, put };
                let at = ptr::with_exposed_provenance_mut::<u8>(self.source + plan.put_from(put));
                // SAFETY: a part of the source that only this block's puts read, and they are complete.
                unsafe { ptr::write_bytes(at, UNTOUCHED, put.len()) };
            }
        }
        Some(())
    }

    /// Waits for the signals of a round from a rank, and compares what they promise at once.
    fn receive_round(&self, from: u32, round: u32, ran: &mut Ran) -> Option<()> {
        let (plan, block, context) = (&self.plan, self.number, &self.connected.context);
        let area = plan.area(from, block, round);
        // SAFETY: the area of a sender, which has put the part that is looked at.
        let bytes = |begin: usize, len: usize| unsafe { self.target(area.start + begin, len) };
        let number = self.lap * ROUNDS + round;
        let compare = |put: usize, ran: &mut Ran| {
            let transfer = Transfer { from, to: plan.rank(), block, round, put };
            let begin = plan::begin(put);
            transfer.pattern(self.lap).compare(bytes(begin, transfer.len()), number, area.start + begin, ran);
        };
        let weak = plan.signal(Kind::Weak, from, block);
        self.until(|| context.signal(weak) > round.into())?;
        compare(0, ran);
        let strong = plan.signal(Kind::Strong, from, block);
        self.until(|| context.signal(strong) >= plan::sum(round))?;
        (0..=VALUE).for_each(|put| compare(put, ran));
        let mut end = 0;
        for put in 0..=VALUE {
            let begin = plan::begin(put);
            ran.untouched(bytes(end, begin - end), number, area.start + end);
            end = begin + Transfer { from, to: plan.rank(), block, round, put }.len();
        }
        ran.untouched(bytes(end, area.len() - end), number, area.start + end);
        Some(())
    }

    /// Gets from all other ranks, flushes, and compares.
    pub(super) fn get(&self) -> Ran {
        let mut ran = Ran::default();
        let _ = self.get_all(&mut ran);
        ran
    }

    fn get_all(&self, ran: &mut Ran) -> Option<()> {
        let (plan, block) = (&self.plan, self.number);
        let own = plan.rank();
        let mut posted = Vec::new();
        for from in plan.peers() {
            // In two parts.
            for part in [0..GOT / 3, GOT / 3..GOT] {
                let get = Operation::Get {
                    from: self.connected.target(plan.offered(own, block) + part.start),
                    to: self.connected.source(plan.get_to(from, block).start + part.start),
                    size: part.len() as u64,
                };
                posted.push(self.post(from, get)?);
            }
        }
        for ticket in posted {
            self.until(|| self.connected.context.is_complete(ticket))?;
        }
        // Any rank's queue does; kernels take their own.
        let flush = self.post(own, Operation::Flush)?;
        self.until(|| self.connected.context.is_complete(flush))?;
        for from in plan.peers() {
            let to = plan.get_to(from, block);
            let at = ptr::with_exposed_provenance::<u8>(self.source + to.start);
            // SAFETY: a part of the source that only this block's gets write, and they are complete.
            let bytes = unsafe { slice::from_raw_parts(at, to.len()) };
            plan.got(from, own, block).pattern(self.lap).compare(&bytes[..GOT], self.lap, to.start, ran);
            ran.untouched(&bytes[GOT..], self.lap, to.start + GOT);
        }
        Some(())
    }

    /// Returns bytes of the target.
    ///
    /// # Safety
    ///
    /// No put may write them while they are used.
    unsafe fn target(&self, at: usize, len: usize) -> &[u8] {
        let target = ptr::with_exposed_provenance(self.target + at);
        // SAFETY: inside the target, by the plan; nobody writes them (caller).
        unsafe { slice::from_raw_parts(target, len) }
    }
}
