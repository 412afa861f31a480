//! How much each owner holds of what all of a host share.

use std::collections::BTreeMap;

use mpib_host_view::Owner;

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
