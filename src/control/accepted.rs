//! The peers of a listener whose HELLO has come, until a call of accept takes them.

use std::collections::VecDeque;
use std::sync::Arc;

use mio::Token;
use parking_lot::{Mutex, MutexGuard};

use super::bounds::{Seat, Seats};
use super::link::Link;

/// Most channels that may wait for `try_accept`, and most tokens that are remembered.
pub(super) const WAITING_MAX: usize = 64;

/// Peers whose HELLO has come.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) waiting: Mutex<Waiting>,
    /// Those of the process.
    pub(super) seats: Arc<Seats>,
    /// Why the last peer that knew the secret was refused.
    pub(super) refused: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) links: VecDeque<Guest>,
    /// Whether a call that is in progress takes the next one: its caller flushes the channel.
    pub(super) wanted: bool,
}

/// A channel that waits.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) token: Token,
    pub(super) link: Arc<Link>,
    pub(super) seat: Seat,
}

impl Waiting {
    /// Returns whether no more than `limit` channels may wait, and all have proved themselves.
    pub(super) fn is_full(&self, limit: usize) -> bool {
        self.links.len() >= limit && self.links.iter().all(|guest| guest.link.is_proved())
    }

    /// Adds a channel. Returns one that has proved nothing and must be closed for it, if there are
    /// `limit` already.
    pub(super) fn add(&mut self, guest: Guest, limit: usize) -> Option<Token> {
        let full = self.links.len() >= limit;
        let unproved = self.links.iter().position(|guest| !guest.link.is_proved()).filter(|_| full);
        self.links.push_back(guest);
        unproved.and_then(|at| self.links.remove(at)).map(|guest| guest.token)
    }

    /// Takes the next peer: one that has proved itself, if there is one.
    pub(super) fn next(&mut self) -> Option<Guest> {
        let proved = self.links.iter().position(|guest| guest.link.is_proved());
        self.links.remove(proved.unwrap_or(0))
    }
}

impl Accepted {
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Waiting) -> T) -> T {
        f(&mut self.waiting.lock())
    }

    /// Returns how many channels may wait.
    pub(super) fn limit(&self) -> usize {
        self.seats.limit(WAITING_MAX)
    }

    pub(super) fn refused(&self) -> MutexGuard<'_, Option<String>> {
        self.refused.lock()
    }
}
