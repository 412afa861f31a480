//! Sets of a connection's rails.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign};

use crate::{MAX_RAILS, rails};

/// A set of a connection's rails, by their index. On the wire it is one byte: bit `i` is rail `i`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RailSet(u8);

const _: () = assert!(MAX_RAILS <= u8::BITS as usize);

impl RailSet {
    /// No rail.
    pub const EMPTY: Self = Self(0);

    /// All rails that a connection can have.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns the set with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the rails 0 to `count` - 1; `count` is at most [`MAX_RAILS`].
    pub const fn first(count: usize) -> Self {
        Self(((1u16 << count) - 1) as u8)
    }

    /// Returns the set of one rail.
    pub const fn of(rail: usize) -> Self {
        Self(1 << rail)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether there is no rail.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of rails.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether `rail` is in the set.
    pub const fn contains(self, rail: usize) -> bool {
        self.0 >> rail & 1 == 1
    }

    /// Returns whether all rails of `other` are in the set.
    pub const fn includes(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the rails that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the rail with the lowest index.
    pub const fn lowest(self) -> Option<usize> {
        match self.0 {
            0 => None,
            bits => Some(bits.trailing_zeros() as usize),
        }
    }

    /// Adds a rail.
    pub const fn insert(&mut self, rail: usize) {
        self.0 |= 1 << rail;
    }

    /// Takes a rail out.
    pub const fn remove(&mut self, rail: usize) {
        self.0 &= !(1 << rail);
    }

    /// Yields the rails in the order of their indices.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        rails(self.0)
    }
}

impl FromIterator<usize> for RailSet {
    fn from_iter<I: IntoIterator<Item = usize>>(rails: I) -> Self {
        rails.into_iter().fold(Self::EMPTY, |set, rail| set | Self::of(rail))
    }
}

impl BitOr for RailSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RailSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for RailSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitAndAssign for RailSet {
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl fmt::Debug for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04b}", self.0)
    }
}

impl fmt::Display for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_the_rails_of_its_bits() {
        for bits in 0..=u8::MAX {
            let set = RailSet::from_bits(bits);
            let rails: Vec<usize> = (0..8).filter(|rail| bits >> rail & 1 == 1).collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), rails);
            assert_eq!((set.len(), set.lowest()), (rails.len(), rails.first().copied()));
            assert_eq!(rails.iter().copied().collect::<RailSet>(), set);
            let mut all = RailSet::EMPTY;
            rails.iter().for_each(|rail| all.insert(*rail));
            assert!(all == set && set.includes(all));
            rails.iter().for_each(|rail| all.remove(*rail));
            assert_eq!(all, RailSet::EMPTY);
            assert_eq!(set.without(RailSet::from_bits(!bits)), set);
        }
        assert_eq!(RailSet::first(8), RailSet::ALL);
        assert_eq!(RailSet::first(0), RailSet::EMPTY);
        assert_eq!(format!("{} {:?}", RailSet::of(2), RailSet::EMPTY), "0b100 0b00");
    }
}
