//! What the agent's client needs of the settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nccl_net_mpib_agent_iface::agent::paths::{HINTS_NAME, SOCKET_NAME, Trust, folders};

use crate::config::Config;

/// What the client needs of the settings. Subscriptions with equal options share one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the agent is looked for, in this order.
    pub sockets: Vec<PathBuf>,
    /// Where the hint file is looked for, in this order, if it is not beside the socket.
    pub files: Vec<PathBuf>,
    /// How often the file is read.
    pub poll: Duration,
    /// A user, besides root and this process's own, who may own the socket and the file.
    pub agent_uid: Option<u32>,
    /// How long the agent may take for one answer.
    pub answer_timeout: Duration,
    /// How long an entry may be half-written, or have other addresses, before that counts as a
    /// fault.
    pub settle_timeout: Duration,
    /// Wait before the first reconnect. It doubles with each failure, up to 20 times this.
    pub reconnect: Duration,
    /// Wait before a refused connection is registered again.
    pub refused_again: Duration,
    /// Least time between two log lines on one subject.
    pub report_gap: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        let folders = folders(config.runtime_dir.as_deref());
        let in_each = |name: &str| folders.iter().map(|folder| folder.join(name)).collect();
        let one_or = |path: &Option<PathBuf>, name| match path {
            Some(path) => vec![path.clone()],
            None => in_each(name),
        };
        Self {
            sockets: one_or(&config.agent_socket, SOCKET_NAME),
            files: one_or(&config.hints, HINTS_NAME),
            poll: Duration::from_micros(config.hint_poll_us.into()),
            agent_uid: config.agent_uid,
            answer_timeout: Duration::from_secs(5),
            settle_timeout: Duration::from_secs(1),
            reconnect: Duration::from_millis(100),
            refused_again: Duration::from_secs(10),
            report_gap: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Returns how long a connection that must have a hint waits for it: the time of one answer and
    /// of one whole entry.
    pub fn patience(&self) -> Duration {
        self.answer_timeout + self.settle_timeout
    }

    /// Returns where the hint file of the agent on `socket` may lie, likely places first. If
    /// several files are possible, the one beside the socket is the agent's.
    pub(super) fn files_of(&self, socket: Option<&Path>) -> Vec<PathBuf> {
        match (self.files.as_slice(), socket.and_then(Path::parent)) {
            ([file], _) => vec![file.clone()],
            (files, Some(folder)) => {
                let beside = folder.join(HINTS_NAME);
                let others = files.iter().filter(|file| **file != beside).cloned();
                [beside.clone()].into_iter().chain(others).collect()
            }
            (files, None) => files.to_vec(),
        }
    }

    /// Returns who may own the socket and the file.
    pub(super) fn trust(&self) -> Trust {
        Trust::new(self.agent_uid)
    }

    /// Names the places of the socket, for messages.
    pub fn sockets_text(&self) -> String {
        list(&self.sockets)
    }
}

/// Joins paths for a message.
pub(super) fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
