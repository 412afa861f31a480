//! What an owner may have of what all of a host share.

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::Status;

use crate::config::Limits;
use crate::quota::{Full, Quota};

/// Why a process is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// Its owner has as many as one may have.
    #[error("{0} has {1} processes already (limits.processes_per_user)")]
    OfOwner(Owner, usize),
    /// All owners have as many as they may have together, and none has many more than this one.
    #[error("this agent has {1} processes, and nobody has many more than {0} (limits.processes)")]
    OfHost(Owner, usize),
}

/// Counts processes and their registered connections.
#[derive(Debug, Default)]
pub(super) struct Budget {
    pub(super) processes: Quota,
    pub(super) connections: Quota,
}

impl Budget {
    /// Checks that an owner may have one more process. Returns the one who must give one up for it.
    pub(super) fn process(&self, owner: &Owner, limits: &Limits) -> Result<Option<Owner>, TooMany> {
        let limit = limits.processes_per_user;
        if *owner != Owner::User(0) && self.processes.held(owner) >= limit {
            return Err(TooMany::OfOwner(owner.clone(), limit));
        }
        let whole = limits.processes;
        self.processes.room(owner, whole).map_err(|Full| TooMany::OfHost(owner.clone(), whole))
    }

    /// Checks that an owner may register one more connection, of a process that has some. Returns the one
    /// who must give some up for it.
    pub(super) fn connection(
        &self,
        owner: &Owner,
        of_process: usize,
        limits: &Limits,
    ) -> Result<Option<Owner>, Status> {
        let is_over = of_process >= limits.connections_per_process
            || self.connections.held(owner) >= limits.connections_per_user;
        if is_over {
            return Err(Status::NO_FREE_SLOT);
        }
        self.connections.room(owner, limits.connections).map_err(|Full| Status::NO_FREE_SLOT)
    }
}
