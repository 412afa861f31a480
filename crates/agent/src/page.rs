//! The statistics page that a process has passed.

use std::fs::File;

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::stats::{BadPage, StatsPage};

use crate::peer::PeerProcess;

/// The statistics page of a process. The process has passed it: the agent looks for nothing in `/proc`.
#[derive(Debug)]
pub struct Page {
    /// Process id in the agent's PID namespace; the process's own one if it has none there.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Who is charged for it.
    pub(crate) owner: Owner,
    /// What to read.
    pub stats: StatsPage,
    /// The number of its file.
    pub(crate) file: u64,
}

/// Why a page is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// It is none, or of another version.
    #[error(transparent)]
    Bad(#[from] BadPage),
    /// Another user has made it.
    #[error("user {0} has made it")]
    Owner(u32),
    /// Another process writes it.
    #[error("it is the page of process {found}, and the process is {expected}, both in its PID namespace")]
    Process {
        /// The process that the page names.
        found: u32,
        /// The process that has passed it.
        expected: u32,
    },
}

impl Page {
    /// Checks a file that a process has passed.
    pub(crate) fn of(peer: &PeerProcess, file: &File) -> Result<Self, Unusable> {
        let stats = StatsPage::open(file)?;
        let (owner, number) = stats.identity().map_err(BadPage::Io)?;
        if owner != peer.uid {
            return Err(Unusable::Owner(owner));
        }
        let found = stats.summary().pid;
        match peer.own_pid() {
            Some(expected) if expected != found => Err(Unusable::Process { found, expected }),
            _ => {
                let pid = if peer.pid == 0 { found } else { peer.pid };
                Ok(Self { pid, uid: peer.uid, owner: peer.owner.clone(), stats, file: number })
            }
        }
    }
}
