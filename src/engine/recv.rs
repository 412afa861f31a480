//! The receiving end of a connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use nccl_net_versions::{Buffer, MemKind, NetPlugin, RecvBuffer, Sizes, Tagged};

use super::core::{Core, Progress, lock, test};
use super::flush::{self, FLUSHES, Flushes, SINK_BYTES};
use super::lane::Lane;
use super::mr::{Mr, Registrar};
use super::rail::Work;
use super::request::{Pool, Request, recv_pool};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::hints::Flow;
use crate::proto::{
    Arrivals, CTS_BYTES, Cts, FIFO_BYTES, MAX_RECVS, RECORD_BYTES, RECORDS_BYTES, Record, SLOTS, Sequence,
    SizeQ, Step,
};
use crate::verbs::{Completion, INLINE, Kind, Local, Remote};

/// Bytes of a receiver's control memory: the records that the sender writes into, CTS entries to send from, and what a
/// flush reads into.
pub(super) const MEMORY_BYTES: usize = SINK + SINK_BYTES;
pub(super) const SINK: usize = RECORDS_BYTES + FIFO_BYTES;

/// The lane that carries CTS writes: one, so that they arrive in order and one completion accounts for all before it.
const CTS_LANE: usize = 0;

/// A receiving comm.
#[derive(Debug)]
pub struct RecvComm(Arc<Receiver>);

/// What the comm and its requests share.
#[derive(Debug)]
pub(super) struct Receiver {
    /// By slot, then those of the flushes, where there are any.
    pool: Pool,
    memory: Registrar,
    /// The agent knows the connection as long as it lives. Its hints are the sender's affair.
    _flow: Option<Flow>,
    // Only NCCL's progress thread takes it; registration does not.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    core: Core,
    seq: Sequence,
    /// By slot; a request is its slot.
    slots: Box<[Slot]>,
    /// The rail that carries CTS writes.
    cts_rail: usize,
    /// Slots whose data has not come.
    outstanding: usize,
    /// Each n-th CTS write asks for a completion.
    signal_interval: u32,
    /// With `MPIB_FLUSH=1`.
    flushes: Option<Flushes>,
}

/// One group of receives. Its CTS entries stay in the control memory, so that they could be sent again.
#[derive(Debug, Clone, Copy)]
struct Slot {
    state: SlotState,
    count: usize,
    /// Room per receive; the sizes when it is done.
    bytes: [usize; MAX_RECVS],
    arrivals: Arrivals,
    size: SizeQ,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Outstanding,
    Done,
}

impl RecvComm {
    pub(super) fn new(core: Core, config: &Config, flow: Option<Flow>) -> Self {
        let slot = Slot {
            state: SlotState::Free,
            count: 0,
            bytes: [0; MAX_RECVS],
            arrivals: Arrivals::default(),
            size: SizeQ::RECORD,
        };
        // At least twice per queue, so that it is never full of writes that nobody will account for.
        let cts_rail = core.rails.iter().position(|r| r.role == core.plan.cts()).unwrap_or(0);
        let depth = core.rails.get(cts_rail).map_or(2, |r| r.lanes[CTS_LANE].send_depth());
        let signal_interval = config.cts_signal_interval.min(depth / 2).max(1);
        Self(Arc::new_cyclic(|me: &Weak<Receiver>| Receiver {
            pool: recv_pool(me, SLOTS + if config.flush { FLUSHES } else { 0 }),
            memory: Registrar::new(core.pds(), config),
            _flow: flow,
            state: Mutex::new(State {
                core,
                seq: Sequence::FIRST,
                slots: vec![slot; SLOTS].into(),
                cts_rail,
                outstanding: 0,
                signal_interval,
                flushes: config.flush.then(|| Flushes::new(SINK / 8)),
            }),
        }))
    }

    /// Registers memory for this comm's receives.
    pub fn register(&self, buffer: Buffer, kind: MemKind) -> Result<Mr> {
        self.0.memory.register(buffer, kind)
    }

    /// Offers a group of 1 to 8 buffers to the sender; `None` where 256 groups are under way.
    pub fn receive<P: NetPlugin<Mr = Mr>>(
        &self,
        buffers: &[RecvBuffer<'_, P>],
    ) -> Result<Option<&Tagged<Request>>> {
        if buffers.is_empty() || buffers.len() > MAX_RECVS {
            return Err(Error::Argument(format!(
                "a group of {} receives: expected 1 to {MAX_RECVS}",
                buffers.len()
            )));
        }
        for b in buffers {
            self.0.memory.check(b.mr, b.buffer)?;
        }
        let mut state = lock(&self.0.state)?;
        state.core.alive()?;
        let slot = state.start(buffers);
        let slot = state.core.settle(slot)?;
        Ok(slot.map(|i| &self.0.pool[i]))
    }

    /// Makes what has arrived in `buffers` visible to the GPU; `None` where nothing has to be done for that, which is
    /// always so without `MPIB_FLUSH=1`.
    pub fn flush(&self, buffers: &[(Buffer, Option<&Mr>)]) -> Result<Option<&Tagged<Request>>> {
        for (buffer, mr) in buffers {
            self.0.memory.check(*mr, *buffer)?;
        }
        if self.0.pool.len() == SLOTS {
            return Ok(None);
        }
        let Some(target) = flush::target(buffers) else { return Ok(None) };
        let mut state = lock(&self.0.state)?;
        let State { core, flushes: Some(flushes), .. } = &mut *state else { return Ok(None) };
        core.alive()?;
        let Some(index) = flushes.begin()? else { return Ok(None) };
        let posted = flushes.post(core, index, target);
        core.settle(posted)?;
        core.stats.request(None);
        Ok(Some(&self.0.pool[SLOTS + usize::from(index)]))
    }

    /// Takes leave of the peer.
    pub fn close(self) -> Result<()> {
        lock(&self.0.state)?.core.peer.leave();
        Ok(())
    }
}

impl Receiver {
    pub(super) fn test(&self, index: usize) -> Result<Option<Sizes>> {
        match index.checked_sub(SLOTS) {
            None => test(&self.state, index),
            Some(flush) => Ok(self.flushed(flush)?.then(Sizes::default)),
        }
    }

    /// `test` of a flush. The peer has no part in it, so that it may be gone.
    fn flushed(&self, index: usize) -> Result<bool> {
        let mut state = lock(&self.state)?;
        if state.take_flushed(index)? {
            return Ok(true);
        }
        state.core.alive()?;
        let polled = state.poll();
        state.core.settle(polled)?;
        state.take_flushed(index)
    }
}

impl Progress for State {
    const OWED: &'static str = "receives";

    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The sizes of a group that is done; its slot is free again.
    fn take_done(&mut self, slot: usize) -> Result<Option<Sizes>> {
        let slot = &mut self.slots[slot];
        match slot.state {
            SlotState::Outstanding => Ok(None),
            SlotState::Free => {
                Err(Error::Argument("the receive was already done: its request is no longer valid".into()))
            }
            SlotState::Done => {
                slot.state = SlotState::Free;
                self.core.stats.done(slot.count, slot.bytes[..slot.count].iter().sum());
                match slot.count {
                    1 => Ok(Some(Sizes::one(slot.bytes[0]))),
                    count => Ok(Sizes::new(&slot.bytes[..count])),
                }
            }
        }
    }

    /// Takes what completed on every rail, and posts receives for what was used up.
    fn poll(&mut self) -> Result<()> {
        self.drain()?;
        self.refill()
    }

    fn completed(&mut self, rail: usize, completion: &Completion) -> Result<()> {
        let on = &mut self.core.rails[rail];
        match (completion.kind, Work::of(completion.wr_id)) {
            (Kind::Arrived(word), _) => {
                on.arrived();
                self.core.stats.arrived(rail);
                self.arrived(rail, word)
            }
            (Kind::Sent, Work::Flush { index }) => {
                self.flushes.iter_mut().for_each(|flushes| flushes.read(rail, index));
                let known = on.flush.as_mut().map_or(Ok(0), Lane::sent)?;
                self.core.stats.completed(rail, known);
                Ok(())
            }
            (Kind::Sent, Work::Cts) => {
                let known = on.lanes[CTS_LANE].sent()?;
                self.core.stats.completed(rail, known);
                Ok(())
            }
            (kind, work) => {
                Err(Error::Internal(format!("a receiver's queue completed {kind:?} as {work:?}")))
            }
        }
    }
}

impl State {
    fn start<P: NetPlugin<Mr = Mr>>(&mut self, buffers: &[RecvBuffer<'_, P>]) -> Result<Option<usize>> {
        let index = usize::from(self.seq.slot());
        if self.slots[index].state != SlotState::Free {
            return Ok(self.core.stats.no_room());
        }
        if self.cts_lane().room() == 0 {
            self.poll()?;
        }
        self.refill()?;
        let ready =
            |r: &super::rail::Rail| r.receives.as_ref().is_some_and(|s| s.posted() > self.outstanding);
        if self.cts_lane().room() == 0 || !self.core.rails.iter().all(ready) {
            return Ok(self.core.stats.no_room());
        }
        let mut bytes = [0; MAX_RECVS];
        for (i, b) in buffers.iter().enumerate() {
            bytes[i] = b.buffer.len;
            let cts = Cts {
                addr: b.buffer.addr as u64,
                size: b.buffer.len as u64,
                rkeys: b.mr.map_or([0; crate::proto::MAX_RAILS], Mr::rkeys),
                tag: b.tag,
                count: buffers.len() as u8,
                index: i as u8,
                seq: self.seq.number(),
            };
            self.stage(i, &cts);
        }
        // The slot is ready for its arrivals before the peer can know of it.
        self.slots[index] = Slot {
            state: SlotState::Outstanding,
            count: buffers.len(),
            bytes,
            arrivals: Arrivals::default(),
            size: SizeQ::RECORD,
        };
        self.outstanding += 1;
        self.post_cts(buffers.len())?;
        self.seq = self.seq.next();
        self.core.stats.request(None);
        Ok(Some(index))
    }

    fn take_flushed(&mut self, index: usize) -> Result<bool> {
        let done = self.flushes.as_mut().map_or(Ok(false), |flushes| flushes.take_done(index))?;
        if done {
            self.core.stats.done(0, 0);
        }
        Ok(done)
    }

    fn cts_lane(&self) -> &Lane {
        &self.core.rails[self.cts_rail].lanes[CTS_LANE]
    }

    /// Puts a CTS entry where the CTS write takes it from.
    fn stage(&self, index: usize, cts: &Cts) {
        let start = (RECORDS_BYTES + self.seq.cts_offset(index)) / 8;
        for (word, bytes) in self.core.region.words()[start..].iter().zip(cts.encode().chunks_exact(8)) {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(number), Ordering::Relaxed);
        }
    }

    /// One write carries the entries of the whole group.
    fn post_cts(&mut self, count: usize) -> Result<()> {
        let offset = self.seq.cts_offset(0);
        let bytes = count * CTS_BYTES;
        let start = (RECORDS_BYTES + offset) / 8;
        let Core { rails, region, remote, chain, .. } = &mut self.core;
        let lane = &mut rails[self.cts_rail].lanes[CTS_LANE];
        let lkey = region.mrs()[self.cts_rail].lkey();
        let local = Local { addr: region.addr(start) as u64, len: bytes as u32, lkey };
        let to = Remote { addr: remote.addr + offset as u64, rkey: remote.rkeys[self.cts_rail] };
        let signalled = lane.uncovered() + 1 >= self.signal_interval;
        let signal = signalled.then_some(Work::Cts.id());
        chain.clear();
        let fitted = if bytes <= lane.inline().min(INLINE) {
            let mut entry = [0; INLINE];
            copy_words(&mut entry[..bytes], &region.words()[start..]);
            chain.write_inline(&entry[..bytes], to, signal)
        } else {
            chain.write(Some(local), to, None, signal)
        };
        if !fitted {
            return Err(Error::Internal("a CTS write did not fit into its chain".into()));
        }
        lane.post(chain, signalled)?;
        self.core.stats.posted(self.cts_rail, 1, 0, 0);
        Ok(())
    }

    /// Keeps enough receives posted for every slot that is under way, and one more.
    fn refill(&mut self) -> Result<()> {
        let needed = self.outstanding + 1;
        self.core.rails.iter_mut().filter_map(|r| r.receives.as_mut()).try_for_each(|r| r.refill(needed))
    }

    /// Takes one immediate of the peer. Whatever is wrong with it is the peer's doing.
    fn arrived(&mut self, rail: usize, word: u32) -> Result<()> {
        let wrong = |what: String| {
            let at = format!("rail {rail}, immediate {word:#010x}, from {}", self.core.peer.name());
            Err(Error::Protocol(format!("{what} ({at})")))
        };
        let Some(imm) = self.core.layout.decode(word) else {
            return wrong("an immediate that no sender of ours makes".into());
        };
        let slot = &mut self.slots[usize::from(imm.slot)];
        if slot.state != SlotState::Outstanding {
            return wrong(format!("data arrived for slot {}, where no receive waits", imm.slot));
        }
        if slot.arrivals.seen() != 0 && slot.size != imm.size {
            return wrong(format!(
                "slot {}: rails tell different sizes, {:?} and {:?}",
                imm.slot, slot.size, imm.size
            ));
        }
        if slot.count > 1 && imm.size != SizeQ::RECORD {
            return wrong(format!("slot {}: a group of {} receives was told one size", imm.slot, slot.count));
        }
        slot.size = imm.size;
        self.flushes.iter_mut().for_each(|flushes| flushes.carried(rail));
        match slot.arrivals.on_arrival(imm.mask, rail as u8) {
            Step::Waiting => return Ok(()),
            Step::Violation(why) => return wrong(format!("slot {}: {why}", imm.slot)),
            Step::Complete => {}
        }
        match imm.size.bytes() {
            Some(size) if size > slot.bytes[0] => {
                let room = slot.bytes[0];
                return wrong(format!("slot {}: {size} bytes came for a receive of {room}", imm.slot));
            }
            Some(size) => slot.bytes[0] = size,
            None => {
                let record = read_record(&self.core, imm.slot);
                match Record::decode(&record, &slot.bytes[..slot.count]) {
                    Ok(record) => slot.bytes[..slot.count].copy_from_slice(record.sizes()),
                    Err(e) => return wrong(format!("slot {}: {e}", imm.slot)),
                }
            }
        }
        slot.state = SlotState::Done;
        self.outstanding -= 1;
        Ok(())
    }
}

/// The completion record of a slot. The leader's immediate came after it.
fn read_record(core: &Core, slot: u8) -> [u8; RECORD_BYTES] {
    let start = usize::from(slot) * RECORD_BYTES / 8;
    let mut bytes = [0; RECORD_BYTES];
    copy_words(&mut bytes, &core.region.words()[start..]);
    bytes
}

/// Bytes as they lie in memory.
fn copy_words(bytes: &mut [u8], words: &[AtomicU64]) {
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
    }
}
