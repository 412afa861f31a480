//! Message sizes.

use std::str::FromStr;

use crate::{
    failure::{Failure, Kind},
    quantity::bytes,
};

/// The largest message: NCCL's core never sends more than 1 GiB at once, and `test` returns sizes
/// as a C int.
pub(crate) const LARGEST: usize = 1 << 30;
/// More sizes indicate a mistyped factor.
pub(crate) const MOST_SIZES: usize = 1000;

/// A list of sizes and ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    One(usize),
    Range(usize, usize),
}

/// Parses a message's size.
fn size(text: &str) -> Result<usize, String> {
    let size = bytes(text)?;
    if size > LARGEST {
        return Err(format!("{text}: NCCL sends messages of at most 1G"));
    }
    Ok(size)
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |word: &str| match word.split_once("..") {
            None => size(word).map(Part::One),
            Some((from, to)) => {
                let (from, to) = (size(from)?, size(to)?);
                if from == 0 || from > to {
                    return Err(format!("{word:?}: a range starts at 1 or more and ends at no less"));
                }
                Ok(Part::Range(from, to))
            }
        };
        text.split(',').map(part).collect::<Result<_, _>>().map(Self)
    }
}

impl Sizes {
    /// Returns all sizes. The end of each range is included, even if no step falls on it.
    pub(crate) fn expand(&self, factor: u32) -> Result<Vec<usize>, Failure> {
        let mut all = Vec::new();
        for part in &self.0 {
            match *part {
                Part::One(size) => all.push(size),
                Part::Range(from, to) => {
                    let next = |size: &usize| size.checked_mul(factor as usize).filter(|s| *s < to);
                    all.extend(std::iter::successors(Some(from).filter(|f| *f < to), next));
                    all.push(to);
                }
            }
        }
        if all.len() > MOST_SIZES {
            return Err(Failure::new(
                Kind::Usage,
                format!("{} sizes, expected at most {MOST_SIZES}", all.len()),
            ));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str, factor: u32) -> Vec<usize> {
        text.parse::<Sizes>().unwrap().expand(factor).unwrap()
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(sizes("0,8,4K", 2), [0, 8, 4096]);
        assert_eq!(sizes("8..64", 2), [8, 16, 32, 64]);
        assert_eq!(sizes("8..100", 4), [8, 32, 100]);
        assert_eq!(sizes("5..5,1M", 4), [5, 1 << 20]);
    }

    #[test]
    fn nonsense_is_named() {
        for bad in ["", "8..", "64..8", "0..8", "x", "4T", "-1", "99999999999G", "2G"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_range_to_the_largest_size_ends() {
        assert_eq!(sizes("1..1G", 1 << 20), [1, 1 << 20, 1 << 30]);
    }
}
