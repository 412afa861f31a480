//! A connection's registration with the agent, where its rails are split by hints.

use std::net::{IpAddr, Ipv4Addr};

use super::core::Core;
use super::rail::Rail;
use crate::config::Config;
use crate::error::Result;
use crate::hints::{Addresses, Flow, Options};
use crate::policy::Plan;
use crate::proto::Mode;
use crate::route::gid_addr;

/// Registers the connection, in the background. `None` where no hint can count: the mode is not advanced, the share is
/// fixed, one rail alone is left, or a rail has no IPv4 address, which is all that an agent's messages have room for.
///
/// # Errors
/// The client's thread cannot be made; and with `MPIB_STRICT=1` a connection that hints cannot be given for.
pub(super) fn open(core: &Core, config: &Config) -> Result<Option<Flow>> {
    if config.mode != Mode::Advanced || config.sup_share.is_some() || !matches!(core.plan, Plan::Shared(_)) {
        return Ok(None);
    }
    let [sout, sup] = &core.rails[..] else { return Ok(None) };
    match (ends(sout), ends(sup)) {
        (Some((sout_src, sout_dst)), Some((sup_src, sup_dst))) => {
            let addresses = Addresses { sout_src, sout_dst, sup_src, sup_dst };
            Flow::open(&Options::from(config), addresses).map(Some)
        }
        _ => {
            let what = format!(
                "no hints for the connection with {}: they are for rails with IPv4 addresses",
                core.peer.name()
            );
            if config.strict {
                return Err(crate::error::Error::Usage(format!("{what} (MPIB_STRICT=1)")));
            }
            tracing::warn!(target: "net", "{what}; its data is all on SOUT");
            Ok(None)
        }
    }
}

/// IPv4 addresses of a rail, ours first.
fn ends(rail: &Rail) -> Option<(Ipv4Addr, Ipv4Addr)> {
    match (gid_addr(rail.names.local_gid), gid_addr(rail.names.remote_gid)) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => Some((ours, theirs)),
        _ => None,
    }
}
