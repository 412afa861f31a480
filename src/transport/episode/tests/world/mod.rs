//! The fabric, both ends, and the receiver's memory.

mod exchange;
mod returns;

use std::collections::{BTreeMap, VecDeque};

use crate::proto::{Arrivals, Message, Replay, Step, rails};
use crate::transport::episode::{ReceiverAttempts, ReceiverEpisodes, SenderAttempts, SenderEpisodes};

/// Groups in flight.
const WINDOW: u64 = 4;
/// Buffers that NCCL offers in turn.
const BUFFERS: u64 = 3;
/// Groups of a run.
const GROUPS: u64 = 24;

/// A write of the sender.
#[derive(Debug, Clone, Copy)]
struct Write {
    seq: u64,
    part: u8,
    mask: u8,
    replay: Option<Replay>,
    /// Its data is in memory, and its immediate has not arrived.
    placed: bool,
}

/// One rail, as the fabric and both ends see it.
#[derive(Debug, Default)]
struct Rail {
    /// The fabric is cut.
    cut: bool,
    /// The queue pairs of the ends are destroyed.
    no_sender: bool,
    no_receiver: bool,
    /// The receiver uses it again, and the sender, whose queue pair exists, does not know.
    half: bool,
    /// Writes on their way, and CTS entries on theirs.
    writes: VecDeque<Write>,
    entries: VecDeque<u64>,
    /// Arrived, and not polled by the receiver.
    arrived: VecDeque<Write>,
    /// Arrived, and not known to the sender.
    unacknowledged: VecDeque<Write>,
}

/// A group at the sender.
#[derive(Debug, Clone, Copy)]
struct Sent {
    mask: u8,
    pending: u8,
}

/// A group at the receiver.
#[derive(Debug, Clone, Copy)]
struct Offered {
    buffer: u64,
    optional: bool,
    arrivals: Arrivals,
    whole: bool,
}

pub(super) struct World {
    n: u8,
    rails: Vec<Rail>,
    // The sender.
    sender: SenderEpisodes,
    attempts: SenderAttempts,
    sender_works: bool,
    next: u64,
    sent: BTreeMap<u64, Sent>,
    entries: u64,
    // The receiver.
    receiver: ReceiverEpisodes,
    answers: ReceiverAttempts,
    receiver_works: bool,
    offered: BTreeMap<u64, Offered>,
    offer_next: u64,
    cts_rail: usize,
    /// No rail carries entries: those from this group on are written when one does.
    unwritten: Option<u64>,
    /// Rails that have come back.
    returned: u32,
    // Memory: by buffer and part, the group whose bytes are there. The owner of each buffer.
    memory: BTreeMap<(u64, u8), u64>,
    owner: BTreeMap<u64, u64>,
    to_receiver: VecDeque<Message>,
    to_sender: VecDeque<Message>,
}

impl World {
    pub(super) fn new(n: u8) -> Self {
        Self {
            n,
            rails: (0..n).map(|_| Rail::default()).collect(),
            sender: SenderEpisodes::default(),
            attempts: SenderAttempts::default(),
            sender_works: false,
            next: 1,
            sent: BTreeMap::new(),
            entries: 0,
            receiver: ReceiverEpisodes::default(),
            answers: ReceiverAttempts::default(),
            receiver_works: false,
            offered: BTreeMap::new(),
            offer_next: 1,
            cts_rail: 0,
            unwritten: None,
            returned: 0,
            memory: BTreeMap::new(),
            owner: BTreeMap::new(),
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
        }
    }

    fn all(&self) -> u8 {
        ((1u16 << self.n) - 1) as u8
    }

    /// Does one thing that may happen now, chosen by `choice`.
    pub(super) fn step(&mut self, choice: u32) {
        let rail = (choice >> 8) as usize % self.rails.len();
        match choice % 22 {
            0 | 1 => self.offer(choice >> 16),
            2 | 3 => self.send(choice >> 16),
            4..=6 => self.deliver(rail, choice >> 16),
            7 => self.deliver_entry(rail),
            8 => self.poll(rail),
            9 => self.acknowledge(rail),
            10 if choice >> 16 & 7 == 0 => self.cut(rail),
            11 => self.sender_notices(rail),
            12 => self.receiver_notices(rail),
            13 => self.sender_receives(choice >> 16),
            14 => self.receiver_receives(choice >> 16),
            15 => self.give_back(),
            16 => self.rails[rail].cut = false,
            17 => self.begin_return(rail),
            18 => self.sender_works(),
            19 => self.receiver_works(),
            20 => self.move_entries(rail),
            21 => self.post_again(choice >> 16),
            _ => {}
        }
    }

    fn is_outstanding(&self, seq: u64) -> bool {
        self.offered.get(&seq).is_some_and(|group| !group.whole)
    }

    fn offer(&mut self, how: u32) {
        let (seq, buffer) = (self.offer_next, self.offer_next % BUFFERS);
        let slot_is_free = seq <= WINDOW || !self.is_outstanding(seq - WINDOW);
        if seq > GROUPS
            || !slot_is_free
            || self.receiver.blocks_offers()
            || self.unwritten.is_some()
            || self.owner.contains_key(&buffer)
        {
            return;
        }
        self.offer_next += 1;
        self.owner.insert(buffer, seq);
        let optional = how & 1 == 1;
        self.offered.insert(seq, Offered { buffer, optional, arrivals: Arrivals::NONE, whole: false });
        self.rails[self.cts_rail].entries.push_back(seq);
    }

    fn send(&mut self, how: u32) {
        let seq = self.next;
        let slot_is_free =
            seq <= WINDOW || self.sent.get(&(seq - WINDOW)).is_none_or(|sent| sent.pending == 0);
        let living = self.living_at_the_sender();
        if seq > self.entries || self.sender.is_awaiting() || !slot_is_free || living.is_empty() {
            return;
        }
        let wanted = living.iter().fold(0u8, |mask, r| mask | ((how >> *r as u32 & 1) as u8) << r);
        let mask = if wanted == 0 { 1 << living[0] } else { wanted };
        self.next += 1;
        self.sent.insert(seq, Sent { mask, pending: mask });
        for part in rails(mask) {
            self.rails[part].writes.push_back(Write {
                seq,
                part: part as u8,
                mask,
                replay: None,
                placed: false,
            });
        }
    }

    fn living_at_the_sender(&self) -> Vec<usize> {
        (0..self.rails.len()).filter(|r| self.sender.dead() >> r & 1 == 0).collect()
    }

    /// A write arrives. One of a cut rail may, as long as the receiver's queue pair exists, also
    /// without the packet that carries the immediate.
    fn deliver(&mut self, rail: usize, how: u32) {
        if self.rails[rail].no_receiver {
            return;
        }
        let Some(write) = self.rails[rail].writes.pop_front() else { return };
        if !write.placed {
            self.place(write);
        }
        if self.rails[rail].cut && how & 1 == 1 {
            // The adapter goes on with the immediate if its queue pair lives for long enough.
            return self.rails[rail].writes.push_front(Write { placed: true, ..write });
        }
        self.rails[rail].arrived.push_back(write);
        if !self.rails[rail].no_sender {
            self.rails[rail].unacknowledged.push_back(write);
        }
    }

    /// The data of a write arrives.
    fn place(&mut self, write: Write) {
        let buffer = write.seq % BUFFERS;
        match self.owner.get(&buffer) {
            // The same bytes again, into a buffer that NCCL has not offered again.
            None => {
                assert_eq!(self.memory.get(&(buffer, write.part)), Some(&write.seq), "{write:?}: given back")
            }
            owner => assert_eq!(owner, Some(&write.seq), "{write:?}: the buffer is another group's"),
        }
        self.memory.insert((buffer, write.part), write.seq);
    }

    /// A CTS entry arrives, as long as the sender's queue pair exists.
    fn deliver_entry(&mut self, rail: usize) {
        if self.rails[rail].no_sender {
            return;
        }
        if let Some(seq) = self.rails[rail].entries.pop_front() {
            assert!(seq <= self.entries + 1, "entry {seq} comes after {}", self.entries);
            self.entries = self.entries.max(seq);
        }
    }

    fn poll(&mut self, rail: usize) {
        let Some(write) = self.rails[rail].arrived.pop_front() else { return };
        let Some(group) = self.offered.get_mut(&write.seq) else { panic!("{write:?} was not offered") };
        assert!(!group.whole, "{write:?} for a whole group");
        group.whole = match write.replay {
            Some(replay) => {
                assert!(self.receiver.arrived(replay), "{write:?} was not requested");
                group.arrivals.add(1 << write.part)
            }
            None => match group.arrivals.on_arrival(write.mask, rail as u8) {
                Step::Violation(why) => panic!("{write:?}: {why}"),
                step => step == Step::Complete,
            },
        };
    }

    fn acknowledge(&mut self, rail: usize) {
        if self.rails[rail].cut || self.rails[rail].no_sender {
            return;
        }
        if let Some(write) = self.rails[rail].unacknowledged.pop_front() {
            let sent = self.sent.get_mut(&write.seq).unwrap();
            assert!(sent.pending >> write.part & 1 == 1, "{write:?} completes twice");
            sent.pending &= !(1 << write.part);
        }
    }

    fn cut(&mut self, rail: usize) {
        self.rails[rail].cut = true;
    }

    /// NCCL gets buffers back: of whole groups, and of optional receives whose data is in memory.
    fn give_back(&mut self) {
        let owned: Vec<_> = self.owner.iter().map(|(buffer, seq)| (*buffer, *seq)).collect();
        for (buffer, seq) in owned {
            let group = self.offered[&seq];
            let here = |part: usize| self.memory.get(&(buffer, part as u8)) == Some(&seq);
            let mask = self.sent.get(&seq).map_or(0, |sent| sent.mask);
            let arrived = mask != 0 && rails(mask).all(here);
            assert!(!group.whole || arrived, "group {seq} is whole and its bytes are not here");
            // NCCL does not offer the buffer again before the optional receive may be used again.
            if group.whole || group.optional && arrived {
                self.owner.remove(&buffer);
            }
        }
    }

    /// Lets everything happen that still can, and no more faults but those that have begun. All rails
    /// come back.
    pub(super) fn settle(&mut self) {
        for round in 0..GROUPS * 8 {
            self.sender_works();
            self.receiver_works();
            for rail in 0..self.rails.len() {
                self.sender_notices(rail);
                self.receiver_notices(rail);
                self.rails[rail].cut &= round < GROUPS;
                self.begin_return(rail);
                self.move_entries(rail);
                if !self.rails[rail].cut {
                    while !self.rails[rail].entries.is_empty() && !self.rails[rail].no_sender {
                        self.deliver_entry(rail);
                    }
                    while !self.rails[rail].writes.is_empty() && !self.rails[rail].no_receiver {
                        self.deliver(rail, 0);
                    }
                    while !self.rails[rail].unacknowledged.is_empty() && !self.rails[rail].no_sender {
                        self.acknowledge(rail);
                    }
                }
                while !self.rails[rail].arrived.is_empty() && !self.rails[rail].no_receiver {
                    self.poll(rail);
                }
            }
            // All that have come so far: a message may have been repeated many times.
            (0..self.to_receiver.len().max(1)).for_each(|_| self.receiver_receives(1));
            (0..self.to_sender.len().max(1)).for_each(|_| self.sender_receives(1));
            self.post_again(3 << 8);
            self.give_back();
            self.offer(0);
            self.send(7);
        }
    }

    /// Returns the groups that have not arrived, or were not offered.
    pub(super) fn not_arrived(&self) -> Vec<u64> {
        (1..=GROUPS).filter(|seq| !self.offered.get(seq).is_some_and(|group| group.whole)).collect()
    }

    /// Returns the groups with parts that are not complete at the sender.
    pub(super) fn not_complete(&self) -> Vec<u64> {
        self.sent.iter().filter(|(_, sent)| sent.pending != 0).map(|(seq, _)| *seq).collect()
    }

    /// Returns the masks of the rails that are dead at the sender and at the receiver.
    pub(super) fn dead(&self) -> (u8, u8) {
        (self.sender.dead(), self.receiver.dead())
    }
}

impl Rail {
    fn destroy_at_the_sender(&mut self) {
        (self.no_sender, self.half) = (true, false);
        self.unacknowledged.clear();
    }

    fn destroy_at_the_receiver(&mut self) {
        self.no_receiver = true;
        self.writes.clear();
        self.entries.clear();
    }
}
