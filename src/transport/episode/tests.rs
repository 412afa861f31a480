//! A sender and a receiver over a simulated fabric. Rails die at any time, together or one by one,
//! also during an episode. A dead rail delivers none, some or all of what is on it, as late as the
//! receiver's queue pair exists, and acknowledges no more. Messages of the control connection are
//! repeated at random. Dead rails, also the last one, are repaired and come back, and die again at
//! any step of that.
//!
//! A model of the receiver's memory shows that every message arrives as it was sent, and that no
//! byte is written into a buffer that NCCL has got back.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::proto::{
    Arrivals, LinkLayer, Message, Mtu, NewRails, RailInfo, RailRole, RebuildFailed, Replay, SenderState,
    Sequence, Step, rails,
};

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

struct World {
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
    fn new(n: u8) -> Self {
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
    fn step(&mut self, choice: u32) {
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

    fn sender_notices(&mut self, rail: usize) {
        if self.rails[rail].cut {
            self.sender_gives_up(1 << rail);
        }
    }

    /// The sender begins an attempt to bring a dead rail back.
    fn begin_return(&mut self, rail: usize) {
        if self.sender.dead() >> rail & 1 == 1 && !self.sender.is_awaiting() && self.attempts.is_idle() {
            self.attempts.begin(1 << rail, self.sender.epoch());
            self.sender_works = true;
        }
    }

    /// The sender's own work of an attempt ends: queue pairs are made, or a probe has arrived or not.
    fn sender_works(&mut self) {
        if !std::mem::take(&mut self.sender_works) {
            return;
        }
        let mask = self.attempts.rails();
        let is_cut = rails(mask).any(|rail| self.rails[rail].cut);
        let Some((attempt, proved)) = self.attempts.worked() else { panic!("no work is under way") };
        match proved {
            false => {
                let request =
                    NewRails { attempt, rails: mask, port: port(), routes: Vec::new(), rkeys: Vec::new() };
                self.to_receiver.push_back(Message::Rebuild(request));
            }
            true if is_cut => self.attempts.abort(),
            true => {
                for rail in rails(mask) {
                    let rail = &mut self.rails[rail];
                    assert!(rail.entries.is_empty(), "entries of a rail that the receiver does not use");
                    (rail.no_sender, rail.half) = (false, true);
                }
                self.to_receiver.push_back(Message::Proved(attempt));
            }
        }
    }

    fn end_attempt(&mut self) {
        self.attempts.abort();
        self.sender_works = false;
        self.rails.iter_mut().filter(|rail| rail.half).for_each(Rail::destroy_at_the_sender);
    }

    /// As [`sender_works`](Self::sender_works), at the receiver.
    fn receiver_works(&mut self) {
        if !std::mem::take(&mut self.receiver_works) {
            return;
        }
        let Some((attempt, mask, is_up)) = self.answers.worked() else { panic!("no work is under way") };
        if !is_up {
            let answer =
                NewRails { attempt, rails: mask, port: port(), routes: Vec::new(), rkeys: Vec::new() };
            return self.to_sender.push_back(Message::Rebuilt(answer));
        }
        if rails(mask).any(|rail| self.rails[rail].cut) {
            let failed = RebuildFailed { attempt, reason: String::new() };
            return self.to_sender.push_back(Message::RebuildFailed(failed));
        }
        self.receiver.revive(mask);
        for rail in rails(mask) {
            assert!(self.rails[rail].writes.is_empty() && self.rails[rail].arrived.is_empty());
            self.rails[rail].no_receiver = false;
        }
        if let Some(next) = self.unwritten.take() {
            self.write_entries(mask.trailing_zeros() as usize, next);
        }
        self.to_sender.push_back(Message::Up(attempt));
    }

    /// Writes all entries from a group on over a rail, and later ones.
    fn write_entries(&mut self, rail: usize, next: u64) {
        self.cts_rail = rail;
        self.rails[rail].entries.extend(next..self.offer_next);
    }

    /// Moves the entries to another living rail once all those before have arrived.
    fn move_entries(&mut self, rail: usize) {
        let is_free = self.rails[self.cts_rail].entries.is_empty() && self.unwritten.is_none();
        if is_free && !self.rails[rail].no_receiver {
            self.cts_rail = rail;
        }
    }

    fn sender_gives_up(&mut self, mask: u8) {
        let new = self.sender.give_up(mask);
        if new == 0 {
            return;
        }
        self.end_attempt();
        rails(new).for_each(|rail| self.rails[rail].destroy_at_the_sender());
        let open = self.open();
        let state = self.sender.state(Sequence::from_number(self.next), &open);
        for group in &state.open {
            self.sent.get_mut(&group.seq.number()).unwrap().pending |= group.lost;
        }
        self.to_receiver.push_back(Message::State(state));
    }

    fn open(&self) -> Vec<Posted> {
        let open = self.sent.iter().filter(|(_, sent)| sent.pending != 0);
        open.map(|(seq, sent)| Posted { seq: Sequence::from_number(*seq), mask: sent.mask, size: Some(1) })
            .collect()
    }

    fn receiver_notices(&mut self, rail: usize) {
        if self.rails[rail].cut && self.receiver.notice(1 << rail) {
            self.to_sender.extend(self.receiver.down());
        }
    }

    fn sender_receives(&mut self, how: u32) {
        let Some(message) = self.to_sender.front().cloned() else { return };
        if !how.is_multiple_of(4) {
            self.to_sender.pop_front();
        }
        match message {
            Message::Down { epoch, rails } if self.sender.is_current(epoch) => self.sender_gives_up(rails),
            Message::Down { .. } => {}
            Message::Verdict(verdict) => {
                let open = self.open();
                for (seq, lost, again) in self.sender.verdict(&verdict, &open).unwrap().unwrap_or_default() {
                    let sent = self.sent.get_mut(&seq.number()).unwrap();
                    sent.pending = sent.pending & !lost | again;
                }
            }
            Message::Rebuilt(answer) => self.sender_works |= self.attempts.on_rebuilt(&answer),
            Message::RebuildFailed(failed) => {
                if self.attempts.is_current(failed.attempt) {
                    self.end_attempt();
                }
            }
            Message::Up(attempt) => {
                if let Some(mask) = self.attempts.on_up(attempt) {
                    self.sender.revive(mask);
                    rails(mask).for_each(|rail| self.rails[rail].half = false);
                    self.returned += 1;
                }
            }
            other => panic!("{other:?}"),
        }
        self.post_again(how >> 4);
    }

    /// Sends parts again, as far as there is room.
    fn post_again(&mut self, how: u32) {
        let mut room = how >> 8 & 3;
        let living = self.living_at_the_sender();
        while !self.sender.is_awaiting()
            && !living.is_empty()
            && room > 0
            && let Some((seq, replay)) = self.sender.next_unposted()
        {
            let carrier = living[how.wrapping_add(replay.part.into()) as usize % living.len()];
            let mask = self.sent[&seq.number()].mask;
            let write =
                Write { seq: seq.number(), part: replay.part, mask, replay: Some(replay), placed: false };
            self.rails[carrier].writes.push_back(write);
            self.sender.posted(carrier);
            room -= 1;
        }
    }

    fn receiver_receives(&mut self, how: u32) {
        if let Some(message) = self.to_receiver.front().cloned() {
            if !how.is_multiple_of(4) {
                self.to_receiver.pop_front();
            }
            match message {
                Message::State(state) => self.on_state(state),
                Message::Rebuild(request) => {
                    let (epoch, dead) = (self.receiver.epoch(), self.receiver.dead());
                    self.receiver_works |= self.answers.on_rebuild(&request, epoch, dead).unwrap();
                }
                Message::Proved(attempt) => self.receiver_works |= self.answers.on_proved(attempt),
                other => panic!("{other:?}"),
            }
        }
        self.try_to_judge();
    }

    fn on_state(&mut self, state: SenderState) {
        let next = Sequence::from_number(self.offer_next);
        match self.receiver.on_state(state, next, self.all()).unwrap() {
            Answer::Nothing => {}
            Answer::GiveUp(_) => {
                self.answers.abort();
                self.receiver_works = false;
            }
            Answer::Repeat(verdict) => self.to_sender.push_back(Message::Verdict(verdict)),
        }
    }

    fn try_to_judge(&mut self) {
        let Some(state) = self.receiver.state().cloned() else { return };
        for rail in 0..self.rails.len() {
            while !self.rails[rail].arrived.is_empty() {
                self.poll(rail);
            }
        }
        let listed = |seq: u64| state.open.iter().any(|group| group.seq.number() == seq);
        let missing = (1..state.next.number()).find(|seq| !listed(*seq) && self.is_outstanding(*seq));
        assert_eq!(missing, None, "completed at the sender, and not here");
        let new = state.dead & !self.receiver.dead();
        for rail in rails(new) {
            self.rails[rail].destroy_at_the_receiver();
        }
        let mut receiver = std::mem::take(&mut self.receiver);
        let judged = receiver.judge(|seq| self.held(seq.number()));
        self.receiver = receiver;
        let (verdict, partial, next) = judged.unwrap();
        for group in partial {
            let again =
                verdict.again.iter().find(|(seq, _)| *seq == group.seq).map_or(0, |(_, parts)| *parts);
            let held = self.offered.get_mut(&group.seq.number()).unwrap();
            assert!(held.arrivals.learn(group.mask));
            held.whole = held.arrivals.add(group.lost & !again);
        }
        if new >> self.cts_rail & 1 == 1 {
            match (0..self.rails.len()).find(|rail| !self.rails[*rail].no_receiver) {
                Some(rail) => self.write_entries(rail, next.number()),
                None => self.unwritten = Some(next.number()),
            }
        }
        self.to_sender.push_back(Message::Verdict(verdict));
        self.to_sender.extend(self.receiver.down());
    }

    fn held(&self, seq: u64) -> Held {
        if !self.is_outstanding(seq) {
            return Held::Whole;
        }
        let group = &self.offered[&seq];
        let used = self.offered.range(seq + 1..).any(|(_, later)| later.buffer == group.buffer);
        Held::Parts { got: group.arrivals.seen(), given_back: group.optional, used: group.optional && used }
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
    fn settle(&mut self) {
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
            self.receiver_receives(1);
            self.sender_receives(1);
            self.post_again(3 << 8);
            self.give_back();
            self.offer(0);
            self.send(7);
        }
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

pub(super) fn port() -> RailInfo {
    RailInfo {
        name: String::new(),
        port: 1,
        link_layer: LinkLayer::Ethernet,
        mtu: Mtu::B4096,
        lid: 0,
        addrs: Vec::new(),
        speed_mbps: 0,
        role: RailRole::SOUT,
        requested: true,
        grh_required: false,
    }
}

/// Runs `choices` between ends with `n` rails. Asserts that every message arrives, and that all rails
/// come back.
fn check(n: u8, choices: impl Iterator<Item = u32>) {
    let mut world = World::new(n);
    choices.for_each(|choice| world.step(choice));
    world.settle();
    let lost: Vec<_> =
        (1..=GROUPS).filter(|seq| !world.offered.get(seq).is_some_and(|group| group.whole)).collect();
    assert!(lost.is_empty(), "groups {lost:?} never arrive");
    let open: Vec<_> = world.sent.iter().filter(|(_, sent)| sent.pending != 0).collect();
    assert!(open.is_empty(), "{open:?} never complete");
    let dead = (world.sender.dead(), world.receiver.dead());
    assert_eq!(dead, (0, 0), "rails never come back");
}

/// Most choices of one run.
const MAX_CHOICES: usize = 2000;

/// Runs the number of rails and the choices that the bytes stand for.
pub fn simulated(data: &[u8]) {
    let Some((n, choices)) = data.split_first() else { return };
    let choices = choices.as_chunks().0.iter().take(MAX_CHOICES);
    check(n % 4 + 1, choices.map(|bytes| u32::from_le_bytes(*bytes)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    //= protocol.md: episode: every part arrives once, no buffer is written after its time
    #[test]
    fn every_message_arrives_and_no_buffer_is_written_after_its_time(
        n in 1u8..=4,
        choices in prop::collection::vec(any::<u32>(), 0..600),
    ) {
        check(n, choices.into_iter());
    }
}
