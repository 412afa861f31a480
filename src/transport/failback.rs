//! The part of failback that senders and receivers share: the attempts to make dead rails anew.

use std::sync::Arc;
use std::time::Duration;

use crate::device::Nic;
use crate::error::Result;
use crate::transport::rail_maker::{RailAttempt, RailMaker, Ticket};

/// The failover settings of a comm, and what makes its rails anew.
#[derive(Debug)]
pub(crate) struct Failover {
    /// `MPIB_FAILOVER`, at both ends.
    pub(crate) is_enabled: bool,
    /// `MPIB_FAILOVER_WAIT`
    pub(crate) wait: Duration,
    pub(crate) maker: Arc<dyn RailMaker>,
    /// The rails that are dead from the beginning, and why.
    pub(crate) dead: Vec<(usize, String)>,
}

/// The attempts of a comm to make dead rails anew: the part that senders and receivers share.
#[derive(Debug)]
pub(crate) struct Failback {
    pub(super) maker: Arc<dyn RailMaker>,
    pub(super) work: Work,
    /// The adapter port whose threads work on the present attempt.
    pub(super) worker: Option<Arc<Nic>>,
}

/// Where the present attempt is.
#[derive(Debug)]
pub(super) enum Work {
    None,
    /// The thread works on it.
    OnThread(Ticket),
    /// It waits for the peer.
    Waiting(Box<dyn RailAttempt>),
}

impl Failback {
    pub(crate) fn new(failover: &Failover) -> Self {
        Self { maker: Arc::clone(&failover.maker), work: Work::None, worker: None }
    }

    /// Returns whether the result of the thread's work can be taken.
    pub(super) fn take_done(&mut self) -> Option<Result<Box<dyn RailAttempt>>> {
        let Work::OnThread(ticket) = &self.work else { return None };
        let done = ticket.take()?;
        self.work = Work::None;
        Some(done)
    }
}
