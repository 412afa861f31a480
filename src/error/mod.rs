//! Errors: a text for an operator, and a code for NCCL.

mod hints;
mod wc_status;

use std::fmt;
use std::io;
use std::net::Ipv6Addr;

use nccl_net_versions::Failure;
use nix::errno::Errno;

pub use wc_status::wc_status;
pub(crate) use wc_status::{Blame, RETRY_EXC, status_text};

/// The result of every fallible function of the plugin.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of functions of the data path. The error is boxed: the result then fits in registers.
pub(crate) type Fast<T> = std::result::Result<T, Box<Error>>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A verbs call failed; `call` is its C name.
    #[error("{}", verbs_text(call, source, detail))]
    Verbs {
        /// C function name.
        call: &'static str,
        /// errno.
        source: io::Error,
        /// Object and arguments, in words; may be empty.
        detail: String,
    },
    /// libibverbs is not there, or lacks a function.
    #[error("libibverbs cannot be used: {0}")]
    Library(String),
    /// A request completed with an error.
    #[error("{0}")]
    Completion(Box<FailedCompletion>),
    /// Settings are invalid: all of them, not only the first.
    #[error("{}", settings_text(.0))]
    Config(Vec<BadSetting>),
    /// The caller broke the interface.
    #[error("invalid argument: {0}")]
    Argument(String),
    /// The caller or the user requests what this plugin, or this machine, does not do.
    #[error("{0}")]
    Usage(String),
    /// The peer has ended, refuses, or is unreachable.
    #[error("{0}")]
    Peer(String),
    /// The peer breaks the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// A call to the system failed.
    #[error("{what}: {}", io_text(source))]
    Io {
        /// The operation and its object.
        what: String,
        /// errno.
        source: io::Error,
    },
    /// An adapter reported an event that ends a connection.
    #[error("{0}")]
    Event(String),
    /// A bug in this plugin.
    #[error("internal error, please report it: {0}")]
    Internal(String),
    /// The connection has failed before. That failure was reported.
    #[error("the connection has failed before: {why}")]
    Closed {
        /// The code that NCCL got then.
        code: Failure,
        /// The text of that failure.
        why: String,
    },
}

/// One invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={found}: expected {expected}")]
pub struct BadSetting {
    /// Environment variable.
    pub variable: &'static str,
    /// The value found, quoted and printable.
    pub(crate) found: String,
    /// The values expected, or what to do.
    pub expected: String,
}

/// A completion with an error status, and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCompletion {
    /// `ibv_wc.status`
    pub(crate) status: u32,
    /// `ibv_wc.vendor_err`
    pub(crate) vendor_err: u32,
    /// The operation that failed: "data write", "CTS write", "probe" …
    pub(crate) operation: &'static str,
    /// Rail index.
    pub(crate) rail: usize,
    /// HCA and port of the rail.
    pub(crate) device: String,
    /// GID of this end.
    pub(crate) local_gid: [u8; 16],
    /// GID of the peer.
    pub(crate) remote_gid: [u8; 16],
    /// Queue pair of this end.
    pub(crate) local_qpn: u32,
    /// Queue pair of the peer.
    pub(crate) remote_qpn: u32,
    /// Host or address of the peer.
    pub(crate) peer: String,
    /// The queue pair is connected with itself: no peer is involved.
    pub(crate) loopback: bool,
    /// Reason why this end's port cannot be used now; `None` if the port works. A port that does
    /// not work is the cause regardless of the status: a link that goes down shows as almost any
    /// status, for rdma_rxe as a malformed request.
    pub(crate) port: Option<String>,
}

impl fmt::Display for FailedCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = wc_status(self.status);
        write!(
            f,
            "{} to {} failed on rail {} ({}): {} ({}); GID {} -> {}, QP {} -> {}. {}",
            self.operation,
            mpib_proto::printable(&self.peer),
            self.rail,
            self.device,
            status.meaning,
            status_text(self.status, self.vendor_err),
            Ipv6Addr::from(self.local_gid),
            Ipv6Addr::from(self.remote_gid),
            self.local_qpn,
            self.remote_qpn,
            self.port
                .as_ref()
                .map_or_else(|| status.advice.to_owned(), |why| format!("{} now: {why}", self.device)),
        )
    }
}

/// Returns the errno of a failed call.
pub(crate) fn errno(source: &io::Error) -> Errno {
    Errno::from_raw(source.raw_os_error().unwrap_or(0))
}

/// The kernel's number for its own use (`include/linux/errno.h`), which drivers let out: NVIDIA's for
/// DMA-BUFs.
const ENOTSUPP: i32 = 524;

/// Formats an errno: "Cannot allocate memory (ENOMEM, errno 12)".
fn io_text(source: &io::Error) -> String {
    let text = source.to_string();
    match source.raw_os_error() {
        Some(0) => "the library gives no reason (errno 0)".to_owned(),
        Some(ENOTSUPP) => format!("a driver does not support it (the kernel's ENOTSUPP, errno {ENOTSUPP})"),
        Some(n) => {
            let words = text.strip_suffix(&format!(" (os error {n})")).unwrap_or(&text);
            format!("{words} ({:?}, errno {n})", Errno::from_raw(n))
        }
        None => text,
    }
}

fn verbs_text(call: &str, source: &io::Error, detail: &str) -> String {
    let mut text = format!("{call} failed: {}", io_text(source));
    if !detail.is_empty() {
        text += &format!("; {detail}");
    }
    if let Some(hint) = source.raw_os_error().and_then(|n| hints::verbs(call, Errno::from_raw(n))) {
        text += &format!(". {hint}");
    }
    text
}

fn settings_text(bad: &[BadSetting]) -> String {
    bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Makes the error of a verbs call that set or returned `source`.
    pub(crate) fn verbs(call: &'static str, source: io::Error, detail: impl Into<String>) -> Self {
        Self::Verbs { call, source, detail: detail.into() }
    }

    /// Makes the error of a failed system call.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Makes the error of one invalid setting.
    pub(crate) fn config(
        variable: &'static str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Config(vec![BadSetting { variable, found: found.into(), expected: expected.into() }])
    }

    /// Returns the code for NCCL.
    // No wildcard: a new variant must choose its code.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Verbs { .. } | Self::Library(_) | Self::Io { .. } | Self::Event(_) => Failure::System,
            Self::Completion(c) if c.port.is_some() => Failure::System,
            Self::Completion(c) => match wc_status(c.status).blame {
                Blame::Peer | Blame::Path if c.loopback => Failure::System,
                Blame::Peer | Blame::Path | Blame::Nobody => Failure::Remote,
                Blame::Local => Failure::Internal,
                Blame::Device => Failure::System,
            },
            Self::Config(_) | Self::Usage(_) => Failure::InvalidUsage,
            Self::Argument(_) => Failure::InvalidArgument,
            Self::Peer(_) | Self::Protocol(_) => Failure::Remote,
            Self::Internal(_) => Failure::Internal,
            Self::Closed { code, .. } => *code,
        }
    }

    /// Logs the error as a warning, which NCCL keeps as its last error, and returns the code for
    /// NCCL. An error that was logged before is not logged again.
    #[cold]
    pub(crate) fn report(&self, call: &'static str) -> Failure {
        match self {
            Self::Closed { .. } => tracing::debug!(target: "net", "{call}: {self}"),
            _ => tracing::warn!(target: "net", "{call}: {self}"),
        }
        self.failure()
    }

    /// Returns the error of later calls on the same connection.
    pub(crate) fn closed(&self) -> Self {
        match self {
            Self::Closed { code, why } => Self::Closed { code: *code, why: why.clone() },
            _ => Self::Closed { code: self.failure(), why: self.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(status: u32) -> FailedCompletion {
        let mut local_gid = [0; 16];
        local_gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        let mut remote_gid = local_gid;
        remote_gid[15] = 2;
        FailedCompletion {
            status,
            vendor_err: 129,
            operation: "data write",
            rail: 1,
            device: "mlx5_1:1".into(),
            local_gid,
            remote_gid,
            local_qpn: 77,
            remote_qpn: 78,
            peer: "node7".into(),
            loopback: false,
            port: None,
        }
    }

    #[test]
    fn a_port_that_is_down_is_the_cause_and_not_the_plugin() {
        let down = FailedCompletion { port: Some("the port is not active".into()), ..completion(2) };
        let error = Error::Completion(Box::new(down));
        assert_eq!(error.failure(), Failure::System);
        let text = error.to_string();
        assert!(text.ends_with("mlx5_1:1 now: the port is not active"), "{text}");
    }

    #[test]
    fn a_completion_names_everything() {
        let text = Error::Completion(Box::new(completion(12))).to_string();
        for part in [
            "data write to node7 failed on rail 1 (mlx5_1:1)",
            "did not acknowledge",
            "status=12 IBV_WC_RETRY_EXC_ERR, vendor error 0x81",
            "GID ::ffff:10.0.0.1 -> ::ffff:10.0.0.2",
            "QP 77 -> 78",
            "Is its port up",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
    }

    #[test]
    fn a_verbs_error_names_call_errno_object_and_cause() {
        let text = Error::verbs(
            "ibv_create_cq",
            io::Error::from_raw_os_error(libc::ENOMEM),
            "1024 entries on mlx5_0",
        )
        .to_string();
        for part in [
            "ibv_create_cq failed: Cannot allocate memory (ENOMEM, errno 12); 1024 entries on mlx5_0",
            "ocked memory",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        let text = Error::verbs("ibv_create_qp", io::Error::from_raw_os_error(0), "bnxt_re0").to_string();
        assert!(
            text.starts_with("ibv_create_qp failed: the library gives no reason (errno 0); bnxt_re0. "),
            "{text}"
        );
        let text = Error::verbs("ibv_foo", io::Error::from_raw_os_error(9999), "").to_string();
        assert_eq!(text, "ibv_foo failed: Unknown error 9999 (UnknownErrno, errno 9999)");
        assert!(
            verbs_text("ibv_foo", &io::Error::from_raw_os_error(524), "").contains("the kernel's ENOTSUPP")
        );
    }

    #[test]
    fn each_error_has_its_code() {
        let os = || io::Error::from_raw_os_error(libc::EIO);
        let done = |status| Error::Completion(Box::new(completion(status)));
        let own =
            |status| Error::Completion(Box::new(FailedCompletion { loopback: true, ..completion(status) }));
        for (error, code) in [
            (Error::verbs("ibv_x", os(), ""), Failure::System),
            (Error::Library(String::new()), Failure::System),
            (Error::io("bind", os()), Failure::System),
            (done(12), Failure::Remote),
            (done(10), Failure::Remote),
            (done(5), Failure::Remote),
            (done(4), Failure::Internal),
            (done(19), Failure::System),
            (own(10), Failure::System),
            (own(4), Failure::Internal),
            (Error::config("MPIB_X", "\"y\"", "z"), Failure::InvalidUsage),
            (Error::Usage(String::new()), Failure::InvalidUsage),
            (Error::Argument(String::new()), Failure::InvalidArgument),
            (Error::Peer(String::new()), Failure::Remote),
            (Error::Protocol(String::new()), Failure::Remote),
            (Error::Internal(String::new()), Failure::Internal),
        ] {
            assert_eq!(error.failure(), code, "{error}");
            // A connection that failed so keeps failing so, with the first reason.
            let closed = error.closed();
            assert_eq!(
                (closed.failure(), closed.to_string()),
                (code, format!("the connection has failed before: {error}"))
            );
            assert_eq!(closed.closed().to_string(), closed.to_string());
        }
    }

    #[test]
    fn all_bad_settings_are_in_one_error() {
        let bad = |variable| BadSetting { variable, found: "\"x\"".into(), expected: "0 or 1".into() };
        let text = Error::Config(vec![bad("MPIB_A"), bad("MPIB_B")]).to_string();
        assert_eq!(text, "MPIB_A=\"x\": expected 0 or 1; MPIB_B=\"x\": expected 0 or 1");
    }
}
