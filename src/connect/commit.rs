//! A connection's registration with the agent, where its rails are split by hints.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::agent::{Addresses, Options, Subscription};
use crate::config::Config;
use crate::connect::handshake::Handshake;
use crate::error::{Error, Result};
use crate::policy::SplitMode;
use crate::route::gid_addr;
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::transport::rail::Rail;

/// A connection on its way: the handshake, its registration, and each end's word that it takes it so. Advanced by polling.
#[derive(Debug)]
pub(crate) enum Connecting {
    Handshake(Box<Handshake>),
    Commit(Box<Commit>),
    Over,
}

/// A connection that works. What either end finds missing now fails it on both, before NCCL has it.
#[derive(Debug)]
pub(crate) struct Commit {
    comm: Comm,
    flow: Option<Subscription>,
    /// With `MPIB_STRICT=1`: until when there must be a hint.
    hint_by: Option<Instant>,
    /// We take it.
    said: bool,
    /// The peer does.
    heard: bool,
}

impl Connecting {
    pub(crate) fn new(handshake: Handshake) -> Self {
        Self::Handshake(Box::new(handshake))
    }

    /// One step further, if it can go one. The peer is told of a failure.
    pub(crate) fn poll(&mut self, settings: &Settings) -> Result<Option<(Comm, Option<Subscription>)>> {
        if let Self::Handshake(handshake) = self {
            let Some(mut comm) = handshake.poll()? else { return Ok(None) };
            let config = &*settings.config;
            let flow = open(&comm, settings).inspect_err(|e| comm.peer.refuse(e))?;
            let must = flow.is_some() && config.strict;
            let hint_by = must.then(|| Instant::now() + Options::from(config).patience());
            *self = Self::Commit(Box::new(Commit { comm, flow, hint_by, said: false, heard: false }));
        }
        let Self::Commit(mut commit) = std::mem::replace(self, Self::Over) else {
            return Err(Error::Internal("a connection is over and goes on".into()));
        };
        let done = commit.step(&settings.config);
        if done.inspect_err(|e| commit.comm.peer.refuse(e))? {
            return Ok(Some((commit.comm, commit.flow)));
        }
        *self = Self::Commit(commit);
        Ok(None)
    }
}

impl Commit {
    /// `true` once both ends take it.
    fn step(&mut self, config: &Config) -> Result<bool> {
        if !self.heard {
            self.heard = self.comm.peer.takes()?;
        } else if !self.said {
            self.comm.peer.look("the rest of the handshake")?;
        }
        if !self.said {
            if let (Some(flow), Some(by)) = (&self.flow, self.hint_by)
                && !flow.hinted()
            {
                return if Instant::now() < by { Ok(false) } else { Err(unhinted(&self.comm, flow, config)) };
            }
            // A peer with MPIB_STRICT=1 may wait for a hint as long as we would.
            let more =
                if hinted(&self.comm, config) { Options::from(config).patience() } else { Duration::ZERO };
            self.comm.peer.take(more)?;
            self.said = true;
        }
        if self.heard {
            self.comm.peer.settled();
        }
        Ok(self.heard)
    }
}

/// Whether hints are for this connection: both ends have the same terms.
fn hinted(comm: &Comm, config: &Config) -> bool {
    comm.plan.split_mode(config) == SplitMode::Hinted
}

/// Why a connection that must have a hint is not made.
fn unhinted(comm: &Comm, flow: &Subscription, config: &Config) -> Error {
    let socket = config.agent_socket.display();
    let why = flow.fault().unwrap_or_else(|| format!("agent {socket}: it has not answered yet"));
    Error::Usage(format!(
        "no hint for the connection with {} within {:?}: {why}. Start the agent of this host, or set MPIB_AGENT_SOCKET and \
         MPIB_HINTS to where it is; without MPIB_STRICT=1 all data goes on SOUT until there is one (MPIB_STRICT=1)",
        comm.peer.name(),
        Options::from(config).patience(),
    ))
}

/// Registers the connection, in the background. `None` where no hint can count: the mode is not advanced, the share is
/// fixed, one rail alone is left, or a rail has no IPv4 address, which is all that an agent's messages have room for.
///
/// # Errors
/// The client's thread cannot be made; and with `MPIB_STRICT=1` a connection that hints cannot be given for.
fn open(comm: &Comm, settings: &Settings) -> Result<Option<Subscription>> {
    let Settings { config, process, .. } = settings;
    if !hinted(comm, config) {
        return Ok(None);
    }
    let [sout, sup] = &comm.rails[..] else { return Ok(None) };
    match (ends(sout), ends(sup)) {
        (Some((sout_src, sout_dst)), Some((sup_src, sup_dst))) => {
            let addresses = Addresses { sout_src, sout_dst, sup_src, sup_dst };
            Subscription::open(&process.agent, &Options::from(&**config), addresses).map(Some)
        }
        _ => {
            let what = format!(
                "no hints for the connection with {}: they are for rails with IPv4 addresses",
                comm.peer.name()
            );
            let what = config.degraded(what)?;
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
