//! The sending end of a connection.

use std::sync::{Arc, Mutex, Weak};

use nccl_net_versions::{Buffer, MemKind, Sizes, Tagged};

use super::core::{Core, Progress, lock, rails_of, test};
use super::fifo::{self, NO_CTS};
use super::mr::{Mr, Registrar};
use super::rail::Work;
use super::request::{Pool, REQUESTS, Request, send_pool};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::proto::{
    Cts, FIFO_BYTES, MAX_RAILS, MAX_RECVS, RECORD_BYTES, Record, SLOTS, Sequence, SizeQ, Split,
};
use crate::verbs::{Kind, Local, Remote};

/// Bytes of a sender's control memory: the FIFO that the receiver writes into, and one record per slot to send from.
pub(super) const MEMORY_BYTES: usize = FIFO_BYTES + SLOTS * RECORD_BYTES;

/// A sending comm.
#[derive(Debug)]
pub struct SendComm(Arc<Sender>);

/// What the comm and its requests share.
#[derive(Debug)]
pub(super) struct Sender {
    pool: Pool,
    memory: Registrar,
    max_message: usize,
    // Only NCCL's progress thread takes it; registration does not.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    core: Core,
    policy: Policy,
    seq: Sequence,
    group: Group,
    sends: Box<[Send]>,
    free: Vec<usize>,
    /// Groups in flight, by slot.
    flights: Box<[Flight]>,
}

/// The group of receives whose turn it is.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Receives in it; 0 while its CTS has not come.
    count: usize,
    cts: [Cts; MAX_RECVS],
    /// Which send meets which receive.
    sends: [Option<usize>; MAX_RECVS],
    met: usize,
}

/// One send. All that is needed to post it again is kept until it is complete.
#[derive(Debug, Clone, Copy)]
struct Send {
    state: SendState,
    buffer: Buffer,
    lkeys: [u32; MAX_RAILS],
    cts: Cts,
    split: Option<Split>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    Free,
    UnderWay,
    Done,
}

/// A posted group.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// Rails whose completion has not come.
    pending: u8,
    count: usize,
    sends: [usize; MAX_RECVS],
}

const NO_GROUP: Group = Group { count: 0, cts: [NO_CTS; MAX_RECVS], sends: [None; MAX_RECVS], met: 0 };
const NO_SEND: Send = Send {
    state: SendState::Free,
    buffer: Buffer { addr: 0, len: 0 },
    lkeys: [0; MAX_RAILS],
    cts: NO_CTS,
    split: None,
};

impl SendComm {
    pub(super) fn new(core: Core, policy: Policy, config: &Config) -> Self {
        Self(Arc::new_cyclic(|me: &Weak<Sender>| Sender {
            pool: send_pool(me),
            memory: Registrar::new(core.pds(), config),
            max_message: core.max_message(),
            state: Mutex::new(State {
                core,
                policy,
                seq: Sequence::FIRST,
                group: NO_GROUP,
                sends: vec![NO_SEND; REQUESTS].into(),
                free: (0..REQUESTS).rev().collect(),
                flights: vec![Flight::default(); SLOTS].into(),
            }),
        }))
    }

    /// Registers memory for this comm's sends.
    pub fn register(&self, buffer: Buffer, kind: MemKind) -> Result<Mr> {
        self.0.memory.register(buffer, kind)
    }

    /// Starts a send to the receive with `tag` of the group whose turn it is; `None` where there is none yet,
    /// or no room for more.
    pub fn send(&self, buffer: Buffer, tag: i32, mr: Option<&Mr>) -> Result<Option<&Tagged<Request>>> {
        let mr = self.0.memory.check(mr, buffer)?;
        if buffer.len > self.0.max_message {
            return Err(Error::Usage(format!(
                "a send of {} bytes: the largest message of these ports is {}",
                buffer.len, self.0.max_message
            )));
        }
        let mut state = lock(&self.0.state)?;
        state.core.alive()?;
        let index = state.start(buffer, tag, mr);
        let index = state.core.settle(index)?;
        Ok(index.map(|i| &self.0.pool[i]))
    }

    /// Takes leave of the peer.
    pub fn close(self) -> Result<()> {
        lock(&self.0.state)?.core.peer.leave();
        Ok(())
    }
}

impl Sender {
    pub(super) fn test(&self, index: usize) -> Result<Option<Sizes>> {
        test(&self.state, index)
    }
}

impl Progress for State {
    const OWED: &'static str = "sends";

    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The size of a send that is done; its place is free again.
    fn take_done(&mut self, index: usize) -> Result<Option<Sizes>> {
        let send = &mut self.sends[index];
        match send.state {
            SendState::UnderWay => Ok(None),
            SendState::Free => {
                Err(Error::Argument("the send was already done: its request is no longer valid".into()))
            }
            SendState::Done => {
                send.state = SendState::Free;
                let size = send.buffer.len;
                self.free.push(index);
                self.core.stats.done(1, size);
                Ok(Some(Sizes::one(size)))
            }
        }
    }

    fn completed(&mut self, rail: usize, completion: &crate::verbs::Completion) -> Result<()> {
        let on = &mut self.core.rails[rail];
        match (completion.kind, Work::of(completion.wr_id)) {
            (Kind::Sent, Work::Data { slot }) => {
                let known = on.lane_mut(slot).sent()?;
                self.core.stats.completed(rail, known);
                let flight = &mut self.flights[usize::from(slot)];
                if flight.pending >> rail & 1 == 0 {
                    return Err(Error::Internal(format!("slot {slot} completed twice on rail {rail}")));
                }
                flight.pending &= !(1 << rail);
                if flight.pending == 0 {
                    for index in &flight.sends[..flight.count] {
                        self.sends[*index].state = SendState::Done;
                    }
                }
                Ok(())
            }
            (kind, work) => Err(Error::Internal(format!("a sender's queue completed {kind:?} as {work:?}"))),
        }
    }
}

impl State {
    fn start(&mut self, buffer: Buffer, tag: i32, mr: Option<&Mr>) -> Result<Option<usize>> {
        if self.group.count == 0 {
            // In place: a group is too large to be moved for each message.
            let Some(count) = fifo::group(self.core.region.words(), self.seq, &mut self.group.cts)? else {
                self.core.peer.look("sends")?;
                return Ok(self.core.stats.no_receive());
            };
            self.group.sends[..count].fill(None);
            (self.group.count, self.group.met) = (count, 0);
        }
        let meets = |i: &usize| self.group.sends[*i].is_none() && self.group.cts[*i].tag == tag;
        let Some(place) = (0..self.group.count).find(meets) else { return Ok(self.core.stats.no_receive()) };
        let cts = &self.group.cts[place];
        if buffer.len as u64 > cts.size {
            return Err(Error::Usage(format!(
                "a send of {} bytes with tag {tag} meets a receive of {} bytes: nothing was sent",
                buffer.len, cts.size
            )));
        }
        let share = self.policy.share(buffer.len);
        let split = self.policy.split_by(buffer.len, share);
        if split.is_none() {
            return Err(Error::Internal("the policy has no rail".into()));
        }
        let Some(index) = self.free.pop() else { return Ok(self.core.stats.no_room()) };
        let send = &mut self.sends[index];
        (send.state, send.buffer, send.split) = (SendState::UnderWay, buffer, split);
        send.lkeys = mr.map_or([0; MAX_RAILS], Mr::lkeys);
        send.cts = *cts;
        self.group.sends[place] = Some(index);
        self.group.met += 1;
        if self.group.met < self.group.count || self.post_group()? {
            self.core.stats.request(share);
            return Ok(Some(index));
        }
        // No room in a send queue: as if this send had not been.
        self.group.sends[place] = None;
        self.group.met -= 1;
        self.sends[index].state = SendState::Free;
        self.free.push(index);
        Ok(self.core.stats.no_room())
    }

    /// Posts the group whose sends are all there; `false` where a queue has no room for it yet.
    fn post_group(&mut self) -> Result<bool> {
        let count = self.group.count;
        let slot = self.seq.slot();
        let mut mask = 0;
        let mut sizes = [0; MAX_RECVS];
        let mut flight = Flight { pending: 0, count, sends: [0; MAX_RECVS] };
        for (i, index) in self.group.sends[..count].iter().enumerate() {
            let index =
                index.ok_or_else(|| Error::Internal("a group is posted before it is whole".into()))?;
            let send = &self.sends[index];
            flight.sends[i] = index;
            sizes[i] = send.buffer.len;
            mask |= send.split.filter(|_| send.buffer.len > 0).map_or(0, |s| s.mask());
        }
        if mask == 0 {
            // Nothing but empty sends: where they go is the policy's matter too.
            mask = self.policy.split(0).map_or(1, |s| s.mask());
        }
        let size = if count == 1 { self.core.layout.size(sizes[0]) } else { SizeQ::RECORD };
        let fast = count == 1 && size.bytes().is_some();
        if !self.fits(mask, fast, &flight) {
            self.poll()?;
            if !self.fits(mask, fast, &flight) {
                return Ok(false);
            }
        }
        if !fast {
            self.stage_record(&sizes[..count])?;
        }
        // All that a completion can touch is in place before anything can complete.
        flight.pending = mask;
        self.flights[usize::from(slot)] = flight;
        let imm = self.core.layout.encode(slot, mask, size);
        for rail in rails_of(mask) {
            let bytes = self.fill_chain(rail, &flight, fast, imm, mask.trailing_zeros() as usize == rail)?;
            let Core { rails, chain, stats, .. } = &mut self.core;
            let n = chain.len();
            rails[rail].lane_mut(slot).post(chain, true)?;
            stats.posted(rail, n, if fast { n } else { n - 1 }, bytes);
        }
        self.seq = self.seq.next();
        self.group.count = 0;
        Ok(true)
    }

    /// Whether the slot is free and its lane on every rail of `mask` has room for its part.
    fn fits(&self, mask: u8, fast: bool, flight: &Flight) -> bool {
        let slot = self.seq.slot();
        if self.flights[usize::from(slot)].pending != 0 {
            return false;
        }
        rails_of(mask).all(|rail| {
            let parts =
                flight.sends[..flight.count].iter().filter(|i| self.sends[**i].bytes(rail) > 0).count();
            self.core.rails[rail].lane(slot).room() >= if fast { 1 } else { parts + 1 }
        })
    }

    /// One rail's work requests for a group: on the fast path one, else a write per part and the signalling one. Gives
    /// their bytes of messages.
    fn fill_chain(
        &mut self,
        rail: usize,
        flight: &Flight,
        fast: bool,
        imm: u32,
        leader: bool,
    ) -> Result<usize> {
        let Core { chain, region, remote, .. } = &mut self.core;
        chain.clear();
        let signal = Some(Work::Data { slot: self.seq.slot() }.id());
        let (mut fitted, mut bytes) = (true, 0);
        for index in &flight.sends[..flight.count] {
            let send = &self.sends[*index];
            let Some(part) = send.split.and_then(|s| s.parts().find(|p| p.rail == rail)) else { continue };
            let local = Local {
                addr: (send.buffer.addr + part.offset) as u64,
                len: u32::try_from(part.len)
                    .map_err(|_| Error::Internal("a part of more than 4 GiB".into()))?,
                lkey: send.lkeys[rail],
            };
            let local = (part.len > 0).then_some(local);
            bytes += part.len;
            let to =
                Remote { addr: send.cts.addr.wrapping_add(part.offset as u64), rkey: send.cts.rkeys[rail] };
            if fast {
                fitted &= chain.write(local, to, Some(imm), signal);
            } else if part.len > 0 {
                fitted &= chain.write(local, to, None, None);
            }
        }
        if !fast {
            let offset = self.seq.record_offset();
            let record = Local {
                addr: region.addr((FIFO_BYTES + offset) / 8) as u64,
                len: RECORD_BYTES as u32,
                lkey: region.mrs()[rail].lkey(),
            };
            let to = Remote { addr: remote.addr + offset as u64, rkey: remote.rkeys[rail] };
            fitted &= chain.write(leader.then_some(record), to, Some(imm), signal);
        }
        if fitted {
            Ok(bytes)
        } else {
            Err(Error::Internal("a group needs more work requests than a chain has".into()))
        }
    }

    /// Puts the sizes where the leader's signalling write takes them from.
    fn stage_record(&self, sizes: &[usize]) -> Result<()> {
        let record = Record::new(sizes).map_err(|e| Error::Internal(e.to_string()))?.encode();
        let start = (FIFO_BYTES + self.seq.record_offset()) / 8;
        for (word, bytes) in self.core.region.words()[start..].iter().zip(record.chunks_exact(8)) {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(number), std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Send {
    fn bytes(&self, rail: usize) -> usize {
        self.split.map_or(0, |s| s.bytes(rail))
    }
}
