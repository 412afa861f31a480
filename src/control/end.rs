//! How a control connection ends.

use std::io::{self, ErrorKind};

use crate::error::Error;

/// State of the connection to the peer, as far as this end knows. Read with one atomic load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelState {
    /// No end of the connection is known. A connection that is not established yet counts as open.
    Open,
    /// The peer has sent BYE.
    ByePeer,
    /// The peer's process has ended without a BYE, or breaks the protocol. Without failover also: the
    /// peer cannot be reached.
    Lost,
    /// With failover: the TCP connection of an established connection broke, which is no sign of the
    /// peer's death. It is dialled again until the channel is closed.
    Broken,
}

impl ChannelState {
    pub(super) fn from_raw(n: u8) -> Self {
        [Self::Open, Self::ByePeer, Self::Lost, Self::Broken][usize::from(n.min(3))]
    }
}

/// Why the connection has ended.
#[derive(Debug)]
pub(super) enum End {
    Bye,
    Lost(String),
    /// The TCP connection was reset, has timed out or was changed on the way, which says nothing of
    /// the peer.
    Broken(String),
    /// The peer breaks the protocol.
    Violation(String),
}

impl End {
    pub(super) fn state(&self) -> ChannelState {
        if matches!(self, Self::Bye) { ChannelState::ByePeer } else { ChannelState::Lost }
    }

    /// Returns the error of a channel to the peer of this name, whose owner waits for `step`. A peer
    /// that was never reached has no name.
    pub(super) fn error(&self, peer: Option<String>, step: Option<&str>) -> Error {
        let during = step.map_or(String::new(), |step| format!(" while this end waited for {step}"));
        let name = peer.as_deref().unwrap_or("the peer");
        match self {
            // The reason names the addresses.
            Self::Lost(why) | Self::Broken(why) if peer.is_none() => Error::Peer(why.clone()),
            Self::Bye => Error::Peer(format!("{name} has closed the connection{during}")),
            Self::Lost(why) | Self::Broken(why) => Error::Peer(format!("{name}: {why}{during}")),
            Self::Violation(why) => Error::Protocol(format!("{name} sent {why}{during}")),
        }
    }
}

/// Describes a failed read. A process that ends with unread bytes resets its connections; those of
/// a host that ends time out.
pub(super) fn broken(e: &io::Error) -> String {
    let cause = match e.kind() {
        ErrorKind::ConnectionReset => "; did its process end?",
        ErrorKind::TimedOut => "; is its host up, and the network between?",
        _ => "",
    };
    format!("the connection broke: {e}{cause}")
}
