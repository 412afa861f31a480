//! The messages between the two workers of a run.

use std::{
    fs,
    net::SocketAddr,
    os::fd::RawFd,
    time::{Duration, Instant},
};

use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};
use serde::{Deserialize, Serialize};

use super::{
    control::Channel,
    plan::Plan,
    rails::RailBytes,
    remote::canonical,
    report::{Closing, Connections, PerConnection, SizeResult},
};
use crate::device::Device;
use crate::failure::{Failure, Kind};
use nccl_net_host::Watch;

/// The two ends. A leads: it chooses the rounds, and it is the sender if there is only one
/// direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    A,
    B,
}

impl Role {
    /// Returns the end's name.
    pub(super) const fn name(self, plan: &Plan) -> &'static str {
        // The end that gets leads, and receives.
        match (self, plan.both_ways() || plan.operation.is_get()) {
            (Self::A, false) => "sender",
            (Self::B, false) => "receiver",
            (Self::A, true) => "first end",
            (Self::B, true) => "second end",
        }
    }
}

/// A message. Both ends follow the same sequence.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// After getProperties.
    Device(Device),
    /// The handle that `listen` wrote.
    Handle(Vec<u8>),
    /// The comms exist and memory is registered.
    Connected,
    /// This end has come to a point at which the ends wait for each other.
    Here,
    /// B to A: the memory of B for each further connection.
    Memory(PerConnection),
    /// A to B: the result for the further connections.
    Connections(Connections),
    /// A to B: close them, with so many receives open at each.
    Close { open: usize },
    /// B to A: they are closed.
    AllClosed(Closing),
    /// A to B: the next round of this size.
    Round { first: u64, groups: usize },
    /// B to A: the buffers are prepared.
    Ready,
    /// A to B: start.
    Go,
    /// A to B: rounds from this one on that nothing but data announces, until a message is shorter.
    Unattended { first: u64, groups: usize },
    /// All requests of the round are done, after this many nanoseconds.
    Finished { nanos: u64 },
    /// A to B: no more rounds of this size.
    EndOfSize,
    /// B to A: the times of B's sends (nanoseconds and count), and the bytes of its rails.
    Tally { times: Vec<(u64, u64)>, rails: Option<Vec<RailBytes>> },
    /// A to B: the size's result.
    Result(Box<SizeResult>),
    /// Everything is closed.
    Closed,
    /// The sending worker has failed.
    Failed(Failure),
}

impl Message {
    const fn name(&self) -> &'static str {
        match self {
            Self::Device(_) => "Device",
            Self::Handle(_) => "Handle",
            Self::Connected => "Connected",
            Self::Here => "Here",
            Self::Memory(_) => "Memory",
            Self::Connections(_) => "Connections",
            Self::Close { .. } => "Close",
            Self::AllClosed(_) => "AllClosed",
            Self::Round { .. } => "Round",
            Self::Ready => "Ready",
            Self::Go => "Go",
            Self::Unattended { .. } => "Unattended",
            Self::Finished { .. } => "Finished",
            Self::EndOfSize => "EndOfSize",
            Self::Tally { .. } => "Tally",
            Self::Result(_) => "Result",
            Self::Closed => "Closed",
            Self::Failed(_) => "Failed",
        }
    }
}

/// The connection to the other worker.
pub(super) struct Link {
    channel: Channel,
    /// A message that was read by `check_peer` and not yet returned by `hear`.
    pending: Option<Message>,
    watch: &'static Watch,
    limit: Duration,
    peer: &'static str,
    /// When the end of the other end's process was seen, if it is expected.
    death: Option<Option<Instant>>,
}

impl Link {
    pub(super) fn new(channel: Channel, watch: &'static Watch, plan: &Plan, role: Role) -> Self {
        let other = if role == Role::A { Role::B } else { Role::A };
        // The other end may be filling or checking all its memory, and has its own limit for the
        // plugin.
        let limit = plan.timeout * 2 + Duration::from_secs(60);
        Self { channel, pending: None, watch, limit, peer: other.name(plan), death: None }
    }

    /// Leaves the death of the other end to the plugin from now on.
    pub(super) const fn expect_death(&mut self) {
        self.death = Some(None);
    }

    /// Returns the time since the death of the other end, if it is expected: zero if the plugin saw
    /// it first.
    pub(super) fn death(&self) -> Option<Duration> {
        self.death.map(|seen| seen.map_or(Duration::ZERO, |at| at.elapsed()))
    }

    /// Returns the addresses of both ends, this one's first, if the other worker is on another machine.
    pub(super) fn addresses(&self) -> Option<[SocketAddr; 2]> {
        addresses(self.channel.as_raw_fd())
    }

    /// Returns the number of other TCP connections of this process between the same two hosts.
    pub(super) fn siblings(&self) -> usize {
        let Some(own) = self.addresses() else { return 0 };
        let is_sibling = |fd: RawFd| {
            fd != self.channel.as_raw_fd()
                && addresses(fd).is_some_and(|ends| ends.map(|end| end.ip()) == own.map(|end| end.ip()))
        };
        let fds = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        fds.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|fd| is_sibling(*fd)).count()
    }

    /// Returns how long the other end may be silent.
    pub(super) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns whether `check_peer` has read a message that `recv` will return.
    pub(super) const fn has_message(&self) -> bool {
        self.pending.is_some()
    }

    pub(super) fn send(&mut self, what: &Message) -> Result<(), Failure> {
        self.channel.send(what)
    }

    /// Returns the next message; a failure of the other end is an error.
    pub(super) fn recv(&mut self) -> Result<Message, Failure> {
        let message = match self.pending.take() {
            Some(message) => message,
            None => self.recv_any()?,
        };
        match message {
            Message::Failed(failure) => Err(self.failed(&failure)),
            message => Ok(message),
        }
    }

    /// Waits without a pause until [`recv`](Self::recv) finds something, or its limit has passed.
    pub(super) fn spin(&self) {
        let began = Instant::now();
        while self.pending.is_none() && !self.channel.readable() && began.elapsed() < self.limit {}
    }

    fn recv_any(&mut self) -> Result<Message, Failure> {
        let watch = self.watch;
        self.channel.recv(self.limit, || {
            watch.beat();
            Ok(())
        })
    }

    /// Checks, without waiting, whether the other end has failed or closed. If it has timed out,
    /// the error includes this end's state (`here`), since this end may be the cause.
    pub(super) fn check_peer(&mut self, here: impl FnOnce() -> String) -> Result<(), Failure> {
        if let Some(seen) = &mut self.death {
            if self.channel.readable() {
                seen.get_or_insert_with(Instant::now);
            }
            return Ok(());
        }
        if self.pending.is_none() && self.channel.readable() {
            self.pending = Some(self.recv_any()?);
        }
        match self.pending.take() {
            Some(Message::Failed(failure)) if failure.kind == Kind::Timeout => {
                let text = format!("the {} timed out; this end's state: {}", self.peer, here());
                Err(Failure::new(Kind::Timeout, text))
            }
            Some(Message::Failed(failure)) => Err(self.failed(&failure)),
            pending => {
                self.pending = pending;
                Ok(())
            }
        }
    }

    /// Finds the end that failed first. A process that gives up sends its failure before it ends;
    /// only then can its end cause an error of the plugin here.
    pub(super) fn attribute(&mut self, failure: Failure) -> Failure {
        const PATIENCE: Duration = Duration::from_secs(1);
        if failure.kind != Kind::Call {
            return failure;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !self.channel.readable() {
                std::thread::sleep(PATIENCE / 100);
            } else if let Err(theirs) = self.recv() {
                return Failure::new(theirs.kind, format!("{theirs}; then here {failure}"));
            }
        }
        failure
    }

    fn failed(&self, failure: &Failure) -> Failure {
        Failure::new(Kind::Peer, format!("the {} failed: {failure}", self.peer))
    }

    /// Makes the error for a message that is out of sequence.
    pub(super) fn unexpected<T>(&self, message: &Message, wanted: &str) -> Result<T, Failure> {
        let text = format!(
            "the {} sent {}, expected {wanted}; are both ends of the same release?",
            self.peer,
            message.name()
        );
        Err(Failure::new(Kind::Peer, text))
    }
}

/// Returns the addresses of both ends of a TCP connection, this one's first.
fn addresses(fd: RawFd) -> Option<[SocketAddr; 2]> {
    let here: SockaddrStorage = getsockname(fd).ok()?;
    let there: SockaddrStorage = getpeername(fd).ok()?;
    Some([inet(&here)?, inet(&there)?])
}

fn inet(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    let address = v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))?;
    Some(canonical(address))
}

/// Receives one message of a kind, or fails.
macro_rules! expect_message {
    ($link:expr, $pattern:pat => $value:expr) => {
        match $link.recv()? {
            $pattern => $value,
            message => return $link.unexpected(&message, stringify!($pattern)),
        }
    };
}
pub(super) use expect_message;
