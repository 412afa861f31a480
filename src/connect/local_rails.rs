//! The rails that one end offers in its HELLO.

use std::sync::Arc;

use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::policy;
use crate::process::Process;
use crate::proto::{Addr, Handle, Hello, MAX_OFFERS, Nonce, RailRole, RoutePolicy, UnusableRail};
pub(crate) use crate::route::LocalRail;
use crate::route::host_name;
use crate::transport::Settings;
use crate::warned::Subject;

/// Returns the rails of this end and its HELLO: first the rails of the device, then, if substitutes
/// are allowed, the ports of the other devices of the process. `rotation` is the field of HELLO.
///
/// # Errors
/// No rail can be used. The text has the reason for each.
pub(crate) fn prepare(
    settings: &Settings,
    device: &Device,
    rotation: u32,
) -> Result<(Vec<LocalRail>, Hello)> {
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
    // No port substitutes SOUT or SUP.
    let others = if terms.fused || config.route == RoutePolicy::Strict { Vec::new() } else { others() };
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for (role, nic, requested) in own.chain(others) {
        match nic.known() {
            Ok(_) if usable.len() == MAX_OFFERS => too_many(process),
            Ok((port, gids)) => usable.push(LocalRail::new(nic, port, gids, role, requested)),
            Err(why) if unusable.len() < MAX_OFFERS => {
                unusable.push(UnusableRail { name: nic.name().to_owned(), role, requested, why });
            }
            Err(_) => {}
        }
    }
    if usable.is_empty() {
        let why: Vec<_> = unusable.iter().map(|l| format!("our {}: {}", l.name, l.why)).collect();
        return Err(Error::Usage(format!("rails that cannot be used: {}", why.join("; "))));
    }
    let networks = process.control.interfaces()?;
    let rails = usable.iter_mut().map(|local| local.info(&networks)).collect::<Result<_>>()?;
    let (nonce, token) = (Nonce::default(), Nonce::default());
    let (pid, host) = (std::process::id(), host_name());
    let hello = Hello { nonce, token, pid, host, terms, rotation, rails, unusable, others: false };
    Ok((usable, hello))
}

/// Logs once: the line would be the same for every connection.
fn too_many(process: &Process) {
    if process.warned.once(Subject::HelloFull) {
        tracing::info!(
            target: "net",
            "this process has more than {MAX_OFFERS} ports; HELLO contains those of the device and the first others"
        );
    }
}

/// Returns the number of connections that this process has begun from this device to the host of
/// the handle, plus the index of the device. Connections of one device rotate over equal routes,
/// and those of different devices begin with different ones.
pub(crate) fn rotation(process: &Process, device: &Device, handle: &Handle) -> u32 {
    let place = process.devices.all().iter().position(|d| d.name == device.name).unwrap_or(0);
    let host = handle.addrs().first().map(Addr::ip);
    let before = process.begun.next(device.name, host);
    before.wrapping_add(u32::try_from(place).unwrap_or(0))
}
