//! A connection's registration with the agent, whose hints divide its transfers among the rails.

use std::net::{IpAddr, Ipv4Addr};

use crate::agent::{Addresses, Options, Subscription};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::route::gid_addr;
use crate::split::Plan;
use crate::transport::Settings;
use crate::transport::rail::Rail;

/// Returns the error of a connection that needs a hint and has none.
pub(crate) fn unhinted(peer: &str, flow: &Subscription, config: &Config) -> Error {
    let options = Options::from(config);
    let unanswered = || format!("agent {}: it has not answered yet", options.sockets_text());
    let why = flow.fault().unwrap_or_else(unanswered);
    Error::Usage(format!(
        "no hint for the connection with {peer} within {:?}: {why}. Start the agent of this host, or set MPIB_AGENT_SOCKET and \
         MPIB_HINTS to where it is; without MPIB_STRICT=1 MPIB_SPLIT={} decides until a hint arrives (MPIB_STRICT=1)",
        options.patience(),
        config.split,
    ))
}

/// Registers the connection of these rails, in the background. `None` if hints do not apply: the
/// mode is not advanced, the share is fixed, only one rail is left, or a rail has no IPv4 address.
/// The agent's messages have no room for other addresses.
///
/// # Errors
/// The client's thread cannot be started, or `MPIB_STRICT=1` and a rail has no IPv4 address.
pub(crate) fn open(
    settings: &Settings,
    plan: Plan,
    rails: &[Rail],
    peer: &str,
) -> Result<Option<Subscription>> {
    let Settings { process, config, .. } = settings;
    if !plan.takes_hints(config) {
        process.agent.attach(&Options::from(&**config))?;
        return Ok(None);
    }
    let [sout, sup] = rails else { return Ok(None) };
    match (addresses(sout), addresses(sup)) {
        (Some((sout_src, sout_dst)), Some((sup_src, sup_dst))) => {
            let addresses = Addresses { sout_src, sout_dst, sup_src, sup_dst };
            Subscription::open(&process.agent, &Options::from(&**config), addresses).map(Some)
        }
        _ => {
            let what =
                format!("no hints for the connection with {peer}: they are for rails with IPv4 addresses");
            let what = config.degraded(what)?;
            tracing::warn!(target: "net", "{what}; MPIB_SPLIT={} decides how its data is split", config.split);
            Ok(None)
        }
    }
}

/// Returns the IPv4 addresses of a rail, this end's first.
fn addresses(rail: &Rail) -> Option<(Ipv4Addr, Ipv4Addr)> {
    match (gid_addr(rail.names.local_gid), gid_addr(rail.names.remote_gid)) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => Some((local, remote)),
        _ => None,
    }
}
