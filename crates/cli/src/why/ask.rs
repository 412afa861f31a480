//! Asks other hosts who waits for whom there: those to which the waits of this host lead, and those to
//! which theirs do.

use std::net::SocketAddr;
use std::time::Duration;

use mpib_agent::http::{self, Access};
use mpib_host_view::Waits;
use schemars::JsonSchema;
use serde::Serialize;

use super::chain::{Chain, End};
use super::known::{Known, Peer};
use crate::doctor;

/// How long an agent may take, and how long a doctor. Both read twice, an agent with a second between.
const PATIENCE: Duration = Duration::from_secs(3);

/// How to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct How<'a> {
    /// Most hosts.
    pub(super) most: usize,
    /// Where agents serve HTTP.
    pub(super) agents: u16,
    /// What they want.
    pub(super) access: &'a Access,
    /// Where `mpib doctor --listen` waits.
    pub(super) doctors: u16,
}

/// A host to which waits lead.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Asked {
    /// Its name.
    pub(super) host: String,
    /// The address of the control connection to the one that waits; null if its name has none.
    pub(super) address: Option<SocketAddr>,
    /// Why there is no answer; null if there is one.
    pub(super) error: Option<String>,
    #[serde(skip)]
    pub(super) waits: Option<Waits>,
}

/// Asks the hosts to which the waits of these processes lead, then those to which the answers lead, and
/// so on. Each host is in the result once.
pub(super) fn hosts(own: &Waits, pid: Option<u32>, how: How<'_>) -> Vec<Asked> {
    hosts_by(own, pid, how.most, |host, address| ask(host, address, how))
}

/// Does so by a function that returns the answer of a host, or why there is none.
pub(super) fn hosts_by(
    own: &Waits,
    pid: Option<u32>,
    most: usize,
    ask: impl Fn(&str, SocketAddr) -> Result<Waits, String> + Sync,
) -> Vec<Asked> {
    let mut all: Vec<Asked> = Vec::new();
    loop {
        let mut next = unknown(Known { own, asked: &all }, pid);
        if next.is_empty() {
            return all;
        }
        let later = next.split_off(next.len().min(most - all.len()));
        let is_full = next.is_empty();
        all.extend(doctor::at_once(&next, |(host, address)| {
            let answer = match address {
                Some(address) => ask(host, *address),
                None => Err("its address is not in the name of the peer".into()),
            };
            let (waits, error) = answer.map_or_else(|why| (None, Some(why)), |waits| (Some(waits), None));
            Asked { host: host.clone(), address: *address, error, waits }
        }));
        if is_full {
            let why = match most {
                0 => "--ask 0".to_owned(),
                _ => format!("it comes behind {most} others, as --ask has it"),
            };
            let left = |(host, address)| Asked { host, address, error: Some(why.clone()), waits: None };
            all.extend(later.into_iter().map(left));
            return all;
        }
    }
}

/// Returns the hosts at which waits end since there is no answer, each once.
fn unknown(known: Known<'_>, pid: Option<u32>) -> Vec<(String, Option<SocketAddr>)> {
    let mut hosts: Vec<(String, Option<SocketAddr>)> = Vec::new();
    for process in known.own.processes.iter().filter(|process| pid.is_none_or(|pid| process.pid == pid)) {
        let Some(chain) = Chain::from(known.here(process.pid), known) else { continue };
        let End::Away(Peer::Process(place)) = chain.end else { continue };
        let mut names = known.asked.iter().map(|asked| &asked.host).chain(hosts.iter().map(|(host, _)| host));
        if names.all(|name| name != place.host) {
            hosts.push((place.host.to_owned(), address(&chain.last().peer)));
        }
    }
    hosts
}

/// Returns the address in the name of a peer.
pub(super) fn address(peer: &str) -> Option<SocketAddr> {
    peer.split(' ').next()?.parse().ok()
}

/// Asks the agent of a host, else the doctor there.
fn ask(host: &str, address: SocketAddr, how: How<'_>) -> Result<Waits, String> {
    let at = |port| {
        let mut address = address;
        address.set_port(port);
        address
    };
    let (agent, doctor) = (at(how.agents), at(how.doctors));
    let without_agent = match http::waits(agent, host, how.access, PATIENCE) {
        Ok(waits) => return Ok(waits),
        Err(why) => why,
    };
    doctor::waits(doctor, host, PATIENCE)
        .map_err(|without_doctor| format!("{agent}: {without_agent}; {doctor}: {without_doctor}"))
}
