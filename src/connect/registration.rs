//! A connection's registration with the agent, whose hints divide its transfers among the rails.

use std::net::{IpAddr, Ipv4Addr};

use crate::agent::{Addresses, Flow, Options};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::policy::{Plan, SplitMode};
use crate::route::gid_addr;
use crate::transport::rail::Rail;

/// Why a connection that must have a hint is not made.
pub(crate) fn unhinted(peer: &str, flow: &Flow, config: &Config) -> Error {
    let socket = config.agent_socket.display();
    let why = flow.fault().unwrap_or_else(|| format!("agent {socket}: it has not answered yet"));
    Error::Usage(format!(
        "no hint for the connection with {peer} within {:?}: {why}. Start the agent of this host, or set MPIB_AGENT_SOCKET and \
         MPIB_HINTS to where it is; without MPIB_STRICT=1 all data goes on SOUT until there is one (MPIB_STRICT=1)",
        Options::from(config).patience(),
    ))
}

/// Registers the connection of these rails, in the background. `None` if no hint can count: the mode is not advanced, the share is
/// fixed, one rail alone is left, or a rail has no IPv4 address, since an agent's messages have room for nothing else.
///
/// # Errors
/// The client's thread cannot be made; and with `MPIB_STRICT=1` a connection that hints cannot be given for.
pub(crate) fn open(config: &Config, plan: Plan, rails: &[Rail], peer: &str) -> Result<Option<Flow>> {
    if plan.split_mode(config) != SplitMode::Hinted {
        return Ok(None);
    }
    let [sout, sup] = rails else { return Ok(None) };
    match (addresses(sout), addresses(sup)) {
        (Some((sout_src, sout_dst)), Some((sup_src, sup_dst))) => {
            let addresses = Addresses { sout_src, sout_dst, sup_src, sup_dst };
            Flow::open(&Options::from(config), addresses).map(Some)
        }
        _ => {
            let what =
                format!("no hints for the connection with {peer}: they are for rails with IPv4 addresses");
            let what = config.lose(what)?;
            tracing::warn!(target: "net", "{what}; its data is all on SOUT");
            Ok(None)
        }
    }
}

/// Returns the IPv4 addresses of a rail, this end's first.
fn addresses(rail: &Rail) -> Option<(Ipv4Addr, Ipv4Addr)> {
    match (gid_addr(rail.names.local_gid), gid_addr(rail.names.remote_gid)) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => Some((ours, theirs)),
        _ => None,
    }
}
