//! The socket connection of one process: bytes in, answers out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::{
    IN_MEMORY, Malformed, Request, Response, Status, TAKES_MEMORY, flags, passing,
};

use crate::peer::PeerProcess;
use crate::state::{Agent, ProcessId};

/// Most bytes of answers that wait for a plugin to read them. It waits for each before its next request.
const OUT_MAX: usize = 4 << 10;
/// Bytes of memory that a connection keeps for its next message.
const LITTLE: usize = 64;
/// Most bytes that are read from one plugin before others are served.
const IN_MAX: usize = 4096;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The process has closed it, or has ended.
    #[error("closed")]
    Closed,
    /// What it sends is no request.
    #[error("does not speak the protocol: {0}")]
    Garbage(#[from] Malformed),
    /// It sends requests and reads no answers.
    #[error("does not read its answers")]
    Deaf,
    /// Its user has passed too many descriptors: so many are not closed.
    #[error("is of a user who has passed {0} descriptors that are not closed")]
    Hoards(usize),
    /// All owners have as much as they may have together, and another one needs some.
    #[error("makes room for others: {0} has the most (limits.processes, limits.connections)")]
    Displaced(Owner),
    /// The socket has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The connection of one process.
#[derive(Debug)]
pub(crate) struct Plugin {
    socket: OwnedFd,
    id: ProcessId,
    pub(crate) peer: PeerProcess,
    /// The descriptors that have come and are not judged yet.
    came: Vec<OwnedFd>,
    input: Vec<u8>,
    out: Vec<u8>,
    /// The memory file, and the offset in `out` of the answer that brings it.
    pass: Option<(usize, OwnedFd)>,
    passed: bool,
    /// A descriptor has come: it is the page, or the process has none.
    pub(crate) has_tried: bool,
}

impl Plugin {
    pub(crate) fn new(socket: OwnedFd, id: ProcessId, peer: PeerProcess) -> Self {
        let (input, out, came) = Default::default();
        Self { socket, id, peer, came, input, out, pass: None, passed: false, has_tried: false }
    }

    /// Returns the descriptors that have come.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.came)
    }

    /// Returns the socket, to be closed.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whether there is something to write.
    pub(crate) fn waits(&self) -> bool {
        !self.out.is_empty()
    }

    /// Reads once, with the descriptors that come.
    pub(crate) fn read(&mut self) -> Result<(), End> {
        let mut bytes = [0; IN_MAX];
        match passing::receive(&self.socket, &mut bytes) {
            Ok((0, _)) => return Err(End::Closed),
            Ok((n, descriptors)) => {
                self.input.extend_from_slice(&bytes[..n]);
                self.came = descriptors;
            }
            Err(e) if again(&e) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Answers what is complete.
    pub(crate) fn answer_all(&mut self, agent: &mut Agent) -> Result<(), End> {
        let mut done = 0;
        while let Some((request, len)) = Request::decode(&self.input[done..])? {
            let takes_memory = flags(&self.input[done..]) & TAKES_MEMORY != 0;
            done += len;
            self.answer(&request, takes_memory, agent);
            if self.out.len() > OUT_MAX {
                return Err(End::Deaf);
            }
        }
        self.input.drain(..done);
        self.input.shrink_to(LITTLE);
        self.write()
    }

    /// Sends PORTS CHANGED if the process has a memory file.
    pub(crate) fn ports_changed(&mut self) -> Result<(), End> {
        if self.passed {
            self.send(Response::PortsChanged, 0);
        }
        self.write()
    }

    /// Writes what fits.
    pub(crate) fn write(&mut self) -> Result<(), End> {
        while !self.out.is_empty() {
            // A descriptor goes with the first byte of a call.
            let (end, descriptor) = match &self.pass {
                Some((0, file)) => (self.out.len(), Some(file.as_fd())),
                Some((at, _)) => (*at, None),
                None => (self.out.len(), None),
            };
            let with = descriptor.is_some();
            let sent = match passing::send(&self.socket, &self.out[..end], descriptor) {
                Ok(sent) => sent,
                Err(e) if again(&e) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Err(End::Closed),
                Err(e) => return Err(e.into()),
            };
            self.out.drain(..sent);
            match &mut self.pass {
                Some(_) if with => self.pass = None,
                Some((at, _)) => *at -= sent,
                None => {}
            }
        }
        self.out.shrink_to(LITTLE);
        Ok(())
    }

    fn answer(&mut self, request: &Request, takes_memory: bool, agent: &mut Agent) {
        match request {
            Request::Register(register) => {
                let registered = agent.register(self.id, register, takes_memory);
                let in_memory = takes_memory && registered.is_ok() && self.pass_memory(agent);
                let (status, slot) = match registered {
                    // The descriptor cannot be passed, so the slot would be of no use.
                    Ok(_) if takes_memory && !in_memory => {
                        agent.deregister(self.id, register.conn_id);
                        (Status::NO_FREE_SLOT, 0)
                    }
                    Ok(slot) => (Status::SUCCESS, slot.into()),
                    Err(status) => (status, 0),
                };
                self.send(Response::Registered { status, slot }, if in_memory { IN_MEMORY } else { 0 });
            }
            Request::Deregister { conn_id } => {
                let status = agent.deregister(self.id, *conn_id);
                self.send(Response::Deregistered { status }, 0);
            }
            Request::Attach => {
                let status = agent.attach(self.id);
                let in_memory = status == Status::SUCCESS && self.pass_memory(agent);
                self.send(Response::Deregistered { status }, if in_memory { IN_MEMORY } else { 0 });
            }
        }
    }

    /// Has the next answer bring the memory file, unless an earlier one has. Returns `false` if
    /// that is not possible.
    fn pass_memory(&mut self, agent: &Agent) -> bool {
        if !self.passed {
            self.pass = agent.descriptor(self.id).map(|file| (self.out.len(), file));
            self.passed = self.pass.is_some();
        }
        self.passed
    }

    fn send(&mut self, response: Response, flags: u8) {
        let (bytes, len) = response.encode_with(flags);
        self.out.extend_from_slice(&bytes[..len]);
    }
}

impl AsFd for Plugin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn again(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}
