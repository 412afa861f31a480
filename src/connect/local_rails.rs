//! The rails that one end offers in its HELLO.

use std::sync::Arc;

use mpib_proto::{Addr, Claim, Handle, Hello, MAX_OFFERS, RailRole, RoutePolicy, UnusableRail};

use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::process::Process;
pub(crate) use crate::route::LocalRail;
use crate::route::host_name;
use crate::split;
use crate::transport::Settings;
use crate::warned::Subject;

/// Returns the rails of the device and the first HELLO of this end. `rotation` is the field of
/// HELLO. With `MPIB_ROUTE=any` the first HELLO lists the rails of the device alone, and says whether
/// the process has other ports, which are not queried. With the other policies the ranking needs all
/// ports.
///
/// With failover the rails include those of the device whose port is down.
///
/// # Errors
/// No port of the process can be used. The text has the reason for each.
pub(crate) fn prepare(
    settings: &Settings,
    device: &Device,
    rotation: u32,
) -> Result<(Vec<LocalRail>, Hello)> {
    let Settings { config, process, .. } = settings;
    let mut ports = Ports::default();
    let own = RailRole::all().zip(&device.rails);
    own.for_each(|own| ports.add(process, own, true, config.failover));
    let others = other_ports(settings, device);
    if ports.usable.is_empty() && others.iter().all(|(_, nic)| nic.known().is_err()) {
        others.iter().for_each(|other| ports.add(process, *other, false, false));
        let why: Vec<_> = ports.unusable.iter().map(|l| format!("our {}: {}", l.name, l.why)).collect();
        return Err(Error::Usage(format!("rails that cannot be used: {}", why.join("; "))));
    }
    let mut first = Hello {
        claim: Claim::default(),
        pid: std::process::id(),
        host: host_name(),
        terms: split::terms(config, device.is_sout_sup),
        rotation,
        others: !others.is_empty(),
        wiring_follows: false,
        rails: Vec::new(),
        unusable: Vec::new(),
    };
    ports.append_to(process, &mut first)?;
    let mut rails = ports.usable;
    if config.route != RoutePolicy::Any {
        first = add_others(settings, device, &mut rails, &first)?;
    }
    Ok((rails, first))
}

/// Appends the ports of the other devices of the process to `rails`; returns the HELLO that begins
/// with the rails of `first` and lists them, too.
pub(crate) fn add_others(
    settings: &Settings,
    device: &Device,
    rails: &mut Vec<LocalRail>,
    first: &Hello,
) -> Result<Hello> {
    let process = &settings.process;
    let mut ports = Ports { before: (first.rails.len(), first.unusable.len()), ..Ports::default() };
    let others = other_ports(settings, device);
    others.into_iter().for_each(|other| ports.add(process, other, false, false));
    let mut all = Hello { others: false, ..first.clone() };
    ports.append_to(process, &mut all)?;
    rails.append(&mut ports.usable);
    Ok(all)
}

/// Returns the ports of the process that do not belong to the device: those that may replace one.
fn other_ports(settings: &Settings, device: &Device) -> Vec<(RailRole, &'static Arc<Nic>)> {
    // No port substitutes SOUT or SUP.
    if device.is_sout_sup || settings.config.route == RoutePolicy::Strict {
        return Vec::new();
    }
    let mut others: Vec<(RailRole, &Arc<Nic>)> = Vec::new();
    let all = settings.process.devices.all();
    for (role, nic) in all.into_iter().flat_map(|other| RailRole::all().zip(&other.rails)) {
        let known = device.rails.iter().chain(others.iter().map(|(_, nic)| *nic));
        if known.into_iter().all(|known| known.name() != nic.name()) {
            others.push((role, nic));
        }
    }
    others
}

/// Ports to be listed in a HELLO.
#[derive(Default)]
struct Ports {
    usable: Vec<LocalRail>,
    unusable: Vec<UnusableRail>,
    /// The lengths of both lists of the HELLO before.
    before: (usize, usize),
}

impl Ports {
    /// Adds a port. `takes_down`: also one that is not active, if that is its only fault.
    fn add(
        &mut self,
        process: &Process,
        (role, nic): (RailRole, &Arc<Nic>),
        requested: bool,
        takes_down: bool,
    ) {
        let known = |nic: &Nic| nic.known().or_else(|why| nic.down().filter(|_| takes_down).ok_or(why));
        let read = || LocalRail::read(nic, role, requested, known);
        // Between two queries the link may have come up.
        match read().or_else(|why| if takes_down { read() } else { Err(why) }) {
            Ok(_) if self.before.0 + self.usable.len() == MAX_OFFERS => too_many(process),
            Ok(rail) => self.usable.push(rail),
            Err(why) if self.before.1 + self.unusable.len() < MAX_OFFERS => {
                self.unusable.push(UnusableRail { name: nic.name().to_owned(), role, requested, why });
            }
            Err(_) => {}
        }
    }

    fn append_to(&mut self, process: &Process, hello: &mut Hello) -> Result<()> {
        let networks = process.control.interfaces()?;
        for local in &mut self.usable {
            hello.rails.push(local.info(&networks)?);
        }
        hello.unusable.append(&mut self.unusable);
        Ok(())
    }
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
