//! Which pairs of hosts are measured. The same rule, number of hosts and seed give the same pairs.

use std::{collections::BTreeSet, fmt, str::FromStr};

use crate::failure::{Failure, Kind};

/// Most pairs of hosts that one command measures.
const MOST: usize = 8192;
/// Up to so many hosts, each pair is measured if no rule is named.
const FEW: usize = 16;
/// How many others each of more hosts is measured with if no rule is named.
const OTHERS: usize = 3;

/// A rule for the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Each host with the next one, and the last with the first.
    Ring,
    /// Each host with so many others.
    Random(usize),
    All,
}

/// Two hosts by their places in the list. The first one checks the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Pairs {
    /// Returns the rule for so many hosts if none is named.
    pub(super) fn usual(hosts: usize) -> Self {
        if hosts <= FEW { Self::All } else { Self::Random(OTHERS) }
    }

    /// Whether the pairs depend on the seed.
    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::Random(_))
    }

    /// Returns the pairs of so many hosts, each once.
    pub(super) fn of(self, hosts: usize, seed: u64) -> Result<Vec<Pair>, Failure> {
        let mut order: Vec<usize> = (0..hosts).collect();
        // Pairs of hosts that are so far from each other on a circle.
        let mut steps: Vec<usize> = (1..=hosts / 2).collect();
        match self {
            Self::Ring => steps.truncate(1),
            Self::All => {}
            Self::Random(others) => {
                let mut random = fastrand::Rng::with_seed(seed);
                random.shuffle(&mut order);
                random.shuffle(&mut steps);
                steps.truncate(others);
            }
        }
        if hosts * steps.len() > MOST && self != Self::Ring {
            let text = format!(
                "--pairs {self} of {hosts} hosts are more than {MOST} pairs; use --pairs random:{OTHERS}, or ring"
            );
            return Err(Failure::new(Kind::Usage, text));
        }
        let pair = |place: usize, step: usize| {
            let (a, b) = (order[place], order[(place + step) % hosts]);
            Pair { from: a.min(b), to: a.max(b) }
        };
        let all = steps.iter().flat_map(|step| (0..hosts).map(|place| pair(place, *step)));
        Ok(all.collect::<BTreeSet<_>>().into_iter().collect())
    }
}

impl FromStr for Pairs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let others = |text: &str| text.parse().ok().filter(|others| *others > 0).map(Self::Random);
        let rule = match text.split_once(':') {
            None if text == "ring" => Some(Self::Ring),
            None if text == "all" => Some(Self::All),
            Some(("random", number)) => others(number),
            _ => None,
        };
        rule.ok_or_else(|| {
            format!("{text:?} is no rule for pairs; expected ring, random:N (such as random:3) or all")
        })
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => f.write_str("ring"),
            Self::Random(others) => write!(f, "random:{others}"),
            Self::All => f.write_str("all"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partners(pairs: &[Pair], host: usize) -> usize {
        pairs.iter().filter(|pair| pair.from == host || pair.to == host).count()
    }

    //= fleet.md: --pairs ring, random:N and all
    #[test]
    fn each_host_has_as_many_partners_as_the_rule_says() {
        for hosts in [2, 3, 4, 5, 17, 90] {
            let of = |pairs: Pairs| pairs.of(hosts, 7).unwrap();
            let ring = of(Pairs::Ring);
            assert_eq!(ring.len(), if hosts == 2 { 1 } else { hosts });
            assert!((0..hosts).all(|host| partners(&ring, host) == 2.min(hosts - 1)));
            let all = of(Pairs::All);
            assert_eq!(all.len(), hosts * (hosts - 1) / 2);
            let random = of(Pairs::Random(3));
            assert!((0..hosts).all(|host| partners(&random, host) >= 3.min(hosts - 1)), "{random:?}");
            assert!(random.iter().all(|pair| pair.from < pair.to && pair.to < hosts));
            // Each twice at most: as one that is measured with others, and as one of their others.
            assert!((0..hosts).all(|host| partners(&random, host) <= 6));
        }
        assert_eq!(Pairs::All.of(0, 7).unwrap(), []);
    }

    #[test]
    fn the_seed_decides_the_pairs() {
        let of = |seed| Pairs::Random(3).of(100, seed).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    //= fleet.md: the number of pairs is bounded
    #[test]
    fn too_many_pairs_are_refused_with_what_to_do() {
        let error = Pairs::All.of(500, 1).unwrap_err();
        assert!(
            error.message.contains("--pairs all of 500 hosts") && error.message.contains("random:3"),
            "{error}"
        );
        assert!(Pairs::Random(17).of(500, 1).is_err());
        assert_eq!(Pairs::Random(16).of(500, 1).unwrap().len(), 8000);
        assert_eq!((Pairs::usual(16), Pairs::usual(17)), (Pairs::All, Pairs::Random(3)));
    }

    #[test]
    fn a_rule_is_a_word() {
        for text in ["ring", "all", "random:3"] {
            assert_eq!(text.parse::<Pairs>().unwrap().to_string(), text);
        }
        for text in ["", "random", "random:", "random:0", "random:x", "ring:1", "some"] {
            assert!(text.parse::<Pairs>().unwrap_err().contains("expected ring, random:N"), "{text}");
        }
    }
}
