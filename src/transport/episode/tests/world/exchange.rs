//! The messages of an episode.

use super::{World, Write};
use crate::proto::{Message, SenderState, Sequence, rails};
use crate::transport::episode::{Answer, Held, Posted};

impl World {
    pub(super) fn sender_notices(&mut self, rail: usize) {
        if self.rails[rail].cut {
            self.sender_gives_up(1 << rail);
        }
    }

    pub(super) fn sender_gives_up(&mut self, mask: u8) {
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

    pub(super) fn open(&self) -> Vec<Posted> {
        let open = self.sent.iter().filter(|(_, sent)| sent.pending != 0);
        open.map(|(seq, sent)| Posted { seq: Sequence::from_number(*seq), mask: sent.mask, size: Some(1) })
            .collect()
    }

    pub(super) fn receiver_notices(&mut self, rail: usize) {
        if self.rails[rail].cut && self.receiver.notice(1 << rail) {
            self.to_sender.extend(self.receiver.down());
        }
    }

    pub(super) fn sender_receives(&mut self, how: u32) {
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
    pub(super) fn post_again(&mut self, how: u32) {
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

    pub(super) fn receiver_receives(&mut self, how: u32) {
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

    pub(super) fn on_state(&mut self, state: SenderState) {
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

    pub(super) fn try_to_judge(&mut self) {
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

    pub(super) fn held(&self, seq: u64) -> Held {
        if !self.is_outstanding(seq) {
            return Held::Whole;
        }
        let group = &self.offered[&seq];
        let used = self.offered.range(seq + 1..).any(|(_, later)| later.buffer == group.buffer);
        Held::Parts { got: group.arrivals.seen(), given_back: group.optional, used: group.optional && used }
    }
}
