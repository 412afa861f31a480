//! How much each user holds of what all users of a host share.

use std::collections::BTreeMap;

/// Counts who holds how much of something.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    all: usize,
    held: BTreeMap<u32, usize>,
}

impl Quota {
    /// Returns how much a user holds.
    pub(crate) fn held(&self, user: u32) -> usize {
        self.held.get(&user).copied().unwrap_or(0)
    }

    /// Returns how much all users hold.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// Counts what a user has got.
    pub(crate) fn add(&mut self, user: u32, count: usize) {
        if count > 0 {
            self.all += count;
            *self.held.entry(user).or_default() += count;
        }
    }

    /// Counts what a user has given back.
    pub(crate) fn remove(&mut self, user: u32, count: usize) {
        let Some(held) = self.held.get_mut(&user) else { return };
        let count = count.min(*held);
        self.all -= count;
        *held -= count;
        if *held == 0 {
            self.held.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_no_longer_held() {
        let mut quota = Quota::default();
        quota.add(1, 7);
        quota.add(2, 3);
        assert_eq!((quota.all(), quota.held(1), quota.held(2), quota.held(3)), (10, 7, 3, 0));
        quota.remove(1, 100);
        quota.remove(3, 1);
        assert_eq!((quota.all(), quota.held(1), quota.held.len()), (3, 0, 1));
    }
}
