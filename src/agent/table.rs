//! All connections of one client: the state of each registration, and the content of its slot. No
//! I/O, time as an argument.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nccl_net_mpib_agent_iface::agent::{ENTRIES, Hint, Register, Request, Response, Snapshot, Status};

use super::conn_id::ConnId;
use super::hint::{Addresses, LatestHint};
use super::options::Options;

/// State of a connection's registration with the present agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not registered yet.
    New,
    /// Its REGISTER has no answer yet.
    Registering,
    /// Has a slot.
    Registered,
    /// Was refused, and is registered again at this time.
    Refused(Status, Instant),
    /// Its DEREGISTER has no answer yet.
    Deregistering,
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
    trouble: Trouble,
    first: Addresses,
    count: usize,
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

#[derive(Debug)]
struct Entry {
    /// Reserved until the agent has dropped the connection.
    _id: Arc<ConnId>,
    addresses: Addresses,
    hint: Arc<LatestHint>,
    stage: Stage,
    /// Its user has dropped the subscription.
    closing: bool,
    /// The last slot. Kept when the agent is lost.
    slot: Option<u8>,
    trouble: Option<(Trouble, Instant)>,
}

impl Entry {
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
}

impl Table {
    pub(super) fn open(&mut self, id: Arc<ConnId>, addresses: Addresses, hint: Arc<LatestHint>) {
        let entry = Entry {
            addresses,
            hint,
            stage: Stage::New,
            closing: false,
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

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of connections in use, and of those that have had a hint.
    pub(super) fn hinted(&self) -> (usize, usize) {
        let used = || self.entries.values().filter(|e| !e.closing);
        (used().count(), used().filter(|e| e.hint.hinted.load(Ordering::Relaxed)).count())
    }

    /// Returns the next request, which then counts as sent. DEREGISTER goes first: it frees slots.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<(u32, Request)> {
        let deregister = |e: &Entry| e.closing && e.stage == Stage::Registered;
        if let Some((&id, entry)) = self.entries.iter_mut().find(|(_, e)| deregister(e)) {
            entry.stage = Stage::Deregistering;
            return Some((id, Request::Deregister { conn_id: id }));
        }
        let due = |e: &Entry| match e.stage {
            Stage::New => true,
            Stage::Refused(_, again) => again <= now,
            _ => false,
        };
        let (&id, entry) = self.entries.iter_mut().find(|(_, e)| due(e))?;
        entry.stage = Stage::Registering;
        let Addresses { sout_src, sout_dst, sup_src, sup_dst } = entry.addresses;
        Some((id, Request::Register(Register { conn_id: id, sout_src, sout_dst, sup_src, sup_dst })))
    }

    /// Handles the answer to the last request for `id`. The error describes an invalid answer.
    pub(super) fn answered(
        &mut self,
        id: u32,
        response: Response,
        now: Instant,
        options: &Options,
    ) -> Result<(), String> {
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        match (entry.stage, response) {
            (Stage::Registering, Response::Registered { status: Status::SUCCESS, slot }) => {
                let slot = u8::try_from(slot).map_err(|_| {
                    format!("a slot {slot} for connection {id:#x}, expected 0 to {}", ENTRIES - 1)
                })?;
                (entry.stage, entry.slot) = (Stage::Registered, Some(slot));
                entry.set_trouble(now, None);
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

    /// Resets all registrations: the agent that had them is lost.
    pub(super) fn agent_lost(&mut self) {
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
                Snapshot::Consistent(hint) if same_pair(&hint, &entry.addresses) => {
                    entry.hint.share.store(hint.share(), Ordering::Relaxed);
                    entry.hint.hinted.store(true, Ordering::Relaxed);
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
            let grace = if trouble.kind() == 0 { now } else { since + options.settle_timeout };
            if grace > now {
                continue;
            }
            let sum = &mut sums[trouble.kind()];
            let (first, mut all) = (sum.is_none(), sum.take());
            let all = all.get_or_insert(Sum { trouble, first: entry.addresses, count: 0, since });
            all.count += 1;
            if !first && since < all.since {
                (all.trouble, all.first, all.since) = (trouble, entry.addresses, since);
            }
            *sum = Some(*all);
        }
        sums
    }
}

fn same_pair(hint: &Hint, addresses: &Addresses) -> bool {
    (hint.src, hint.dst) == (addresses.sout_src, addresses.sout_dst)
}
