//! Dead rails that come back.

use super::{Rail, World};
use crate::proto::{Message, NewRails, RebuildFailed, rails};
use crate::transport::episode::tests::port;

impl World {
    /// The sender begins an attempt to bring a dead rail back.
    pub(super) fn begin_return(&mut self, rail: usize) {
        if self.sender.dead() >> rail & 1 == 1 && !self.sender.is_awaiting() && self.attempts.is_idle() {
            self.attempts.begin(1 << rail, self.sender.epoch());
            self.sender_works = true;
        }
    }

    /// The sender's own work of an attempt ends: queue pairs are made, or a probe has arrived or not.
    pub(super) fn sender_works(&mut self) {
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

    pub(super) fn end_attempt(&mut self) {
        self.attempts.abort();
        self.sender_works = false;
        self.rails.iter_mut().filter(|rail| rail.half).for_each(Rail::destroy_at_the_sender);
    }

    /// As [`sender_works`](Self::sender_works), at the receiver.
    pub(super) fn receiver_works(&mut self) {
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
    pub(super) fn write_entries(&mut self, rail: usize, next: u64) {
        self.cts_rail = rail;
        self.rails[rail].entries.extend(next..self.offer_next);
    }

    /// Moves the entries to another living rail once all those before have arrived.
    pub(super) fn move_entries(&mut self, rail: usize) {
        let is_free = self.rails[self.cts_rail].entries.is_empty() && self.unwritten.is_none();
        if is_free && !self.rails[rail].no_receiver {
            self.cts_rail = rail;
        }
    }
}
