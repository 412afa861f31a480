//! Checks that the blocks of a launch together do all of each transfer. A block without work is
//! legal, so a descriptor that is read wrongly could stop a rank or drop data in silence.

use std::{collections::HashMap, hash::Hash, ops::Range};

use crate::Unknown;

/// The parts of the transfers of a launch.
#[derive(Debug)]
pub(super) struct Coverage<K> {
    transfers: HashMap<K, Transfer>,
}

#[derive(Debug)]
struct Transfer {
    name: String,
    total: usize,
    parts: Vec<Range<usize>>,
}

impl<K: Eq + Hash> Coverage<K> {
    pub(super) fn new() -> Self {
        Self { transfers: HashMap::new() }
    }

    /// Adds parts of a transfer of `total` elements or bytes.
    pub(super) fn add(
        &mut self,
        transfer: K,
        name: impl FnOnce() -> String,
        total: usize,
        parts: impl Iterator<Item = Range<usize>>,
    ) {
        let entry = self.transfers.entry(transfer);
        let entry = entry.or_insert_with(|| Transfer { name: name(), total, parts: Vec::new() });
        entry.parts.extend(parts.filter(|part| !part.is_empty()));
    }

    /// Fails unless every element of every transfer belongs to equally many parts, at least one. A
    /// user may request the same transfer more than once.
    pub(super) fn check(self) -> Result<(), Unknown> {
        self.transfers.into_values().try_for_each(|transfer| transfer.check())
    }
}

impl Transfer {
    fn check(mut self) -> Result<(), Unknown> {
        self.parts.sort_unstable_by_key(|part| (part.start, part.end));
        let times = self.parts.iter().take_while(|part| part.start == 0).count();
        let wrong = |range: Range<usize>, found: usize| {
            let what = format!("{}..{} of {}, {}", range.start, range.end, self.total, self.name);
            Unknown::new("work for elements", what).found(format!("{found} parts of the launch have them"))
        };
        if self.total == 0 {
            return match self.parts.first() {
                Some(part) => Err(wrong(part.clone(), 1)),
                None => Ok(()),
            };
        }
        let mut changes: Vec<(usize, isize)> = Vec::with_capacity(2 * self.parts.len() + 1);
        for part in &self.parts {
            changes.extend([(part.start, 1), (part.end, -1)]);
        }
        changes.push((self.total, 0));
        changes.sort_unstable();
        let (mut at, mut depth) = (0, 0);
        for (place, change) in changes {
            let expected = if at < self.total { times.max(1) as isize } else { 0 };
            if place > at && depth != expected {
                return Err(wrong(at..place, depth as usize));
            }
            at = place;
            depth += change;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(total: usize, parts: &[Range<usize>]) -> Result<(), String> {
        let mut coverage = Coverage::new();
        coverage.add(0, || "test".into(), total, parts.iter().cloned());
        coverage.check().map_err(|unknown| unknown.to_string())
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn parts_that_cover_a_transfer_are_right() {
        assert_eq!(check(10, &[4..10, 0..4]), Ok(()));
        assert_eq!(check(10, &[0..10, 0..4, 4..10]), Ok(()), "the same transfer twice");
        assert_eq!(check(10, &[0..10, 10..10]), Ok(()), "an empty part");
        assert_eq!(check(0, &[0..0]), Ok(()));
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn gaps_overlaps_and_excess_are_errors_with_their_place() {
        for (parts, place) in [
            (vec![0..4, 6..10], "4..6 of 10, test"),
            (vec![0..4, 4..9], "9..10"),
            (vec![2..10], "0..2"),
            (vec![0..6, 4..10], "4..6"),
            (vec![0..12], "10..12"),
            (vec![], "0..10"),
        ] {
            let error = check(10, &parts).expect_err("wrong parts");
            assert!(error.contains(place), "{error}");
        }
        assert!(check(0, &[0..1]).is_err());
    }
}
