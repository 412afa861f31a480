//! The rails that one end brings to a handshake.

use std::sync::Arc;

use crate::control::interfaces;
use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::policy;
use crate::process::Process;
use crate::proto::{Addr, Handle, Hello, LostRail, MAX_OFFERS, Nonce, RailRole, RoutePolicy};
pub(crate) use crate::route::LocalRail;
use crate::route::host_name;
use crate::transport::Settings;
use crate::warned::Subject;

/// What this end brings: the device's own rails first, then, where others may stand in for them, the ports of the
/// process's other devices. `turn` is what the HELLO says. An error where no rail can be used.
pub(crate) fn prepare(settings: &Settings, device: &Device, turn: u32) -> Result<(Vec<LocalRail>, Hello)> {
    let Settings { config, process, .. } = settings;
    let terms = policy::terms(config, device.is_sout_sup);
    let own = RailRole::all().zip(&device.rails).map(|(role, nic)| (role, nic, true));
    let others = || {
        let mut others: Vec<(RailRole, &Arc<Nic>, bool)> = Vec::new();
        for (role, nic) in
            process.devices.all().into_iter().flat_map(|other| RailRole::all().zip(&other.rails))
        {
            let known = device.rails.iter().chain(others.iter().map(|(_, nic, _)| *nic));
            if known.into_iter().all(|known| known.name() != nic.name()) {
                others.push((role, nic, false));
            }
        }
        others
    };
    // SOUT and SUP are what they are for.
    let others = if terms.fused || config.route == RoutePolicy::Strict { Vec::new() } else { others() };
    let (mut usable, mut lost) = (Vec::new(), Vec::new());
    for (role, nic, requested) in own.chain(others) {
        match nic.now() {
            Ok(_) if usable.len() == MAX_OFFERS => too_many(process),
            Ok((port, gids)) => usable.push(LocalRail::new(nic, port, gids, role, requested)),
            Err(why) if lost.len() < MAX_OFFERS => {
                lost.push(LostRail { name: nic.name().to_owned(), role, requested, why });
            }
            Err(_) => {}
        }
    }
    if usable.is_empty() {
        let why: Vec<_> = lost.iter().map(|l| format!("our {}: {}", l.name, l.why)).collect();
        return Err(Error::Usage(format!("rails that cannot be used: {}", why.join("; "))));
    }
    let networks = interfaces()?;
    let rails = usable.iter().map(|local| local.info(&networks)).collect::<Result<_>>()?;
    let (nonce, token) = (Nonce::default(), Nonce::default());
    let hello = Hello { nonce, token, pid: std::process::id(), host: host_name(), terms, turn, rails, lost };
    Ok((usable, hello))
}

/// Logged once: every connection would repeat it.
fn too_many(process: &Process) {
    if process.warned.once(Subject::HelloFull) {
        tracing::info!(
            target: "net",
            "this process has more than {MAX_OFFERS} ports; a peer is told of its device's own and of the first others"
        );
    }
}

/// How many connections this process has begun before from this device to the handle's host, and the device's place among
/// all: connections of one device take turns, and those of several devices do not begin with the same.
pub(crate) fn turn(process: &Process, device: &Device, handle: &Handle) -> u32 {
    let place = process.devices.all().iter().position(|d| d.name == device.name).unwrap_or(0);
    let host = handle.addrs().first().map(Addr::ip);
    let turn = process.begun.next(device.name, host);
    turn.wrapping_add(u32::try_from(place).unwrap_or(0))
}
