//! How much of a transfer goes on which rail: the only place that decides it.

use crate::proto::{SHARE_ONE, Split};

/// A connection's policy. Rails are those of the connection: 0 is SOUT where there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    share: u16,
    available: u8,
}

impl Policy {
    /// `share` parts of 1024 go on rail 1; `rails` says how many there are, one or two.
    pub fn new(share: u16, rails: usize) -> Self {
        let available = if rails > 1 { 0b11 } else { 0b1 };
        Self { share: share.min(SHARE_ONE), available }
    }

    /// The cut of one transfer of `size` bytes. An empty one goes on rail 0, whatever the share.
    pub fn split(&self, size: usize) -> Option<Split> {
        let share = if size == 0 { 0 } else { self.share };
        Split::by_share(size, share, self.available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(share: u16, rails: usize) -> [u8; 2] {
        [0, 1 << 20].map(|size| Policy::new(share, rails).split(size).unwrap().mask())
    }

    #[test]
    fn the_share_counts_where_there_are_two_rails_and_bytes() {
        assert_eq!(masks(0, 2), [1, 1]);
        assert_eq!(masks(512, 2), [1, 3]);
        assert_eq!(masks(1024, 2), [1, 2]);
        assert_eq!(masks(4000, 2), [1, 2]);
        assert_eq!(masks(1024, 1), [1, 1]);
    }
}
