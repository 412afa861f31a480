//! How much one reading keeps. Any process may have pages, with any number of connections in them.

use std::collections::HashMap;

/// What a host without forged pages never needs: 256 pages of a user, and 32,768 connections in
/// them.
const OF_USER: Room = Room { pages: 256, connections: 32 << 10 };
/// The same for all users together. One user cannot take it up.
pub(crate) const OF_HOST: Room = Room { pages: 1024, connections: 128 << 10 };

/// Numbers of pages and connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) pages: usize,
    pub(crate) connections: usize,
}

/// What is left for the rest of a reading.
#[derive(Debug)]
pub(crate) struct Budget {
    host: Room,
    of_user: Room,
    users: HashMap<u32, Room>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(OF_USER, OF_HOST)
    }
}

impl Budget {
    pub(crate) fn new(of_user: Room, host: Room) -> Self {
        Self { host, of_user, users: HashMap::new() }
    }

    /// Returns whether another process of a user may be inspected.
    pub(crate) fn has_room(&self, uid: u32) -> bool {
        self.host.pages > 0 && self.users.get(&uid).unwrap_or(&self.of_user).pages > 0
    }

    /// Counts a page with these connections: none, if it is unreadable. Returns how many of them may
    /// be kept.
    pub(crate) fn add_page(&mut self, uid: u32, connections: usize) -> usize {
        let Self { host, of_user, users } = self;
        let user = users.entry(uid).or_insert(*of_user);
        let kept = connections.min(host.connections).min(user.connections);
        for room in [host, user] {
            room.pages = room.pages.saturating_sub(1);
            room.connections -= kept;
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_up_the_room_of_another() {
        let room = |pages, connections| Room { pages, connections };
        let mut budget = Budget::new(room(2, 10), room(3, 15));
        for uid in [1, 1, 2] {
            assert!(budget.has_room(uid));
            assert_eq!(budget.add_page(uid, 0), 0);
        }
        assert!([1, 2, 3].iter().all(|uid| !budget.has_room(*uid)), "the host has three");
        let kept = [(1, 8), (1, 8), (2, 4), (3, 4)].map(|(uid, n)| budget.add_page(uid, n));
        assert_eq!(kept, [8, 2, 4, 1]);
    }
}
