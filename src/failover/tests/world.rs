//! Both machines, what carries their messages, the fabric, and the receiver's memory.

use std::collections::{BTreeMap, VecDeque};

use mpib_proto::{
    Arrivals, Attempt, LinkLayer, Memory, Message, Mtu, NewRails, Offer, RailInfo, RailRole, RailSet, Replay,
    Sequence, Step, Up, Wiring, rails,
};

use super::{Bounds, Rule};
use crate::failover::{Held, Posted, Receiver, ReceiverAction, ReceiverWorked, Sender, SenderAction, Stream};

/// Groups in flight.
const WINDOW: u64 = 4;
/// Buffers that NCCL offers in turn.
const BUFFERS: u64 = 3;

/// What may happen. A number is a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// NCCL posts a receive, or an optional one.
    Offer(bool),
    /// NCCL posts a send, which goes out on these rails.
    Send(RailSet),
    /// A write arrives whole.
    Deliver(usize),
    /// The data of a write arrives, and its immediate does not yet.
    Place(usize),
    /// A CTS entry arrives.
    Entry(usize),
    /// The sender's adapter learns that a write has arrived.
    Acknowledge(usize),
    /// The way between the ports is lost, or the link of the receiver's port is.
    Cut(usize, Cut),
    Heal(usize),
    SenderNotices(usize),
    ReceiverNotices(usize),
    /// The queue pairs of an end on dead rails are destroyed.
    SenderFenced,
    ReceiverFenced,
    ToSender,
    ToReceiver,
    MailToSender,
    MailToReceiver,
    /// The TCP connection breaks: what is on its way is lost.
    Break,
    /// A new one replaces it.
    Reconnect,
    SenderRepeats,
    ReceiverRepeats,
    SenderWorks,
    ReceiverWorks,
    /// The sender begins an attempt.
    Begin,
    /// The hold-down of a rail at the sender is over.
    HoldOver(usize),
    /// The receiver's port of rails that it could not make works again.
    Returned,
    /// The receiver sends UP late, by mistake.
    Up,
    /// A part is sent again.
    PostAgain(usize),
    /// CTS entries move to another rail.
    MoveEntries(usize),
    /// NCCL closes the receiver, which has everything.
    Close,
}

/// How a rail is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Cut {
    Path,
    ReceiversPort,
}

/// A write of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Write {
    seq: u64,
    part: u8,
    mask: u8,
    replay: Option<Replay>,
    /// Its data is in memory, and its immediate has not arrived.
    placed: bool,
}

/// Whether a rail is tried by the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Hold {
    #[default]
    None,
    /// An attempt has failed at this end. The hold-down ends by itself.
    Own,
    /// An attempt has failed at the receiver. RETURN ends the hold-down; nothing else has to.
    Peers,
}

/// One rail, as the fabric and both ends see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Rail {
    cut: Option<Cut>,
    /// The queue pairs of the ends are destroyed.
    no_sender: bool,
    no_receiver: bool,
    /// The sender has new queue pairs and does not use them yet.
    half: bool,
    hold: Hold,
    /// Writes on their way, and CTS entries on theirs.
    writes: VecDeque<Write>,
    entries: VecDeque<(u64, u32)>,
    /// The version of its keys.
    version: u32,
    /// Arrived, and not known to the sender.
    unacknowledged: VecDeque<Write>,
}

/// A group at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Offered {
    buffer: u64,
    optional: bool,
    arrivals: Arrivals,
    whole: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    rule: Rule,
    left: Bounds,
    rails: Vec<Rail>,
    // The sender.
    sender: Sender,
    sender_stream: Stream,
    sender_works: bool,
    next: u64,
    /// By group: the parts that were sent, and those that are not complete.
    sent: BTreeMap<u64, (u8, u8)>,
    entries: u64,
    /// By group: the version of the keys that the sender has.
    keys: BTreeMap<u64, u32>,
    // The receiver.
    receiver: Receiver,
    receiver_stream: Stream,
    receiver_works: bool,
    offered: BTreeMap<u64, Offered>,
    offer_next: u64,
    cts_rail: usize,
    /// The version of its keys: each life of a rail has others.
    version: u32,
    /// UP, if it waits.
    up: Option<Message>,
    /// No rail carries entries: those from this group on are written when one does.
    unwritten: Option<u64>,
    // Memory: by buffer and part, the group whose bytes are there. The owner of each buffer.
    memory: BTreeMap<(u64, u8), u64>,
    owner: BTreeMap<u64, u64>,
    // The carriers.
    tcp: bool,
    /// Whether the sender and the receiver have to repeat messages on a new TCP connection.
    repeats: [bool; 2],
    to_receiver: VecDeque<Message>,
    to_sender: VecDeque<Message>,
    mail_to_receiver: VecDeque<Message>,
    mail_to_sender: VecDeque<Message>,
    /// Whether the receiver is closed.
    closed: bool,
    /// Whether a limit of no operator has ended the connection.
    ended: bool,
}

impl World {
    /// `dead` are the rails that are dead at both ends from the start.
    pub(super) fn new(bounds: Bounds, rule: Rule, dead: RailSet) -> Self {
        let all = RailSet::first(bounds.rails);
        let mut world = Self {
            rule,
            left: bounds,
            rails: vec![Rail::default(); bounds.rails],
            sender: Sender::new(all),
            sender_stream: Stream::default(),
            sender_works: false,
            next: 1,
            sent: BTreeMap::new(),
            entries: 0,
            keys: BTreeMap::new(),
            receiver: Receiver::new(all),
            receiver_stream: Stream::default(),
            receiver_works: false,
            offered: BTreeMap::new(),
            offer_next: 1,
            cts_rail: 0,
            version: 0,
            up: None,
            unwritten: None,
            memory: BTreeMap::new(),
            owner: BTreeMap::new(),
            tcp: true,
            repeats: [false; 2],
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            mail_to_receiver: VecDeque::new(),
            mail_to_sender: VecDeque::new(),
            closed: false,
            ended: false,
        };
        for rail in dead.iter() {
            world.cut(rail, Cut::ReceiversPort);
            world.rails[rail].destroy_at_the_sender();
            world.rails[rail].destroy_at_the_receiver();
        }
        (world.sender, world.receiver) = (world.sender.without(dead), world.receiver.without(dead));
        match world.living_at_the_receiver().lowest() {
            Some(rail) => world.cts_rail = rail,
            None => world.unwritten = Some(1),
        }
        world
    }

    /// Returns everything that may happen now.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut all = self.progress();
        let offers = [Event::Offer(false), Event::Offer(true)];
        all.extend(offers.into_iter().filter(|event| !all.contains(event)).collect::<Vec<_>>());
        for rail in 0..self.rails.len() {
            if self.left.deaths > 0 && self.rails[rail].cut.is_none() {
                all.extend([Event::Cut(rail, Cut::Path), Event::Cut(rail, Cut::ReceiversPort)]);
            }
            all.extend([
                Event::Heal(rail),
                Event::Place(rail),
                Event::Deliver(rail),
                Event::MoveEntries(rail),
            ]);
            all.extend([Event::SenderNotices(rail), Event::ReceiverNotices(rail)]);
        }
        if self.left.breaks > 0 {
            all.push(Event::Break);
        }
        all.push(Event::Close);
        let mut seen: Vec<Event> = Vec::new();
        all.retain(|event| {
            !seen.contains(event) && {
                seen.push(*event);
                true
            }
        });
        all.retain(|event| self.is_possible(*event));
        all
    }

    /// Returns what happens in any case as long as nothing fails, first things first.
    fn progress(&self) -> Vec<Event> {
        let mut all = vec![
            Event::Reconnect,
            Event::SenderRepeats,
            Event::ReceiverRepeats,
            Event::ToSender,
            Event::ToReceiver,
            Event::MailToSender,
            Event::MailToReceiver,
            Event::SenderFenced,
            Event::ReceiverFenced,
            Event::SenderWorks,
            Event::ReceiverWorks,
        ];
        for rail in 0..self.rails.len() {
            all.extend([Event::Entry(rail), Event::Acknowledge(rail)]);
            if self.rails[rail].cut.is_none() {
                all.push(Event::Deliver(rail));
            }
        }
        all.extend([Event::Up, Event::Returned, Event::Begin]);
        let living = self.living_at_the_sender();
        all.extend(living.iter().map(Event::PostAgain));
        let one = living.lowest().map(RailSet::of);
        all.extend([one, Some(living)].into_iter().flatten().map(Event::Send));
        all.push(Event::Offer(self.left.optional));
        for rail in 0..self.rails.len() {
            // An adapter reports a write to a queue pair that does not exist.
            let r = &self.rails[rail];
            if r.cut.is_some() || r.no_receiver && !r.writes.is_empty() {
                all.push(Event::SenderNotices(rail));
            }
            if r.cut.is_some() || r.no_sender && !r.entries.is_empty() {
                all.push(Event::ReceiverNotices(rail));
            }
            if r.hold == Hold::Own && !self.living_at_the_sender().is_empty() {
                all.push(Event::HoldOver(rail));
            }
        }
        all.retain(|event| self.is_possible(*event));
        all
    }

    fn is_possible(&self, event: Event) -> bool {
        let groups_left = self.offer_next <= self.left.groups;
        match event {
            Event::Break
            | Event::MailToReceiver
            | Event::ToReceiver
            | Event::ReceiverNotices(_)
            | Event::ReceiverWorks
            | Event::ReceiverFenced
            | Event::ReceiverRepeats
            | Event::Returned
            | Event::Up
            | Event::MoveEntries(_)
                if self.closed =>
            {
                false
            }
            // What a break loses then, the proof that the receiver has ended replaces.
            Event::Close => {
                let whole = self.offered.values().filter(|group| group.whole).count() as u64;
                self.tcp && !self.closed && whole == self.left.groups
            }
            Event::Offer(_) => {
                let (seq, buffer) = (self.offer_next, self.offer_next % BUFFERS);
                let slot_is_free = seq <= WINDOW || !self.is_outstanding(seq - WINDOW);
                groups_left
                    && slot_is_free
                    && !self.receiver.blocks_offers()
                    && self.unwritten.is_none()
                    && !self.living_at_the_receiver().is_empty()
                    && !self.owner.contains_key(&buffer)
            }
            Event::Send(which) => {
                let slot_is_free = self.next <= WINDOW
                    || self.sent.get(&(self.next - WINDOW)).is_none_or(|(_, pending)| *pending == 0);
                self.next <= self.entries && slot_is_free && !which.is_empty()
            }
            Event::Deliver(rail) | Event::Place(rail) => {
                let r = &self.rails[rail];
                let is_new = event == Event::Deliver(rail) || r.writes.front().is_some_and(|w| !w.placed);
                let is_cut = event == Event::Deliver(rail) || r.cut.is_some();
                !r.no_receiver && !r.writes.is_empty() && is_new && is_cut
            }
            Event::Entry(rail) => {
                let r = &self.rails[rail];
                !r.no_sender && !r.entries.is_empty() && r.cut.is_none()
            }
            Event::Acknowledge(rail) => {
                let r = &self.rails[rail];
                let is_polled = !r.no_sender && !self.sender.dead().contains(rail);
                r.cut.is_none() && is_polled && !r.unacknowledged.is_empty()
            }
            Event::Cut(rail, _) => self.left.deaths > 0 && self.rails[rail].cut.is_none(),
            Event::Heal(rail) => self.rails[rail].cut.is_some(),
            Event::SenderNotices(rail) => {
                let r = &self.rails[rail];
                let notices = r.cut.is_some() || r.no_receiver && !r.writes.is_empty();
                notices && !self.sender.dead().contains(rail)
            }
            Event::ReceiverNotices(rail) => {
                let r = &self.rails[rail];
                let notices = r.cut.is_some() || r.no_sender && !r.entries.is_empty();
                notices && !r.no_receiver && self.receiver.clone().failed(RailSet::of(rail)).is_some()
            }
            Event::SenderFenced => self.sender.is_fencing(),
            Event::ReceiverFenced => self.receiver.state().is_some(),
            Event::ToSender => !self.to_sender.is_empty(),
            Event::ToReceiver => !self.to_receiver.is_empty(),
            Event::MailToSender => !self.mail_to_sender.is_empty() && self.carries_mail(),
            Event::MailToReceiver => !self.mail_to_receiver.is_empty() && self.carries_mail(),
            Event::Break => self.tcp && self.left.breaks > 0,
            Event::Reconnect => !self.tcp,
            Event::SenderRepeats => self.tcp && self.repeats[0],
            Event::ReceiverRepeats => self.tcp && self.repeats[1],
            Event::SenderWorks => self.sender_works,
            Event::ReceiverWorks => self.receiver_works,
            Event::Begin => self.due().is_some() && self.left.attempts > 0,
            Event::HoldOver(rail) => self.rails[rail].hold == Hold::Own,
            Event::Returned => self.receiver.is_return_due(|rail| self.may_return_at_the_receiver(rail)),
            Event::Up => self.up.is_some() && !self.receiver.blocks_offers(),
            Event::PostAgain(rail) => {
                self.sender.next_unposted().is_some() && self.living_at_the_sender().contains(rail)
            }
            Event::MoveEntries(rail) => {
                let is_free = self.rails[self.cts_rail].entries.is_empty() && self.unwritten.is_none();
                is_free && self.living_at_the_receiver().contains(rail) && self.cts_rail != rail
            }
        }
    }

    /// Lets a possible event happen.
    pub(super) fn step(&mut self, event: Event) {
        match event {
            Event::Offer(optional) => self.offer(optional),
            Event::Send(which) => self.send(which.bits()),
            Event::Deliver(rail) => self.deliver(rail),
            Event::Place(rail) => self.place_only(rail),
            Event::Entry(rail) => self.deliver_entry(rail),
            Event::Acknowledge(rail) => self.acknowledge(rail),
            Event::Cut(rail, cut) => {
                self.left.deaths -= 1;
                self.cut(rail, cut);
            }
            Event::Heal(rail) => self.rails[rail].cut = None,
            Event::SenderNotices(rail) => {
                self.sender.failed(RailSet::of(rail));
                self.sender_gives_up();
            }
            Event::ReceiverNotices(rail) => self.receiver_notices(rail),
            Event::SenderFenced => self.sender_fenced(),
            Event::ReceiverFenced => self.judge(),
            Event::ToSender => {
                let message = self.to_sender.pop_front();
                self.sender_receives(message);
            }
            Event::ToReceiver => {
                let message = self.to_receiver.pop_front();
                self.receiver_receives(message);
            }
            Event::MailToSender => {
                let message = self.mail_to_sender.pop_front();
                self.sender_receives(message);
            }
            Event::MailToReceiver => {
                let message = self.mail_to_receiver.pop_front();
                self.receiver_receives(message);
            }
            Event::Break => {
                self.left.breaks -= 1;
                (self.tcp, self.repeats) = (false, [false; 2]);
                self.to_sender.clear();
                self.to_receiver.clear();
            }
            Event::Reconnect => (self.tcp, self.repeats) = (true, [true; 2]),
            Event::SenderRepeats => {
                self.repeats[0] = false;
                let frames = repeated(&self.sender_stream, self.rule);
                self.to_receiver.extend(frames);
            }
            Event::ReceiverRepeats => {
                self.repeats[1] = false;
                let frames = repeated(&self.receiver_stream, self.rule);
                self.to_sender.extend(frames);
            }
            Event::SenderWorks => self.sender_works(),
            Event::ReceiverWorks => self.receiver_works(),
            Event::Begin => {
                self.left.attempts -= 1;
                let which = RailSet::of(self.due().expect("a rail is due"));
                self.sender.begin(which);
                self.sender_works = true;
            }
            Event::HoldOver(rail) => self.rails[rail].hold = Hold::None,
            Event::Returned => {
                let ok: RailSet =
                    (0..self.rails.len()).filter(|rail| self.may_return_at_the_receiver(*rail)).collect();
                let which = self.receiver.returned(|rail| ok.contains(rail));
                self.say_to_sender(Message::Return { rails: which.bits() });
            }
            Event::Up => {
                let up = self.up.take();
                up.into_iter().for_each(|up| self.say_to_sender(up));
            }
            Event::PostAgain(rail) => self.post_again(rail),
            Event::MoveEntries(rail) => self.cts_rail = rail,
            Event::Close => {
                if self.repeats[1] {
                    self.step(Event::ReceiverRepeats);
                }
                if self.rule != Rule::ClosesSilently {
                    self.say_to_sender(Message::Arrived { next: Sequence::from_number(self.offer_next) });
                }
                self.closed = true;
                self.rails.iter_mut().for_each(Rail::destroy_at_the_receiver);
            }
        }
        let (keys, waits) = (&self.keys, self.rule != Rule::UsesAtOnce);
        let is_there = |seq: Sequence, version| keys.get(&seq.number()).is_some_and(|has| *has >= version);
        let used = self.sender.use_rails(|seq, version| !waits || is_there(seq, version));
        let used = used.unwrap_or(RailSet::EMPTY);
        for rail in used.iter() {
            (self.rails[rail].half, self.rails[rail].hold) = (false, Hold::None);
        }
        let judged = self.sender.arrived(&self.open());
        self.obey(judged);
        // A limit that no operator has set, and a peer that is stopped for longer.
        self.ended |= self.rule == Rule::AnswerLimit && self.sender.is_awaiting() && !self.tcp;
        self.give_back();
    }

    /// Lets everything happen that still can, and no more faults. `healed` are the rails that work
    /// again; no time passes in which a hold-down could end, but for one of the sender's own while
    /// another rail lives.
    pub(super) fn quiet(&mut self, healed: RailSet) {
        healed.iter().for_each(|rail| self.rails[rail].cut = None);
        (self.left.deaths, self.left.breaks, self.left.attempts) = (0, 0, usize::MAX);
    }

    /// Does one thing that happens in any case; false if there is none.
    pub(super) fn settle(&mut self) -> bool {
        self.left.attempts = usize::MAX;
        // An attempt on a rail that stays cut fails, and is made again for ever.
        let ends = |event: &Event| !matches!(event, Event::HoldOver(rail) if self.rails[*rail].cut.is_some());
        let event = self.progress().into_iter().find(ends);
        event.inspect(|event| self.step(*event)).is_some()
    }

    /// Returns what is wrong once nothing more happens. `healed` are the rails that work.
    pub(super) fn verdict(&self, healed: RailSet) -> Option<String> {
        let whole = |seq: &u64| self.offered.get(seq).is_some_and(|group| group.whole);
        let lost: Vec<u64> = (1..=self.left.groups).filter(|seq| !whole(seq)).collect();
        let open: Vec<&u64> =
            self.sent.iter().filter(|(_, (_, open))| *open != 0).map(|(seq, _)| seq).collect();
        let unused = (self.sender.dead() | self.receiver.dead()) & healed;
        let dead = if self.closed { RailSet::EMPTY } else { unused };
        match () {
            () if self.ended => Some("a limit that no operator has set ended the connection".into()),
            () if !lost.is_empty() => Some(format!("groups {lost:?} never arrive")),
            () if !open.is_empty() => Some(format!("groups {open:?} never complete")),
            () if !dead.is_empty() => Some(format!("rails {dead} work and are not used")),
            () => None,
        }
    }

    fn oldest_outstanding(&self) -> u64 {
        (1..self.offer_next).find(|seq| self.is_outstanding(*seq)).unwrap_or(self.offer_next)
    }

    fn is_outstanding(&self, seq: u64) -> bool {
        self.offered.get(&seq).is_some_and(|group| !group.whole)
    }

    fn living_at_the_sender(&self) -> RailSet {
        RailSet::first(self.rails.len()).without(self.sender.dead())
    }

    fn living_at_the_receiver(&self) -> RailSet {
        let coming = self.receiver.state().map_or(0, |state| state.dead);
        let living: RailSet = (0..self.rails.len()).filter(|rail| !self.rails[*rail].no_receiver).collect();
        living.without(RailSet::from_bits(coming))
    }

    fn carries_mail(&self) -> bool {
        let carries = |rail: &Rail| rail.cut.is_none() && !rail.no_sender && !rail.no_receiver;
        self.rails.iter().any(carries)
    }

    /// A hold-down never holds a rail while no other one lives.
    fn due(&self) -> Option<usize> {
        let is_last = self.living_at_the_sender().is_empty() && self.rule != Rule::HoldsTheLastRail;
        self.sender.due(|rail| match self.rails[rail].hold {
            Hold::None => true,
            Hold::Own => is_last,
            Hold::Peers => false,
        })
    }

    fn may_return_at_the_receiver(&self, rail: usize) -> bool {
        self.rails[rail].cut != Some(Cut::ReceiversPort) && self.rule != Rule::ReturnWaits
    }

    fn say_to_receiver(&mut self, message: Message) {
        let frame = self.sender_stream.send(message);
        if self.left.mailbox {
            self.mail_to_receiver.push_back(frame.clone());
        }
        if self.tcp {
            self.to_receiver.push_back(frame);
        }
    }

    fn say_to_sender(&mut self, message: Message) {
        let frame = self.receiver_stream.send(message);
        if self.left.mailbox {
            self.mail_to_sender.push_back(frame.clone());
        }
        if self.tcp {
            self.to_sender.push_back(frame);
        }
    }

    fn offer(&mut self, optional: bool) {
        let (seq, buffer) = (self.offer_next, self.offer_next % BUFFERS);
        self.offer_next += 1;
        self.owner.insert(buffer, seq);
        self.offered.insert(seq, Offered { buffer, optional, arrivals: Arrivals::NONE, whole: false });
        self.rails[self.cts_rail].entries.push_back((seq, self.version));
    }

    fn send(&mut self, mask: u8) {
        let seq = self.next;
        self.next += 1;
        self.sent.insert(seq, (mask, mask));
        for rail in rails(mask) {
            let write = Write { seq, part: rail as u8, mask, replay: None, placed: false };
            self.post(rail, write);
        }
    }

    fn post_again(&mut self, rail: usize) {
        let Some((seq, replay)) = self.sender.next_unposted() else { return };
        let (mask, _) = self.sent[&seq.number()];
        let write = Write { seq: seq.number(), part: replay.part, mask, replay: Some(replay), placed: false };
        self.post(rail, write);
        self.sender.posted(rail);
    }

    fn post(&mut self, rail: usize, write: Write) {
        let (key, rail) = (self.keys[&write.seq], &mut self.rails[rail]);
        assert!(key >= rail.version, "{write:?} with a key of an earlier life");
        rail.writes.push_back(write);
    }

    /// The data of a write of a cut rail arrives, as long as the receiver's queue pair exists.
    fn place_only(&mut self, rail: usize) {
        let Some(write) = self.rails[rail].writes.front().copied() else { return };
        self.place(write);
        self.rails[rail].writes[0].placed = true;
    }

    /// A write arrives and is polled. One of a cut rail may, as long as the receiver's queue pair
    /// exists.
    fn deliver(&mut self, rail: usize) {
        let Some(write) = self.rails[rail].writes.pop_front() else { return };
        if !write.placed {
            self.place(write);
        }
        if !self.rails[rail].no_sender {
            self.rails[rail].unacknowledged.push_back(write);
        }
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

    fn deliver_entry(&mut self, rail: usize) {
        if let Some((seq, version)) = self.rails[rail].entries.pop_front() {
            assert!(seq <= self.entries + 1, "entry {seq} comes after {}", self.entries);
            self.entries = self.entries.max(seq);
            self.keys.insert(seq, version);
        }
    }

    fn acknowledge(&mut self, rail: usize) {
        if let Some(write) = self.rails[rail].unacknowledged.pop_front() {
            let (_, pending) = self.sent.get_mut(&write.seq).expect("a group that was sent");
            assert!(*pending >> write.part & 1 == 1, "{write:?} completes twice");
            *pending &= !(1 << write.part);
        }
    }

    fn cut(&mut self, rail: usize, cut: Cut) {
        self.rails[rail].cut = Some(cut);
    }

    /// NCCL gets buffers back: of whole groups, and of optional receives whose data is in memory.
    fn give_back(&mut self) {
        let owned: Vec<_> = self.owner.iter().map(|(buffer, seq)| (*buffer, *seq)).collect();
        for (buffer, seq) in owned {
            let group = self.offered[&seq];
            let here = |part: usize| self.memory.get(&(buffer, part as u8)) == Some(&seq);
            let mask = self.sent.get(&seq).map_or(0, |(mask, _)| *mask);
            let arrived = mask != 0 && rails(mask).all(here);
            assert!(!group.whole || arrived, "group {seq} is whole and its bytes are not here");
            if group.whole || group.optional && arrived {
                self.owner.remove(&buffer);
            }
        }
    }

    // The sender.

    fn open(&self) -> Vec<Posted> {
        let open = self.sent.iter().filter(|(_, (_, pending))| *pending != 0);
        open.map(|(seq, (mask, _))| Posted { seq: Sequence::from_number(*seq), mask: *mask, size: Some(1) })
            .collect()
    }

    fn sender_gives_up(&mut self) {
        if self.sender.episode().is_some() {
            self.drop_the_senders_attempt();
        }
    }

    fn sender_fenced(&mut self) {
        let dead = self.sender.dead();
        dead.iter().for_each(|rail| self.rails[rail].destroy_at_the_sender());
        let open = self.open();
        let state = self.sender.state(Sequence::from_number(self.next), &open);
        for group in &state.open {
            self.sent.get_mut(&group.seq.number()).expect("an open group").1 |= group.lost;
        }
        self.say_to_receiver(Message::State(state));
    }

    fn drop_the_senders_attempt(&mut self) {
        self.sender_works = false;
        self.rails.iter_mut().filter(|rail| rail.half).for_each(Rail::destroy_at_the_sender);
    }

    fn sender_receives(&mut self, frame: Option<Message>) {
        let Some(Message::Numbered(frame)) = frame else { panic!("{frame:?}") };
        let Some(message) = self.sender_stream.accept(frame).expect("a right number") else { return };
        let open = self.open();
        let action = self.sender.on_message(message, &open);
        match action.expect("an honest receiver") {
            SenderAction::Nothing | SenderAction::GivenUpByPeer(_) => {}
            SenderAction::Judged(groups) => self.obey(groups),
            SenderAction::Join(_) => self.sender_works = true,
            SenderAction::Failed(which, _) => {
                self.drop_the_senders_attempt();
                which.iter().for_each(|rail| self.rails[rail].hold = Hold::Peers);
            }
            SenderAction::Returned(which) => {
                let held = which.iter().filter(|rail| self.rails[*rail].hold == Hold::Peers);
                held.collect::<Vec<_>>().into_iter().for_each(|rail| self.rails[rail].hold = Hold::None);
            }
        }
        self.sender_gives_up();
    }

    fn obey(&mut self, judged: Vec<(Sequence, u8, u8)>) {
        for (seq, lost, again) in judged {
            let (_, pending) = self.sent.get_mut(&seq.number()).expect("an open group");
            *pending = *pending & !lost | again;
        }
    }

    /// The sender's own work of an attempt ends: queue pairs are made, or a probe has arrived or not.
    fn sender_works(&mut self) {
        self.sender_works = false;
        let which = self.sender.attempt_rails();
        let is_cut = which.iter().any(|rail| self.rails[rail].cut.is_some());
        let proves = self.sender.is_proving();
        if proves && is_cut {
            let which = self.sender.abort();
            which.iter().for_each(|rail| self.rails[rail].hold = Hold::Own);
            return;
        }
        if proves {
            for rail in which.iter() {
                let rail = &mut self.rails[rail];
                assert!(rail.entries.is_empty(), "entries of a rail that the receiver does not use");
                (rail.no_sender, rail.half) = (false, true);
            }
        }
        let message = self.sender.worked(new_rails).expect("work is under way");
        self.say_to_receiver(message);
    }

    // The receiver.

    fn receiver_notices(&mut self, rail: usize) {
        let down = self.receiver.failed(RailSet::of(rail));
        down.into_iter().for_each(|down| self.say_to_sender(down));
    }

    fn receiver_receives(&mut self, frame: Option<Message>) {
        let Some(Message::Numbered(frame)) = frame else { panic!("{frame:?}") };
        let Some(message) = self.receiver_stream.accept(frame).expect("a right number") else { return };
        let next = Sequence::from_number(self.offer_next);
        match self.receiver.on_message(message, next).expect("an honest sender") {
            ReceiverAction::Nothing => {}
            ReceiverAction::GiveUp(_) => {
                self.receiver_works = false;
                self.up = None;
                let next = self.oldest_outstanding();
                if !self.living_at_the_receiver().contains(self.cts_rail) {
                    match self.living_at_the_receiver().lowest() {
                        Some(rail) => self.write_entries(rail, next),
                        None => self.unwritten = Some(self.unwritten.map_or(next, |n| n.min(next))),
                    }
                }
            }
            ReceiverAction::Make(_) | ReceiverAction::Probe => self.receiver_works = true,
        }
    }

    fn judge(&mut self) {
        let state = self.receiver.state().cloned().expect("a STATE");
        let listed = |seq: u64| state.open.iter().any(|group| group.seq.number() == seq);
        let missing = (1..state.next.number()).find(|seq| !listed(*seq) && self.is_outstanding(*seq));
        assert_eq!(missing, None, "completed at the sender, and not here");
        let new = RailSet::from_bits(state.dead).without(self.receiver.dead());
        new.iter().for_each(|rail| self.rails[rail].destroy_at_the_receiver());
        let held = |world: &Self, seq: u64| {
            if !world.is_outstanding(seq) {
                return Held::Whole;
            }
            let group = &world.offered[&seq];
            let used = world.offered.range(seq + 1..).any(|(_, later)| later.buffer == group.buffer);
            Held::Parts {
                got: group.arrivals.seen(),
                given_back: group.optional,
                used: group.optional && used,
            }
        };
        let mut receiver = self.receiver.clone();
        let judged = receiver.judge(|seq| held(self, seq.number()));
        self.receiver = receiver;
        let (verdict, partial) = judged.expect("a STATE");
        for (group, done) in partial {
            let held = self.offered.get_mut(&group.seq.number()).expect("an offered group");
            assert!(held.arrivals.learn(group.mask));
            held.whole = held.arrivals.add(done);
        }
        self.say_to_sender(Message::Verdict(verdict));
        let down = self.receiver.down();
        down.into_iter().for_each(|down| self.say_to_sender(down));
    }

    /// As [`sender_works`](Self::sender_works), at the receiver.
    fn receiver_works(&mut self) {
        self.receiver_works = false;
        let which = self.receiver.attempt_rails();
        let fails = which.iter().any(|rail| match self.rails[rail].cut {
            Some(Cut::ReceiversPort) => true,
            Some(Cut::Path) => self.receiver.is_proving(),
            None => false,
        });
        if fails {
            let (_, failed) = self.receiver.abort(String::new()).expect("an attempt");
            return self.say_to_sender(failed);
        }
        match self.receiver.worked() {
            ReceiverWorked::Nothing => panic!("no work is under way"),
            ReceiverWorked::Made(attempt, which) => {
                self.say_to_sender(Message::Rebuilt(new_rails(attempt, which)));
            }
            ReceiverWorked::Use(attempt, which) => {
                self.version += 1;
                for rail in which.iter() {
                    assert!(self.rails[rail].writes.is_empty());
                    self.rails[rail].no_receiver = false;
                    self.rails[rail].version = self.version;
                }
                let carrier = self.unwritten.take().and(which.lowest()).unwrap_or(self.cts_rail);
                self.write_entries(carrier, self.oldest_outstanding());
                let open = self.offered.iter().filter(|(_, group)| !group.whole);
                let entries = open.map(|(seq, _)| (Sequence::from_number(*seq), self.version)).collect();
                let up = Message::Up(Up { attempt, entries });
                match self.rule {
                    Rule::UpWaitsForParts => self.up = Some(up),
                    _ => self.say_to_sender(up),
                }
            }
        }
    }

    /// Writes all entries from a group on over a rail, and later ones.
    fn write_entries(&mut self, rail: usize, next: u64) {
        self.cts_rail = rail;
        let version = self.version;
        self.rails[rail].entries.extend((next..self.offer_next).map(|seq| (seq, version)));
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

/// Returns what an end repeats on a new TCP connection.
fn repeated(stream: &Stream, rule: Rule) -> Vec<Message> {
    let all: Vec<_> = stream.unacknowledged().collect();
    match rule {
        Rule::LastMessageOnly => all.into_iter().next_back().map(renumbered(stream)).into_iter().collect(),
        _ => all,
    }
}

/// An end that repeats its last message alone cannot number its messages: the peer must take it.
fn renumbered(stream: &Stream) -> impl Fn(Message) -> Message + use<> {
    let first = stream.last() + 1 - stream.unacknowledged().count() as u64;
    move |frame| match frame {
        Message::Numbered(numbered) => Message::Numbered(mpib_proto::Numbered { number: first, ..numbered }),
        other => other,
    }
}

pub(in crate::failover) fn new_rails(attempt: Attempt, which: RailSet) -> NewRails {
    let memory = Memory { addr: 0, len: 0, rkeys: Vec::new() };
    let offer = Offer { port: port(), wiring: Wiring { routes: Vec::new(), memory } };
    NewRails { attempt, rails: which.bits(), offer }
}

fn port() -> RailInfo {
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
        is_down: false,
    }
}
