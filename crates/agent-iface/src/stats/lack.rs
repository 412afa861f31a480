//! Why a connection lacks a rail.

use super::Reason;

/// Why a connection lacks a rail that it expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// It is never used: no route is left for it.
    LeftOut,
    /// It has not worked since the connection was made, and joins when it works.
    Connect,
    /// It has failed, and returns when it works.
    GivenUp(Reason),
}

impl Lack {
    /// Returns the number that is used in the page.
    pub(super) fn code(self) -> u64 {
        match self {
            Self::LeftOut => 1,
            Self::Connect => 2,
            Self::GivenUp(reason) => 3 + u64::from(reason.code()),
        }
    }

    /// Returns the value for a number, or `None` if the number is unknown.
    pub(super) fn of(code: u64) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::LeftOut),
            2 => Some(Self::Connect),
            code => Reason::of(u8::try_from(code - 3).ok()?).map(Self::GivenUp),
        }
    }

    /// Returns a short text for tables, JSON and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::LeftOut => "left_out",
            Self::Connect => "connect",
            Self::GivenUp(reason) => reason.word(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_survives_the_page() {
        let given_up = Reason::ALL.iter().map(|reason| Lack::GivenUp(*reason));
        for lack in [Lack::LeftOut, Lack::Connect].into_iter().chain(given_up) {
            assert_eq!(Lack::of(lack.code()), Some(lack));
        }
        assert_eq!([0, 3 + Reason::ALL.len() as u64, u64::MAX].map(Lack::of), [None; 3]);
    }
}
