//! What the agent's client needs of the settings.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::Config;

/// What the client needs of the settings. Subscriptions with equal options share one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the agent listens.
    pub socket: PathBuf,
    /// Where the hint file is.
    pub file: PathBuf,
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
        Self {
            socket: config.agent_socket.clone(),
            file: config.hints.clone(),
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

    /// Whether this user may own the socket and the file: the process's user, root, and the
    /// configured one.
    pub(super) fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == nix::unistd::geteuid().as_raw() || self.agent_uid == Some(uid)
    }

    /// Describes an owner that is not trusted.
    pub(super) fn distrust(&self, uid: u32) -> String {
        format!(
            "belongs to user {uid}, expected root or user {}; set MPIB_AGENT_UID={uid} if that is the agent's user",
            nix::unistd::geteuid()
        )
    }
}
