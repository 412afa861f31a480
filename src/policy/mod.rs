//! Decides how much of a transfer goes on which rail. No other module decides that.
//!
//! [`SplitMode`] is the meaning of the settings for a device. A [`Plan`] is made once per
//! connection, the same at both ends: which rails get queue pairs, and which one carries CTS
//! writes. A [`Policy`] belongs to the sender and cuts each transfer.

mod capacity;
mod goodput;
mod limits;
mod measured;
mod plan;
mod shares;
mod split;
#[cfg(test)]
mod tests;
mod weights;

use crate::config::{Config, SplitBy};
use crate::proto::Mode;

pub use capacity::{max_connections, speed};
pub use goodput::MEASURED;
pub use limits::Limits;
pub use measured::Measured;
pub use plan::{Plan, Stripes, terms};
pub use split::{Capacities, Cut, HintSource, Policy, Source, Whole};
pub use weights::{Followers, Weights};

/// How a device or a connection divides transfers among its rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMode {
    /// Plain rails: in proportion to their speeds.
    BySpeed,
    /// Plain rails: in proportion to their goodput, which is measured.
    Measured,
    /// SOUT and SUP, vanilla (`MPIB_MODE=0`): one rail carries all data of a connection.
    Isolated,
    /// SOUT and SUP with a constant share for SUP, in parts per 1024 (`MPIB_SUP_SHARE`).
    Fixed(u16),
    /// SOUT and SUP, advanced (`MPIB_MODE=1`): hints of the agent give the share for SUP.
    Hinted,
}

impl SplitMode {
    /// Interprets the settings for a device. `fused` if its rails are SOUT and SUP.
    pub fn new(config: &Config, fused: bool) -> Self {
        match (config.sup_share, config.mode) {
            _ if !fused && config.split == SplitBy::Measured => Self::Measured,
            _ if !fused => Self::BySpeed,
            (Some(share), _) => Self::Fixed(share),
            (None, Mode::Vanilla) => Self::Isolated,
            (None, Mode::Advanced) => Self::Hinted,
        }
    }
}
