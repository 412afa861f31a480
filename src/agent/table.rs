//! All connections of one client: the identifier and the state of each registration, and the content
//! of its slot. No I/O, time as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nccl_net_mpib_agent_iface::agent::memory::Memory;
use nccl_net_mpib_agent_iface::agent::{ENTRIES, Hint, Register, Request, Response, Snapshot, Status};
use parking_lot::Mutex;

use super::Options;
use super::hint::{Addresses, Flow, LatestHint};

/// State of a connection's registration with the present agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not registered yet.
    New,
    /// Its REGISTER has no answer yet.
    Registering,
    /// The agent has given it a slot.
    Registered,
    /// Was refused, and is registered again at this time.
    Refused(Status, Instant),
    /// Its DEREGISTER has no answer yet.
    Deregistering,
}

/// Where the slot of an answer is.
#[derive(Debug, Clone, Copy)]
pub(super) enum AnswerSlot<'a> {
    /// In the hint file, which the client reads.
    File,
    /// In a memory file, which the send path reads.
    Memory(&'a Arc<Memory>),
}

/// Whether a process without connections to register is known to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Attach {
    /// Nobody wants that.
    #[default]
    No,
    /// It is to be sent, unless a REGISTER does the same.
    Wanted,
    /// It has no answer yet.
    Sent,
    /// The agent knows the process.
    Done,
}

#[derive(Debug)]
struct Entry {
    /// Reserved until the agent has dropped the connection.
    _id: Arc<ConnId>,
    addresses: Addresses,
    hint: Arc<LatestHint>,
    stage: Stage,
    /// Its user has dropped the subscription.
    closing: bool,
    /// The memory file that the send path reads.
    memory: Option<Arc<Memory>>,
    /// The last slot in the hint file. Kept when the agent is lost.
    slot: Option<u8>,
    trouble: Option<(Trouble, Instant)>,
}

impl Entry {
    /// Takes the slot of an answer. Returns the memory file that the send path reads no longer. The
    /// error describes an entry of a memory file that is not this connection's.
    fn assign(&mut self, slot: u8, place: AnswerSlot<'_>) -> Result<Option<Arc<Memory>>, String> {
        match place {
            AnswerSlot::File => {
                self.slot = Some(slot);
                if self.memory.is_some() {
                    self.hint.point(None);
                }
                Ok(self.memory.take())
            }
            AnswerSlot::Memory(memory) => {
                if let Some(found) = memory.flow(slot).read()
                    && !self.addresses.own(&found)
                {
                    let Addresses { sout_src, sout_dst, .. } = self.addresses;
                    return Err(format!(
                        "slot {slot} of its memory file is of {} -> {}, expected {sout_src} -> {sout_dst}",
                        found.src, found.dst
                    ));
                }
                self.slot = None;
                let (memory, addresses) = (Arc::clone(memory), self.addresses);
                self.hint.point(Some(Flow { memory: Arc::clone(&memory), slot, addresses }));
                Ok(self.memory.replace(memory))
            }
        }
    }

    fn set_trouble(&mut self, now: Instant, trouble: Option<Trouble>) {
        self.trouble = trouble.map(|new| match self.trouble {
            Some((old, since)) if old.kind() == new.kind() => (new, since),
            _ => (new, now),
        });
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<u32, Entry>,
    attach: Attach,
    /// Memory files of earlier registrations that a connection may still read. They are unmapped by
    /// this thread, never by the send path.
    retired: Vec<Arc<Memory>>,
}

impl Table {
    pub(super) fn open(&mut self, id: Arc<ConnId>, addresses: Addresses, hint: Arc<LatestHint>) {
        let entry = Entry {
            addresses,
            hint,
            stage: Stage::New,
            closing: false,
            memory: None,
            slot: None,
            trouble: None,
            _id: Arc::clone(&id),
        };
        self.entries.insert(id.get(), entry);
    }

    pub(super) fn close(&mut self, id: u32) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.closing = true;
        entry.trouble = None;
        if matches!(entry.stage, Stage::New | Stage::Refused(..)) {
            self.entries.remove(&id);
        }
    }

    /// Connects to the agent even without a connection to register.
    pub(super) fn attach(&mut self) {
        if self.attach == Attach::No {
            self.attach = Attach::Wanted;
        }
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether no agent is needed.
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && self.attach == Attach::No
    }

    /// Whether a connection has its hint in the hint file.
    pub(super) fn reads_file(&self) -> bool {
        self.entries.values().any(|entry| entry.slot.is_some())
    }

    /// Whether an agent has passed a memory file that a connection reads.
    pub(super) fn reads_memory(&self) -> bool {
        self.entries.values().any(|entry| entry.memory.is_some())
    }

    /// Returns when the next refused connection is registered again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let again = |entry: &Entry| match entry.stage {
            Stage::Refused(_, again) => Some(again),
            _ => None,
        };
        self.entries.values().filter_map(again).min()
    }

    /// Unmaps memory files that no connection reads any more.
    pub(super) fn sweep(&mut self) {
        self.retired.retain(|memory| Arc::strong_count(memory) > 1);
    }

    /// Returns the number of connections in use, and of those that have had a hint.
    pub(super) fn hinted(&self) -> (usize, usize) {
        let used = || self.entries.values().filter(|e| !e.closing);
        (used().count(), used().filter(|e| e.hint.hinted.load(Ordering::Relaxed)).count())
    }

    /// Returns the next request, which then counts as sent. DEREGISTER goes first: it frees slots.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Request> {
        let deregister = |e: &Entry| e.closing && e.stage == Stage::Registered;
        if let Some((&id, entry)) = self.entries.iter_mut().find(|(_, e)| deregister(e)) {
            entry.stage = Stage::Deregistering;
            return Some(Request::Deregister { conn_id: id });
        }
        let due = |e: &Entry| match e.stage {
            Stage::New => true,
            Stage::Refused(_, again) => again <= now,
            _ => false,
        };
        let Some((&id, entry)) = self.entries.iter_mut().find(|(_, e)| due(e)) else {
            // A process that registers connections gets the memory file with the first answer.
            let attach = self.attach == Attach::Wanted && self.entries.is_empty();
            return attach.then(|| {
                self.attach = Attach::Sent;
                Request::Attach
            });
        };
        entry.stage = Stage::Registering;
        let Addresses { sout_src, sout_dst, sup_src, sup_dst } = entry.addresses;
        Some(Request::Register(Register { conn_id: id, sout_src, sout_dst, sup_src, sup_dst }))
    }

    /// Has a connection registered again whose REGISTER was just answered.
    pub(super) fn register_again(&mut self, request: &Request) {
        let Request::Register(Register { conn_id, .. }) = request else { return };
        match self.entries.get_mut(conn_id) {
            Some(entry) if entry.closing => drop(self.entries.remove(conn_id)),
            Some(entry) => entry.stage = Stage::New,
            None => {}
        }
    }

    /// Handles the answer to a request. The error describes an invalid answer.
    pub(super) fn answered(
        &mut self,
        request: &Request,
        response: Response,
        place: AnswerSlot<'_>,
        now: Instant,
        options: &Options,
    ) -> Result<(), String> {
        let id = match *request {
            Request::Register(Register { conn_id, .. }) | Request::Deregister { conn_id } => conn_id,
            Request::Attach => return self.attached(response),
        };
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        match (entry.stage, response) {
            (Stage::Registering, Response::Registered { status: Status::SUCCESS, slot }) => {
                let slot = u8::try_from(slot).map_err(|_| {
                    format!("a slot {slot} for connection {id:#x}, expected 0 to {}", ENTRIES - 1)
                })?;
                entry.stage = Stage::Registered;
                entry.set_trouble(now, None);
                self.retired.extend(entry.assign(slot, place)?);
            }
            (Stage::Registering, Response::Registered { status, .. } | Response::Deregistered { status })
                if status != Status::SUCCESS =>
            {
                (entry.stage, entry.slot) = (Stage::Refused(status, now + options.refused_again), None);
                entry.set_trouble(now, Some(Trouble::Refused(status)));
                if entry.closing {
                    self.entries.remove(&id);
                }
            }
            // With any status: an agent that does not know the connection has nothing to drop.
            (Stage::Deregistering, Response::Deregistered { .. }) => {
                self.entries.remove(&id);
            }
            (Stage::Registering, _) => {
                return Err(format!("an answer without a slot to REGISTER of {id:#x}"));
            }
            _ => return Err(format!("an answer with a slot to DEREGISTER of {id:#x}")),
        }
        Ok(())
    }

    fn attached(&mut self, response: Response) -> Result<(), String> {
        match response {
            // Refused: the agent has no memory file.
            Response::Deregistered { .. } => {
                self.attach = Attach::Done;
                Ok(())
            }
            other => Err(format!("{other:?} to ATTACH")),
        }
    }

    /// Resets all registrations: the agent that had them is lost.
    pub(super) fn agent_lost(&mut self) {
        if self.attach != Attach::No {
            self.attach = Attach::Wanted;
        }
        self.entries.retain(|_, e| !e.closing);
        for entry in self.entries.values_mut() {
            (entry.stage, entry.trouble) = (Stage::New, None);
        }
    }

    /// Publishes the hints of the slots.
    pub(super) fn publish(&mut self, slots: &[Snapshot; ENTRIES], now: Instant) {
        for entry in self.entries.values_mut().filter(|e| !e.closing) {
            let Some(slot) = entry.slot else { continue };
            let trouble = match slots[usize::from(slot)] {
                Snapshot::Consistent(hint) if entry.addresses.own(&hint) => {
                    entry.hint.store(hint.share());
                    None
                }
                Snapshot::Consistent(hint) => Some(Trouble::WrongAddresses(slot, hint)),
                Snapshot::Writing(seq) => Some(Trouble::HalfWritten(slot, seq)),
                Snapshot::Changed => None,
            };
            // The slot is of this agent only if it has registered the connection.
            let trouble = trouble.filter(|t| entry.stage == Stage::Registered || t.kind() == 1);
            entry.set_trouble(now, trouble);
        }
    }

    /// Drops the troubles of slots: the file cannot be read.
    pub(super) fn unreadable(&mut self, now: Instant) {
        for entry in self.entries.values_mut().filter(|e| !matches!(e.stage, Stage::Refused(..))) {
            entry.set_trouble(now, None);
        }
    }

    /// Whether the agent has answered for every connection.
    pub(super) fn all_answered(&self) -> bool {
        let open = |e: &Entry| match e.stage {
            Stage::New => true,
            // A connection that was refused before and is registered again is still refused.
            Stage::Registering => !matches!(e.trouble, Some((Trouble::Refused(_), _))),
            Stage::Registered | Stage::Refused(..) | Stage::Deregistering => false,
        };
        !self.entries.values().any(|e| !e.closing && open(e))
    }

    /// Returns the troubles that have lasted long enough to be a fault, by kind.
    pub(super) fn troubles(&self, now: Instant, options: &Options) -> [Option<Sum>; TROUBLES] {
        let mut sums: [Option<Sum>; TROUBLES] = [None; TROUBLES];
        for entry in self.entries.values().filter(|e| !e.closing) {
            let Some((trouble, since)) = entry.trouble else { continue };
            if trouble.kind() != 0 && since + options.settle_timeout > now {
                continue;
            }
            let sum = &mut sums[trouble.kind()];
            let new = Sum { trouble, first: entry.addresses, count: 1, since };
            *sum = Some(match *sum {
                Some(old) if since < old.since => Sum { count: old.count + 1, ..new },
                Some(old) => Sum { count: old.count + 1, ..old },
                None => new,
            });
        }
        sums
    }
}

/// Why one connection gets no new hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The agent has refused a slot.
    Refused(Status),
    /// The slot stays half-written.
    HalfWritten(u8, u32),
    /// The slot has other addresses.
    WrongAddresses(u8, Hint),
}

/// Number of kinds of [`Trouble`].
pub(super) const TROUBLES: usize = 3;

impl Trouble {
    pub(super) fn kind(&self) -> usize {
        match self {
            Self::Refused(_) => 0,
            Self::HalfWritten(..) => 1,
            Self::WrongAddresses(..) => 2,
        }
    }
}

/// The troubles of one kind, over all connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub(super) trouble: Trouble,
    pub(super) first: Addresses,
    pub(super) count: usize,
    /// When the first of them began.
    pub(super) since: Instant,
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Addresses { sout_src, sout_dst, .. } = self.first;
        match self.trouble {
            Trouble::Refused(status) => {
                let meaning = status.meaning();
                write!(
                    f,
                    "the agent gives {sout_src} -> {sout_dst} no slot: status {}, {meaning}",
                    status.0
                )?;
            }
            Trouble::HalfWritten(slot, seq) => {
                write!(
                    f,
                    "slot {slot}, of {sout_src} -> {sout_dst}, stays half-written (sequence number {seq}): "
                )?;
                f.write_str("its writer has stopped in the middle")?;
            }
            Trouble::WrongAddresses(slot, found) => {
                let (src, dst) = (found.src, found.dst);
                write!(f, "slot {slot} is of {src} -> {dst}, expected {sout_src} -> {sout_dst}")?;
            }
        }
        match self.count {
            1 => Ok(()),
            n => write!(f, "; likewise {} more", n - 1),
        }
    }
}

// Identifiers. The field has 32 bits and a process id alone needs up to 22: no rule makes identifiers
// unique on a host. Within a process they are always unique. The first 1024 of a process begin with
// its process id: they are also unique among processes of one PID namespace, for agents that do not
// distinguish sockets.

/// An identifier that no other connection of this process has until it is dropped.
#[derive(Debug)]
pub(super) struct ConnId {
    id: u32,
    ids: ConnIds,
}

/// Number of identifiers that begin with the process id.
const OWN: u32 = 1 << 10;

#[derive(Debug, Default)]
struct Reserved {
    ids: BTreeSet<u32>,
    /// Where the search begins. Not at one that was just released: a late answer about it must find
    /// no connection.
    next: u32,
}

impl Reserved {
    fn reserve(&mut self, pid: u32) -> u32 {
        let (first, next) = (pid.wrapping_mul(OWN), self.next);
        let own = (0..OWN).map(|i| first.wrapping_add((next + i) % OWN));
        // Then those of process ids far from this one.
        let others = (OWN..=u32::MAX).map(|i| first.wrapping_sub(i));
        let id = own.chain(others).find(|id| !self.ids.contains(id)).unwrap_or(first);
        self.ids.insert(id);
        self.next = id.wrapping_sub(first).wrapping_add(1) % OWN;
        id
    }
}

/// The identifiers of one process.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnIds(Arc<Mutex<Reserved>>);

impl ConnIds {
    /// Reserves an identifier.
    pub(super) fn reserve(&self) -> ConnId {
        ConnId { id: self.0.lock().reserve(std::process::id()), ids: self.clone() }
    }
}

impl ConnId {
    pub(super) fn get(&self) -> u32 {
        self.id
    }
}

impl Drop for ConnId {
    fn drop(&mut self) {
        self.ids.0.lock().ids.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_unique_while_they_live_and_begin_with_the_process_id() {
        for pid in [1, 65_536, 4_194_303] {
            let mut reserved = Reserved { ids: BTreeSet::new(), next: 0 };
            let first = reserved.reserve(pid);
            reserved.ids.remove(&first);
            assert_ne!(first, reserved.reserve(pid), "one that was given back is not the next");
            let many: Vec<u32> = (1..3000).map(|_| reserved.reserve(pid)).collect();
            assert_eq!(reserved.ids.len(), 3000, "no two are the same");
            assert_eq!(reserved.ids.iter().filter(|id| *id / OWN == pid).count(), OWN as usize);
            reserved.ids.remove(&many[17]);
            assert_eq!(reserved.reserve(pid), many[17], "the only free one with this process id");
        }
    }

    #[test]
    fn a_dropped_identifier_is_free() {
        let ids = ConnIds::default();
        let (one, other) = (ids.reserve(), ids.reserve());
        let n = one.get();
        assert!(n != other.get() && ids.0.lock().ids.contains(&n));
        drop(one);
        assert!(!ids.0.lock().ids.contains(&n));
    }
}
