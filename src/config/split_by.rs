//! `MPIB_SPLIT`: how messages are split.

use std::fmt;
use std::str::FromStr;

use super::form::Described;

/// The value of `MPIB_SPLIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitBy {
    /// By the speeds that the ports report.
    Speed,
    /// By the goodput that is measured.
    Measured,
    /// By the share for SUP alone.
    Share,
}

impl SplitBy {
    const ALL: [Self; 3] = [Self::Speed, Self::Measured, Self::Share];
}

/// The value of the setting.
impl fmt::Display for SplitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Speed => "speed",
            Self::Measured => "measured",
            Self::Share => "share",
        })
    }
}

impl FromStr for SplitBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|by| by.to_string() == text).ok_or(())
    }
}

impl Described for SplitBy {
    const EXPECTED: &'static str = "speed, measured or share";
}
