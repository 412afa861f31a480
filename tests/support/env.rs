//! Settings that many tests use.

use std::ffi::OsStr;

/// Without the watchdog's pings, which would be among the work requests that tests count: on a loaded
/// machine rails are late.
pub const NO_PINGS: (&str, &str) = ("MPIB_STALL_MS", "0");

/// The MPIB profile: two rails behind one device, with several queue pairs, which messages use in
/// turn.
pub const TWO_RAILS: [(&str, &str); 5] = [
    ("MPIB_HCA_SOUT", "soft0"),
    ("MPIB_HCA_SUP", "soft1"),
    ("MPIB_SOUT_QP", "2"),
    ("MPIB_SUP_QP", "4"),
    NO_PINGS,
];

/// Returns the devices of [`TWO_RAILS`], both with these properties.
pub fn two_adapters(properties: &str) -> String {
    format!("soft0:addr=10.1.0.1/16,{properties};soft1:addr=10.2.0.1/16,{properties}")
}

/// Messages are split from 128 bytes on.
pub const SPLIT_ALL: (&str, &str) = ("MPIB_SPLIT_MIN", "0");

/// Plain rails carry in proportion to the speeds of their ports: tests know what goes where.
pub const BY_SPEED: (&str, &str) = ("MPIB_SPLIT", "speed");

/// Ends a probe or a write that nobody answers soon.
pub const SHORT: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "1")];

/// A connection that has no rail fails at once.
pub const NO_WAIT: (&str, &str) = ("MPIB_FAILOVER_WAIT", "0");

/// The MPIB profile with a share for SUP of each message, also of small ones, and `more`.
pub fn mpib<'a>(share: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&TWO_RAILS[..], &[("MPIB_SUP_SHARE", share), SPLIT_ALL], more].concat()
}

/// Sets a variable of this process, or removes it. Only for the body of
/// [`isolated`](crate::isolated), while no comm exists.
pub fn set(name: &str, value: Option<impl AsRef<OsStr>>) {
    match value {
        // SAFETY: this process runs one test. Its other threads wait: libtest's for the test, the
        // plugin's in its event loop. Neither reads the environment.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
}
