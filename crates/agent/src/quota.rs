//! How much each owner holds of what all of a host share.

use std::collections::BTreeMap;

use mpib_host_view::Owner;

/// Who asks for more has as much as the others, and nothing is left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Counts who holds how much of something.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    all: usize,
    held: BTreeMap<Owner, usize>,
}

impl Quota {
    /// Returns how much an owner holds.
    pub(crate) fn held(&self, owner: &Owner) -> usize {
        self.held.get(owner).copied().unwrap_or(0)
    }

    /// Returns how much all of them hold.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// Returns whether an owner may have one more of `whole`. If nothing is left, the one who holds most
    /// must give up one, and is returned; unless that would leave it with less than the other one.
    pub(crate) fn room(&self, owner: &Owner, whole: usize) -> Result<Option<Owner>, Full> {
        if self.all < whole {
            return Ok(None);
        }
        let most = self.held.iter().max_by_key(|(_, held)| **held);
        let most = most.filter(|(_, most)| **most > self.held(owner) + 1);
        most.map(|(most, _)| Some(most.clone())).ok_or(Full)
    }

    /// Counts what an owner has got.
    pub(crate) fn add(&mut self, owner: &Owner, count: usize) {
        if count > 0 {
            self.all += count;
            *self.held.entry(owner.clone()).or_default() += count;
        }
    }

    /// Counts what an owner has given back.
    pub(crate) fn remove(&mut self, owner: &Owner, count: usize) {
        let Some(held) = self.held.get_mut(owner) else { return };
        let count = count.min(*held);
        self.all -= count;
        *held -= count;
        if *held == 0 {
            self.held.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets an owner take all that it gets. Returns how much that is.
    fn takes_all(quota: &mut Quota, owner: &Owner, whole: usize) -> usize {
        while let Ok(from) = quota.room(owner, whole) {
            if let Some(from) = from {
                assert_ne!(from, *owner);
                quota.remove(&from, 1);
            }
            quota.add(owner, 1);
        }
        quota.held(owner)
    }

    //= agent.md: somebody who comes last has as much as the others
    #[test]
    fn the_owner_with_the_most_makes_room_for_others() {
        let mut quota = Quota::default();
        let whole = 1000;
        for (before, uid) in (0..50).enumerate() {
            let got = takes_all(&mut quota, &Owner::User(uid), whole);
            assert_eq!(got, whole / (before + 1), "after {before} others");
            assert_eq!(quota.all(), whole);
        }
        assert!((0..50).all(|uid| quota.held(&Owner::User(uid)) == 20));
    }

    #[test]
    fn what_is_given_back_is_no_longer_held() {
        let mut quota = Quota::default();
        let [one, two, three] = [1, 2, 3].map(Owner::User);
        quota.add(&one, 7);
        quota.add(&two, 3);
        assert_eq!((quota.all(), quota.held(&one), quota.held(&two), quota.held(&three)), (10, 7, 3, 0));
        quota.remove(&one, 100);
        quota.remove(&three, 1);
        assert_eq!((quota.all(), quota.held(&one), quota.held.len()), (3, 0, 1));
    }
}
