//! One rail of a connection: its queue pairs, and the queues that they share.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::lane::Lane;
use crate::device::Nic;
use crate::error::{Completion as Failed, Error, Fast, Result};
use crate::events::Queues;
use crate::proto::{GidKind, lane};
use crate::route::gid_addr;
use crate::verbs::{Completion, Cq, Srq};

/// What a work request of ours is for. It lies in `wr_id`, the only thing that a failed completion keeps: a place `[7:0]`, the
/// kind `[15:8]`, and the number of the work request on its queue pair `[63:32]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The zero-byte write of the handshake.
    Probe,
    /// The signalling write of a group of sends.
    Data {
        /// The group's slot.
        slot: u8,
    },
    /// A CTS write that asked for a completion.
    Cts,
    /// The read of a flush.
    Flush {
        /// The flush's place.
        index: u8,
    },
    /// A receive: it has no number of its own. Also a number that we never give.
    Receive,
}

impl Work {
    #[inline]
    pub(super) const fn id(self, number: u32) -> u64 {
        let what = match self {
            Self::Receive => 0,
            Self::Probe => 1 << 8,
            Self::Cts => 2 << 8,
            Self::Data { slot } => 3 << 8 | slot as u64,
            Self::Flush { index } => 4 << 8 | index as u64,
        };
        what | (number as u64) << 32
    }

    /// The number that [`id`](Self::id) was made with.
    #[inline]
    pub(super) const fn number(id: u64) -> u32 {
        (id >> 32) as u32
    }

    #[inline]
    pub(super) const fn of(id: u64) -> Self {
        match id as u32 >> 8 {
            1 => Self::Probe,
            2 => Self::Cts,
            3 => Self::Data { slot: id as u8 },
            4 => Self::Flush { index: id as u8 },
            _ => Self::Receive,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Data { .. } => "data write",
            Self::Cts => "CTS write",
            Self::Flush { .. } => "flush's read",
            Self::Receive => "receive",
        }
    }
}

/// One rail, connected.
#[derive(Debug)]
pub(super) struct Rail {
    // First, so that they go before the memory that they write.
    pub(super) lanes: Box<[Lane]>,
    /// The queue pair that is its own peer, at a receiver that can flush.
    pub(super) flush: Option<Lane>,
    pub(super) receives: Option<Receives>,
    /// Of all lanes, both ways: what completes here is this rail's.
    pub(super) cq: Arc<Cq>,
    pub(super) nic: Arc<Nic>,
    /// Rail index in the device: of SOUT and SUP, 0 SOUT, 1 SUP.
    pub(super) role: u8,
    /// Mb/s, of this end and of the peer's.
    pub(super) speeds: (u32, u32),
    pub(super) names: Names,
}

/// What an error message says of a rail.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) local_gid: [u8; 16],
    pub(super) remote_gid: [u8; 16],
    pub(super) gid_kind: GidKind,
    pub(super) peer: String,
}

/// The SRQ of a rail, and how many receives are in it.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) srq: Arc<Srq>,
    posted: usize,
    low: usize,
}

impl Rail {
    /// The lane whose turn a slot is.
    #[inline]
    pub(super) fn lane(&self, slot: u8) -> &Lane {
        &self.lanes[lane(slot, self.lanes.len())]
    }

    /// As [`lane`](Self::lane).
    #[inline]
    pub(super) fn lane_mut(&mut self, slot: u8) -> &mut Lane {
        &mut self.lanes[lane(slot, self.lanes.len())]
    }

    /// HCA, port, and the addresses that packets go between, for the log.
    pub(super) fn describe(&self) -> String {
        let Names { local_gid, remote_gid, gid_kind, .. } = &self.names;
        let version = match gid_kind {
            GidKind::Ib => "",
            GidKind::RoceV1 => " (RoCE v1)",
            GidKind::RoceV2 => " (RoCE v2)",
        };
        let (ours, theirs) = (gid_addr(*local_gid), gid_addr(*remote_gid));
        format!("{} from {ours} to {theirs}{version}", self.nic.name())
    }

    /// What an event of the adapter may be about.
    pub(super) fn queues(&self) -> Queues {
        Queues {
            context: self.nic.pd().context().id(),
            port: self.nic.port().number,
            qps: self.lanes.iter().chain(&self.flush).map(Lane::number).collect(),
            cq: self.cq.id(),
            srq: self.receives.as_ref().map(|receives| receives.srq.id()),
        }
    }

    /// One receive was used up.
    #[inline]
    pub(super) fn arrived(&mut self) {
        if let Some(receives) = &mut self.receives {
            receives.posted = receives.posted.saturating_sub(1);
        }
    }

    /// Names everything about a failed completion.
    #[cold]
    pub(super) fn failed(&self, rail: usize, completion: &Completion) -> Error {
        let loopback = self.flush.as_ref().is_some_and(|l| l.number() == completion.qpn());
        let (remote_gid, peer) = match loopback {
            true => (self.names.local_gid, "this adapter, which is its own peer in that,"),
            false => (self.names.remote_gid, self.names.peer.as_str()),
        };
        let remote_qpn = self
            .lanes
            .iter()
            .chain(&self.flush)
            .find(|l| l.number() == completion.qpn())
            .map_or(0, |l| l.remote_qpn);
        Error::Completion(Box::new(Failed {
            port: port_trouble(completion.status(), PORT_PATIENCE, || self.nic.now().err()),
            loopback,
            status: completion.status(),
            vendor_err: completion.vendor_err(),
            operation: Work::of(completion.wr_id()).name(),
            rail,
            device: self.nic.name().to_owned(),
            local_gid: self.names.local_gid,
            remote_gid,
            local_qpn: completion.qpn(),
            remote_qpn,
            peer: peer.to_owned(),
        }))
    }
}

/// `IBV_WC_LOC_QP_OP_ERR`: a malformed request. We post none.
const LOC_QP_OP_ERR: u32 = 2;

/// How long a driver may take from failing the requests of a port that goes down to showing the port as down.
const PORT_PATIENCE: Duration = Duration::from_millis(200);

/// Why this end's port cannot be used, where that is so, by `ask`. Where the status would blame the plugin, it is asked for a while:
/// rdma_rxe fails with this status what it cannot send on an interface that closes, and tells only then that the port is down.
#[cold]
fn port_trouble(status: u32, patience: Duration, mut ask: impl FnMut() -> Option<String>) -> Option<String> {
    let begun = Instant::now();
    loop {
        let why = ask();
        if why.is_some() || status != LOC_QP_OP_ERR || begun.elapsed() >= patience {
            return why;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

impl Receives {
    /// An SRQ filled to the brim, that is refilled when it falls to `low`.
    pub(super) fn new(srq: Srq, low: usize) -> Result<Self> {
        let mut receives = Self { srq: Arc::new(srq), posted: 0, low };
        receives.fill()?;
        Ok(receives)
    }

    /// Fills up, in one call, where fewer than the low mark or than `needed` are posted.
    #[inline]
    pub(super) fn refill(&mut self, needed: usize) -> Fast<()> {
        if self.posted <= self.low || self.posted < needed { Ok(self.fill()?) } else { Ok(()) }
    }

    #[cold]
    fn fill(&mut self) -> Result<()> {
        let depth = self.srq.depth();
        self.srq.post(depth - self.posted)?;
        self.posted = depth;
        Ok(())
    }

    /// Receives that the peer may use up.
    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    #[test]
    fn a_port_that_is_shown_as_down_later_is_the_cause_of_what_would_be_our_mistake() {
        let asked = |status, patience| {
            let mut asked = 0;
            let why = port_trouble(status, patience, || {
                asked += 1;
                (asked > 3).then(|| "the port is not active".to_owned())
            });
            (asked, why.is_some())
        };
        assert_eq!(proto::wc_status(LOC_QP_OP_ERR).name, "IBV_WC_LOC_QP_OP_ERR");
        assert_eq!(asked(LOC_QP_OP_ERR, Duration::from_secs(600)), (4, true));
        assert_eq!(asked(LOC_QP_OP_ERR, Duration::ZERO), (1, false), "no longer than it has patience");
        assert_eq!(
            asked(12, Duration::from_secs(600)),
            (1, false),
            "other statuses have causes of their own"
        );
    }

    #[test]
    fn work_is_told_by_its_number() {
        let numbered = [0, 255].map(|n| [Work::Data { slot: n }, Work::Flush { index: n }]).concat();
        for work in [Work::Probe, Work::Cts, Work::Receive].into_iter().chain(numbered) {
            for number in [0, 1, u32::MAX] {
                let id = work.id(number);
                assert_eq!((Work::of(id), Work::number(id)), (work, number));
            }
        }
        assert_eq!(Work::of(u64::MAX), Work::Receive);
    }
}
