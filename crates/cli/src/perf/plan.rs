//! What both ends of a run do alike. A plan may come from another machine.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::args::{MOST_AT_ONCE, MOST_CONNECTIONS};
use crate::failure::{Failure, Kind};
use crate::quantity::MOST_BYTES;
use nccl_net_host::{Family, MAX_GROUP};

/// A fault of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Fault {
    pub(crate) device: String,
    /// What follows the device's name in the script.
    pub(crate) action: String,
}

impl Fault {
    /// Returns the script that breaks the device.
    pub(crate) fn script(&self) -> String {
        format!("{}:{}", self.device, self.action)
    }

    /// Returns the script that repairs the device.
    pub(crate) fn repair(&self) -> String {
        format!("{}:heal", self.device)
    }
}

/// How data moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// Sends meet receives.
    #[default]
    Messages,
    /// Puts, each with a signal.
    Put,
    /// Signals without data.
    Signal,
    /// Gets.
    Get,
}

impl Operation {
    pub(crate) const fn family(self) -> &'static Family {
        match self {
            Self::Messages => Family::NET,
            Self::Put | Self::Signal | Self::Get => Family::RMA,
        }
    }

    pub(crate) const fn is_one_sided(self) -> bool {
        !matches!(self, Self::Messages)
    }

    pub(crate) const fn is_get(self) -> bool {
        matches!(self, Self::Get)
    }

    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Put => "puts",
            Self::Signal => "signals",
            Self::Get => "gets",
        }
    }
}

/// What both ends do alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Plan {
    #[serde(default)]
    pub(crate) operation: Operation,
    pub(crate) sizes: Vec<usize>,
    /// In seconds.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub(crate) time: Duration,
    pub(crate) iterations: Option<u64>,
    pub(crate) depth: usize,
    pub(crate) receives: usize,
    pub(crate) optional: bool,
    pub(crate) bidirectional: bool,
    pub(crate) ping_pong: bool,
    pub(crate) connections: usize,
    pub(crate) at_once: usize,
    pub(crate) check: bool,
    pub(crate) memory: usize,
    /// In seconds.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub(crate) timeout: Duration,
    pub(crate) fault: Option<Fault>,
}

/// A time as a number of seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Plan {
    /// Returns whether both ends send and receive.
    pub(crate) const fn both_ways(&self) -> bool {
        self.bidirectional || self.ping_pong
    }

    /// Checks the bounds of the options: a plan may come from another machine.
    pub(crate) fn validate(self) -> Result<Self, Failure> {
        let bad =
            |what: String| Err(Failure::new(Kind::Usage, format!("the plan from the other end: {what}")));
        if self.sizes.is_empty() || self.sizes.len() > super::sizes::MOST_SIZES {
            return bad(format!("{} sizes, expected 1 to {}", self.sizes.len(), super::sizes::MOST_SIZES));
        }
        if let Some(size) = self.sizes.iter().find(|s| **s > super::sizes::LARGEST) {
            return bad(format!("size {size}, expected at most {}", super::sizes::LARGEST));
        }
        if !(1..=32).contains(&self.depth) || !(1..=MAX_GROUP).contains(&self.receives) {
            return bad(format!(
                "depth {} (1 to 32), receives {} (1 to {MAX_GROUP})",
                self.depth, self.receives
            ));
        }
        if !(1..=MOST_BYTES).contains(&self.memory) || self.iterations == Some(0) {
            return bad(format!("memory {}, iterations {:?}", self.memory, self.iterations));
        }
        if self.optional && (self.receives != 1 || self.ping_pong) {
            return bad(format!("optional receives in groups of {}, or in round trips", self.receives));
        }
        if self.connections > MOST_CONNECTIONS as usize || (self.ping_pong && self.receives != 1) {
            return bad(format!("connections {}, ping-pong of {} receives", self.connections, self.receives));
        }
        let has_receives = self.receives != 1 || self.optional || self.connections > 0;
        if self.operation.is_one_sided() && has_receives {
            let Self { receives, optional, connections, .. } = self;
            return bad(format!(
                "{} with {receives} receives (optional: {optional}) and {connections} connections",
                self.operation.plural()
            ));
        }
        if self.operation.is_get() && self.ping_pong {
            return bad("gets in round trips".into());
        }
        if self.operation == Operation::Signal && self.sizes != [0] {
            return bad(format!("signals with data: sizes {:?}", self.sizes));
        }
        if !(1..=MOST_AT_ONCE as usize).contains(&self.at_once) {
            return bad(format!("{} connections at a time, expected 1 to {MOST_AT_ONCE}", self.at_once));
        }
        if let Some(fault) = &self.fault {
            return bad(format!("fault {}: only for two ends on one machine", fault.script()));
        }
        let day = Duration::from_secs(86_400);
        if self.time > day || self.timeout > day || self.timeout.is_zero() {
            return bad(format!("time {:?}, timeout {:?}", self.time, self.timeout));
        }
        Ok(self)
    }
}
