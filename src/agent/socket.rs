//! The socket to the agent: finding it, and bytes and descriptors over it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nccl_net_mpib_agent_iface::agent::paths::{Refusal, Trust, check_socket};
use nccl_net_mpib_agent_iface::agent::{MESSAGE_MAX, passing};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, Socket, Type};

use super::link::Fault;

/// A connection to an agent.
#[derive(Debug)]
pub(super) struct AgentSocket {
    pub(super) socket: Socket,
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
/// are not used because of what is there, with the reason.
pub(super) fn connect(
    paths: &[PathBuf],
    trust: &Trust,
    skipped: &mut Vec<(PathBuf, String)>,
) -> Result<AgentSocket, Fault> {
    skipped.clear();
    let mut fault = None;
    for path in paths {
        match connect_to(path, trust) {
            Ok(socket) => return Ok(AgentSocket { socket, path: path.clone() }),
            Err(Fault::Unsafe(why)) => skipped.push((path.clone(), why)),
            Err(other) => fault = fault.or(Some(other)),
        }
    }
    match (skipped.first(), fault) {
        (Some((_, why)), _) => Err(Fault::Unsafe(why.clone())),
        (None, Some(fault)) => Err(fault),
        (None, None) => Err(Fault::Away(String::from("no path of a socket"))),
    }
}

/// Connects to one path. On one host that succeeds or fails at once.
fn connect_to(path: &Path, trust: &Trust) -> Result<Socket, Fault> {
    let away = |what: &'static str| move |e: io::Error| Fault::Away(format!("{what}: {e}"));
    let nobody = || away("nobody listens there")(Errno::ENOENT.into());
    check_socket(path, trust).map_err(|refusal| match refusal {
        Refusal::Missing => nobody(),
        refusal => Fault::Unsafe(refusal.to_string()),
    })?;
    let address = SockAddr::unix(path).map_err(away("no name for a Unix socket"))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(away("socket"))?;
    socket.set_nonblocking(true).map_err(away("socket"))?;
    socket.connect(&address).map_err(away("nobody listens there"))?;
    let uid = getsockopt(&socket, PeerCredentials).map_err(|e| Fault::Away(format!("its user: {e}")))?.uid();
    if trust.trusts(uid) { Ok(socket) } else { Err(Fault::Unsafe(trust.distrust(uid))) }
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
