//! What the two workers of a run say to each other.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    args::Plan,
    control::Channel,
    rails::RailBytes,
    report::{Connections, PerConnection, SizeResult},
};
use crate::failure::{Failure, Kind};
use mpib::device::Device;
use nccl_net_host::Watch;

/// Which end. A leads: it decides the rounds, and in one direction only it is the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    A,
    B,
}

impl Role {
    /// What to call it.
    pub(super) const fn name(self, bidirectional: bool) -> &'static str {
        match (self, bidirectional) {
            (Self::A, false) => "sender",
            (Self::B, false) => "receiver",
            (Self::A, true) => "first end",
            (Self::B, true) => "second end",
        }
    }
}

/// One message. The two ends go through the same sequence.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Say {
    /// After getProperties.
    Device(Device),
    /// What `listen` wrote.
    Handle(Vec<u8>),
    /// The comms are there and memory is registered.
    Connected,
    /// B to A: what each further connection took of B's memory.
    Memory(PerConnection),
    /// A to B: what the further connections cost.
    Connections(Connections),
    /// A to B: the next round of this size.
    Round { first: u64, groups: usize },
    /// B to A: buffers are prepared.
    Ready,
    /// A to B: begin.
    Go,
    /// All requests of the round are done, after so many nanoseconds.
    Finished { nanos: u64 },
    /// A to B: no more rounds of this size.
    EndOfSize,
    /// B to A: B's times of its own sends (nanoseconds, how often), and what its rails carried.
    Tally { times: Vec<(u64, u64)>, rails: Option<Vec<RailBytes>> },
    /// A to B: the size is measured.
    Result(Box<SizeResult>),
    /// Everything is closed.
    Closed,
    /// The sender of this gives up.
    Failed(Failure),
}

impl Say {
    const fn name(&self) -> &'static str {
        match self {
            Self::Device(_) => "Device",
            Self::Handle(_) => "Handle",
            Self::Connected => "Connected",
            Self::Memory(_) => "Memory",
            Self::Connections(_) => "Connections",
            Self::Round { .. } => "Round",
            Self::Ready => "Ready",
            Self::Go => "Go",
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
    /// Read while looking for a failure, not yet asked for.
    early: Option<Say>,
    watch: &'static Watch,
    limit: Duration,
    peer: &'static str,
}

impl Link {
    pub(super) fn new(channel: Channel, watch: &'static Watch, plan: &Plan, role: Role) -> Self {
        let other = if role == Role::A { Role::B } else { Role::A };
        // The other end may be filling or checking all its memory, and has its own limit for what the plugin does.
        let limit = plan.timeout * 2 + Duration::from_secs(60);
        Self { channel, early: None, watch, limit, peer: other.name(plan.both_ways()) }
    }

    pub(super) fn say(&mut self, what: &Say) -> Result<(), Failure> {
        self.channel.send(what)
    }

    /// The next message, unless it is a failure.
    pub(super) fn hear(&mut self) -> Result<Say, Failure> {
        let said = match self.early.take() {
            Some(said) => said,
            None => self.hear_raw()?,
        };
        match said {
            Say::Failed(failure) => Err(self.failed(&failure)),
            said => Ok(said),
        }
    }

    fn hear_raw(&mut self) -> Result<Say, Failure> {
        let watch = self.watch;
        self.channel.recv(self.limit, || {
            watch.beat();
            Ok(())
        })
    }

    /// Looks, without waiting, whether the other end has failed or gone. Where it only waited too long itself, what is
    /// outstanding `here` belongs to the story.
    pub(super) fn glance(&mut self, here: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.early.is_none() && self.channel.readable() {
            self.early = Some(self.hear_raw()?);
        }
        match self.early.take() {
            Some(Say::Failed(failure)) if failure.kind == Kind::Timeout => {
                let text = format!("the {} gave up waiting; here {}", self.peer, here());
                Err(Failure::new(Kind::Timeout, text))
            }
            Some(Say::Failed(failure)) => Err(self.failed(&failure)),
            early => {
                self.early = early;
                Ok(())
            }
        }
    }

    /// Whose fault a failed call is: a process that gives up says so here before it ends, and only then may its end show
    /// as an error of the plugin at this end.
    pub(super) fn blame(&mut self, failure: Failure) -> Failure {
        const PATIENCE: Duration = Duration::from_secs(1);
        if failure.kind != Kind::Call {
            return failure;
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !self.channel.readable() {
                std::thread::sleep(PATIENCE / 100);
            } else if let Err(theirs) = self.hear() {
                return Failure::new(theirs.kind, format!("{theirs}; then here {failure}"));
            }
        }
        failure
    }

    fn failed(&self, failure: &Failure) -> Failure {
        Failure::new(Kind::Peer, format!("the {} failed: {failure}", self.peer))
    }

    /// For a message that the sequence does not have here.
    pub(super) fn unexpected<T>(&self, said: &Say, wanted: &str) -> Result<T, Failure> {
        let text = format!(
            "the {} said {} where {wanted} was expected; are both ends the same release?",
            self.peer,
            said.name()
        );
        Err(Failure::new(Kind::Peer, text))
    }
}

/// Hears one message of a kind, or fails.
macro_rules! hear_one {
    ($link:expr, $pattern:pat => $value:expr) => {
        match $link.hear()? {
            $pattern => $value,
            said => return $link.unexpected(&said, stringify!($pattern)),
        }
    };
}
pub(super) use hear_one;
