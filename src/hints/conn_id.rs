//! Identifiers of connections.
//!
//! The field has 32 bits and a process id alone needs up to 22, so no rule makes identifiers unique on a host; within a process
//! these are, always. The first 1024 of a process begin with its process id, which keeps those of two processes (of one PID
//! namespace) apart as well, for agents that do not tell sockets apart.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An identifier that no other connection of this process has until this is dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnId(u32);

/// How many begin with the process id.
const OWN: u32 = 1 << 10;

#[derive(Debug)]
struct Taken {
    ids: Option<HashSet<u32>>,
    /// Where to look first: not where one was just given back, so that a late word about it finds nobody.
    next: u32,
}

fn taken() -> MutexGuard<'static, Taken> {
    static TAKEN: Mutex<Taken> = Mutex::new(Taken { ids: None, next: 0 });
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnId {
    pub(super) fn take() -> Self {
        let first = std::process::id().wrapping_mul(OWN);
        let mut taken = taken();
        let next = taken.next;
        let ids = taken.ids.get_or_insert_default();
        let own = (0..OWN).map(|i| first.wrapping_add((next + i) % OWN));
        // Behind these, those of process ids far from this one.
        let others = (OWN..=u32::MAX).map(|i| first.wrapping_sub(i));
        let id = own.chain(others).find(|id| !ids.contains(id)).unwrap_or(first);
        ids.insert(id);
        taken.next = id.wrapping_sub(first).wrapping_add(1) % OWN;
        Self(id)
    }

    pub(super) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for ConnId {
    fn drop(&mut self) {
        if let Some(ids) = &mut taken().ids {
            ids.remove(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one test that takes any here, so that counts are its own.
    #[test]
    fn identifiers_are_unique_while_they_live_and_begin_with_the_process_id() {
        let first = ConnId::take().get();
        let second = ConnId::take().get();
        assert_ne!(first, second, "one that was given back is not the next");
        let many: Vec<ConnId> = (0..3000).map(|_| ConnId::take()).collect();
        let own = |id: &&ConnId| id.get() / OWN == std::process::id() % (1 << 22);
        assert_eq!(many.iter().filter(own).count(), OWN as usize);
        let distinct: HashSet<u32> = many.iter().map(ConnId::get).collect();
        assert_eq!(distinct.len(), 3000);
        drop(many);
        assert!(taken().ids.as_ref().is_some_and(HashSet::is_empty));
    }
}
