//! What the client and a connection share: the addresses to register, and the latest hint.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU16};

/// The addresses of a connection, as REGISTER has them. The source is this end, whichever way the
/// data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// This end on SOUT.
    pub sout_src: Ipv4Addr,
    /// The other end on SOUT.
    pub sout_dst: Ipv4Addr,
    /// This end on SUP.
    pub sup_src: Ipv4Addr,
    /// The other end on SUP.
    pub sup_dst: Ipv4Addr,
}

/// The latest good hint of a connection. The client writes it, the send path reads it.
#[derive(Debug, Default)]
pub(super) struct LatestHint {
    pub(super) share: AtomicU16,
    /// There was a good hint, possibly 0.
    pub(super) hinted: AtomicBool,
}
