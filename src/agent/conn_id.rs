//! Identifiers of connections.
//!
//! The field has 32 bits and a process id alone needs up to 22: no rule makes identifiers unique on
//! a host. Within a process they are always unique. The first 1024 of a process begin with its
//! process id: they are also unique among processes of one PID namespace, for agents that do not
//! distinguish sockets.

use std::collections::BTreeSet;

use std::sync::Arc;

use parking_lot::Mutex;

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
