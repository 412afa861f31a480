//! The stages of a handshake.

use std::time::Instant;

use super::attempts::Attempts;
use crate::proto::{Hello, Wiring};
use crate::split::Plan;

/// What the machine waits for: a message of the peer, or work of the driver.
#[derive(Debug)]
pub(super) enum Stage {
    Hello,
    /// An acceptor has the connector's HELLO. The WIRING that the connector has sent with it is due.
    Guess(Hello),
    /// The driver lists all ports of the process.
    ListPorts(Attempts),
    /// The peer's second HELLO is due.
    Others(Attempts),
    /// No rail works. Until then the ends wait for one.
    Pause(Instant),
    /// The driver lists its ports again.
    ListAgain,
    /// The peer's HELLO with the present state of its ports is due.
    Again,
    /// With the connector's WIRING, if the acceptor has it already.
    MakeEndpoint(Attempts, Option<Wiring>),
    /// The local WIRING has been sent by a connector; an acceptor sends it after bring-up.
    Wiring(Attempts, Wiring),
    BringUp(Attempts, Wiring),
    Ready(Attempts),
    /// With the time limit of the probes, until it is over.
    Probe(Attempts, Option<Instant>),
    /// With the results of the local probes.
    Probed(Attempts, Vec<Result<(), String>>),
    /// `accepted`: the connector has committed to the connection with its PROBED.
    Keep {
        plan: Plan,
        accepted: bool,
    },
    /// `MPIB_STRICT=1`: the first hint has to come until `by`.
    Hint {
        plan: Plan,
        by: Option<Instant>,
        peer_ready: bool,
    },
    /// The peer's second READY.
    Commit,
    Ended,
}

impl Stage {
    /// Returns the name of the message that the peer has to send.
    pub(super) const fn due(&self) -> &'static str {
        match self {
            Self::Hello | Self::Again => "HELLO",
            Self::Others(_) => "HELLO with all ports",
            Self::Guess(_) | Self::Wiring(..) => "WIRING",
            Self::Ready(_) => "READY",
            Self::Probed(..) => "PROBED",
            Self::Commit | Self::Hint { peer_ready: false, .. } => "READY to use the connection",
            Self::ListPorts(_)
            | Self::Pause(_)
            | Self::ListAgain
            | Self::MakeEndpoint(..)
            | Self::BringUp(..)
            | Self::Probe(..)
            | Self::Keep { .. }
            | Self::Hint { .. }
            | Self::Ended => "nothing",
        }
    }
}
