//! The keys of a buffer or of control memory by rail, two to a word as in a CTS entry.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::proto::MAX_RAILS;

const WORDS: usize = MAX_RAILS / 2;

/// One key for each rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RailKeys(pub(crate) [u64; WORDS]);

/// The same, for keys that change while other threads read them: an adapter that is opened again
/// gives new ones.
#[derive(Debug, Default)]
pub(crate) struct SharedRailKeys([AtomicU64; WORDS]);

impl RailKeys {
    pub(crate) const NONE: Self = Self([0; WORDS]);

    /// Returns the key of a rail.
    #[inline]
    pub(crate) fn get(&self, rail: usize) -> u32 {
        (self.0[rail / 2 % WORDS] >> (rail % 2 * 32)) as u32
    }

    /// Sets the key of a rail.
    pub(crate) fn set(&mut self, rail: usize, key: u32) {
        let (word, shift) = (&mut self.0[rail / 2], rail % 2 * 32);
        *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(key) << shift;
    }

    /// Returns the keys by rail.
    #[inline]
    pub(crate) fn each(&self) -> [u32; MAX_RAILS] {
        std::array::from_fn(|rail| self.get(rail))
    }
}

impl SharedRailKeys {
    /// Returns the present keys.
    #[inline]
    pub(crate) fn get(&self) -> RailKeys {
        RailKeys(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }

    /// Returns the present key of a rail.
    #[inline]
    pub(crate) fn of(&self, rail: usize) -> u32 {
        (self.0[rail / 2 % WORDS].load(Ordering::Relaxed) >> (rail % 2 * 32)) as u32
    }

    /// Sets the key of a rail. One thread at a time may call this.
    pub(crate) fn set(&self, rail: usize, key: u32) {
        let mut keys = self.get();
        keys.set(rail, key);
        self.0[rail / 2].store(keys.0[rail / 2], Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rail_has_its_own_key() {
        let shared = SharedRailKeys::default();
        let mut keys = RailKeys::NONE;
        for (rail, key) in (0..MAX_RAILS).zip(0xffff_fff0..) {
            shared.set(rail, key);
            keys.set(rail, key);
        }
        shared.set(3, 7);
        keys.set(3, 7);
        assert_eq!(shared.get(), keys);
        let expected: Vec<u32> =
            (0..8).zip(0xffff_fff0..).map(|(rail, key)| if rail == 3 { 7 } else { key }).collect();
        assert_eq!(keys.each()[..], expected);
        assert_eq!((0..MAX_RAILS).map(|rail| shared.of(rail)).collect::<Vec<_>>(), expected);
    }
}
