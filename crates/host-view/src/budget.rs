//! How much one reading keeps. Any process may have pages, with any number of connections in them.

use std::collections::HashMap;

use crate::Owner;

/// What a host without forged pages never needs: 256 pages of an owner, and what is in them.
const OF_OWNER: Room = Room { pages: 256, ports: 4096, connections: 32 << 10 };
/// The same for all owners together. One of them cannot take it up.
pub(crate) const OF_HOST: Room = Room { pages: 1024, ports: 16 << 10, connections: 128 << 10 };
/// The same where readings and their texts are kept in memory.
const KEPT_OF_OWNER: Room = Room { pages: 256, ports: 512, connections: 8 << 10 };
const KEPT_OF_HOST: Room = Room { pages: 1024, ports: 1024, connections: 10 << 10 };

/// Numbers of pages, and of ports and connections in them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) pages: usize,
    pub(crate) ports: usize,
    pub(crate) connections: usize,
}

/// What is left for the rest of a reading.
#[derive(Debug)]
pub(crate) struct Budget {
    host: Room,
    of_owner: Room,
    owners: HashMap<Owner, Room>,
    /// Numbers of the pages of owners whose pages have equal parts.
    pages: HashMap<Owner, usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(OF_OWNER, OF_HOST)
    }
}

impl Budget {
    pub(crate) fn new(of_owner: Room, host: Room) -> Self {
        Self { host, of_owner, owners: HashMap::new(), pages: HashMap::new() }
    }

    /// Returns that of an agent, which keeps two readings and their texts: for pages of these owners.
    pub(crate) fn of_agent<'a>(owners: impl Iterator<Item = &'a Owner>) -> Self {
        Self::new(KEPT_OF_OWNER, KEPT_OF_HOST).in_parts(owners)
    }

    /// Gives the pages of one owner equal parts of its connections. `owners` has that of each page.
    fn in_parts<'a>(mut self, owners: impl Iterator<Item = &'a Owner>) -> Self {
        for owner in owners {
            *self.pages.entry(owner.clone()).or_default() += 1;
        }
        self
    }

    /// Returns whether another process of an owner may be inspected.
    pub(crate) fn has_room(&self, owner: &Owner) -> bool {
        self.host.pages > 0 && self.owners.get(owner).unwrap_or(&self.of_owner).pages > 0
    }

    /// Counts a page with these ports and connections: none, if it is unreadable. Returns how many of
    /// them may be kept.
    pub(crate) fn add_page(&mut self, owner: &Owner, ports: usize, connections: usize) -> (usize, usize) {
        let Self { host, of_owner, owners, pages } = self;
        let part = of_owner.connections / pages.get(owner).copied().unwrap_or(1);
        let own = owners.entry(owner.clone()).or_insert(*of_owner);
        let ports = ports.min(host.ports).min(own.ports);
        let connections = connections.min(host.connections).min(own.connections).min(part);
        for room in [host, own] {
            room.pages = room.pages.saturating_sub(1);
            room.ports -= ports;
            room.connections -= connections;
        }
        (ports, connections)
    }
}

/// Puts the first of each owner before the second of any: who comes last has room, too.
pub(crate) fn in_turn<T>(all: impl IntoIterator<Item = T>, owner: impl Fn(&T) -> Owner) -> Vec<T> {
    let mut seen: HashMap<Owner, usize> = HashMap::new();
    let turn = |one| {
        let turn = seen.entry(owner(&one)).or_default();
        *turn += 1;
        (*turn, one)
    };
    let mut all: Vec<(usize, T)> = all.into_iter().map(turn).collect();
    all.sort_by_key(|(turn, _)| *turn);
    all.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_owner_takes_up_the_room_of_another() {
        let room = |pages, connections| Room { pages, ports: connections, connections };
        let mut budget = Budget::new(room(2, 10), room(3, 15));
        for uid in [1, 1, 2] {
            assert!(budget.has_room(&Owner::User(uid)));
            assert_eq!(budget.add_page(&Owner::User(uid), 0, 0), (0, 0));
        }
        assert!([1, 2, 3].iter().all(|uid| !budget.has_room(&Owner::User(*uid))), "the host has three");
        let kept = [(1, 8), (1, 8), (2, 4), (3, 4)].map(|(uid, n)| budget.add_page(&Owner::User(uid), n, n));
        assert_eq!(kept, [(8, 8), (2, 2), (4, 4), (1, 1)]);
    }

    //= agent-interface.md: of many connections the document has some of each process
    #[test]
    fn no_page_takes_up_the_room_of_the_others_of_its_owner() {
        let owners = [(); 4].map(|()| Owner::User(1));
        let budget = Budget::new(Room { pages: 9, ports: 9, connections: 16 }, OF_HOST);
        let mut budget = budget.in_parts(owners.iter());
        let kept = owners.map(|owner| budget.add_page(&owner, 0, 1024).1);
        assert_eq!(kept, [4; 4]);
    }

    #[test]
    fn the_first_of_each_owner_comes_before_the_second_of_any() {
        let all = [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'd'), (3, 'e'), (2, 'f')];
        let turns: String = in_turn(all, |(uid, _)| Owner::User(*uid)).into_iter().map(|(_, c)| c).collect();
        assert_eq!(turns, "adebfc");
    }
}
