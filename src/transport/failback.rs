//! The part of failback that senders and receivers share: the attempts to make dead rails anew.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::proto::Message;
use crate::transport::rail_maker::{RailAttempt, RailMaker, Ticket};
use crate::worker::Worker;

/// The failover settings of a comm, and what makes its rails anew.
#[derive(Debug)]
pub(crate) struct Failover {
    /// `MPIB_FAILOVER`, at both ends.
    pub(crate) is_enabled: bool,
    /// `MPIB_FAILOVER_WAIT`
    pub(crate) wait: Duration,
    pub(crate) maker: Arc<dyn RailMaker>,
    pub(crate) worker: Arc<Worker>,
    /// The rails that are dead from the beginning, and why.
    pub(crate) dead: Vec<(usize, String)>,
}

/// The attempts of a comm to make dead rails anew: the part that senders and receivers share.
#[derive(Debug)]
pub(crate) struct Failback {
    pub(super) maker: Arc<dyn RailMaker>,
    pub(super) worker: Arc<Worker>,
    /// Rails that are tried without a hold-down: the peer's port has become usable.
    pub(super) hurried: u8,
    /// The last message about an attempt, in case a control connection breaks and loses it.
    pub(super) last: Option<Message>,
    pub(super) work: Work,
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
        Self {
            maker: Arc::clone(&failover.maker),
            worker: Arc::clone(&failover.worker),
            hurried: 0,
            last: None,
            work: Work::None,
        }
    }

    /// Tries these rails without a hold-down, once.
    pub(crate) fn hurry(&mut self, which: u8) {
        self.hurried |= which;
    }

    /// Destroys what there is of the present attempt.
    pub(crate) fn drop_attempt(&mut self) {
        self.work = Work::None;
    }

    /// Returns whether the result of the thread's work can be taken.
    pub(super) fn take_done(&mut self) -> Option<Result<Box<dyn RailAttempt>>> {
        let Work::OnThread(ticket) = &self.work else { return None };
        let done = ticket.take()?;
        self.work = Work::None;
        Some(done)
    }
}
