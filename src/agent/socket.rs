//! The socket to the agent: finding it, and bytes and descriptors over it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nccl_net_mpib_agent_iface::agent::paths::Trust;
use nccl_net_mpib_agent_iface::agent::{self, MESSAGE_MAX, NoAgent, passing};

/// A connection to an agent.
#[derive(Debug)]
pub(super) struct AgentSocket {
    pub(super) socket: UnixStream,
    /// Where the agent listens.
    pub(super) path: PathBuf,
}

/// What one read brought.
pub(super) enum Received {
    /// Bytes, and perhaps a descriptor with them.
    Some(Option<OwnedFd>),
    Nothing,
    Closed,
}

/// Connects to the first of the paths where a trusted agent listens. `skipped` gets the places that
/// are not used because of what is there, with the reason. The error is about such a place, if there
/// is one, else about the first path.
pub(super) fn connect(
    paths: &[PathBuf],
    trust: &Trust,
    skipped: &mut Vec<(PathBuf, String)>,
) -> Result<AgentSocket, NoAgent> {
    skipped.clear();
    let mut first = None;
    for path in paths {
        match agent::connect(path, trust) {
            Ok(socket) => return Ok(AgentSocket { socket, path: path.clone() }),
            Err(NoAgent::Unsafe(why)) => skipped.push((path.clone(), why)),
            Err(other) => first = first.or(Some(other)),
        }
    }
    Err(match (skipped.first(), first) {
        (None, Some(first)) => first,
        (Some((_, why)), _) => NoAgent::Unsafe(why.clone()),
        (None, None) => NoAgent::Unsafe(String::from("no path of a socket")),
    })
}

impl AgentSocket {
    /// Sends what fits now. Returns the number of bytes.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match passing::send(&self.socket, bytes, None) {
            Err(e) if again(&e) => Ok(0),
            sent => sent,
        }
    }

    /// Reads what there is.
    pub(super) fn receive(&self, input: &mut Vec<u8>) -> io::Result<Received> {
        let mut bytes = [0; MESSAGE_MAX];
        match passing::receive(&self.socket, &mut bytes) {
            Ok((0, _)) => Ok(Received::Closed),
            Ok((n, descriptor)) => {
                input.extend_from_slice(&bytes[..n]);
                Ok(Received::Some(descriptor))
            }
            Err(e) if again(&e) => Ok(Received::Nothing),
            Err(e) => Err(e),
        }
    }
}

fn again(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}
