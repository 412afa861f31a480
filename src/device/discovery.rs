//! Finds every port of the host, makes the devices that the settings select, and shows both to the
//! doctor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use mpib_proto::{Mode, SHARE_ONE};

use super::gid::{self, Wanted};
use super::net_device::{Device, PciPaths, leak};
use super::nic::{Nic, usable};
use super::selection::{self, Found, Plan, Trouble, left_out};
use super::wires::{Function, Wire, wires};
use super::{nic, pci};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::failover::{Happening, Moment};
use crate::verbs::{self, Context, DeviceLimits, Gid, Pd, Port};
use crate::warned::{Subject, Warned};

/// Every port of this host, and the adapters behind them. Both lists have the same order.
struct Seen {
    found: Vec<Found>,
    /// `None` if the adapter cannot be opened.
    adapters: Vec<Option<Adapter>>,
    /// Why connections may break when this process forks, if they may.
    fork_unsafe: Option<Error>,
}

/// The adapter of a port.
struct Adapter {
    context: Arc<Context>,
    limits: DeviceLimits,
    /// The port as it was found; `None` if it has a fault.
    port: Option<Port>,
}

/// Opens every adapter. Fails if there is no list of adapters.
fn discover(config: &Config) -> Result<Seen> {
    // Before anything is registered, or it has no effect.
    let fork_unsafe = verbs::survive_forks().err();
    let mut seen = Seen { found: Vec::new(), adapters: Vec::new(), fork_unsafe };
    let mut all = verbs::open_all()?;
    if config.device_pci_order {
        // Adapters without an address come last, in their own order.
        all.sort_by_cached_key(|(_, context)| {
            let path = context.as_ref().ok().and_then(|context| context.pci_path());
            let address = path.as_deref().and_then(pci::Address::of);
            (address.is_none(), address)
        });
    }
    for (hca, context) in all {
        match context.and_then(|context| Ok((context.limits()?, context))) {
            Ok((limits, context)) => {
                for number in 1..=limits.ports {
                    let wanted = Wanted::new(config, &hca, number);
                    let port = usable(&context, &limits, number, &wanted).and_then(|(port, _)| {
                        nic::partition(&context, &port, config).map_err(Trouble::Fault)?;
                        Ok(port)
                    });
                    let trouble = port.as_ref().err().cloned();
                    seen.found.push(Found { hca: hca.clone(), port: number, trouble });
                    // A rail of SOUT and SUP may be down at first.
                    let port = match port {
                        Err(Trouble::Inactive) => context.port(number).ok(),
                        port => port.ok(),
                    };
                    seen.adapters.push(Some(Adapter { context: Arc::clone(&context), limits, port }));
                }
            }
            Err(e) => {
                // Its first port stands for the whole adapter.
                seen.found.push(Found { hca, port: 1, trouble: Some(Trouble::Fault(e.to_string())) });
                seen.adapters.push(None);
            }
        }
    }
    Ok(seen)
}

/// Logs what the user requested and does not get; an error with `MPIB_STRICT=1`.
pub(super) fn degraded(config: &Config, what: String) -> Result<()> {
    tracing::warn!(target: "init", "{}", config.degraded(what)?);
    Ok(())
}

pub(super) fn enumerate(config: &Config, warned: &Warned) -> Result<Vec<Device>> {
    let seen = discover(config)?;
    if let Some(e) = &seen.fork_unsafe
        && warned.once(Subject::ForkInit)
    {
        tracing::warn!(
            target: "init",
            "{e}. Connections hang or carry old data if this process forks children that do not exec at once. \
             EINVAL: another library of the process had registered memory before; RDMAV_FORK_SAFE=1 lets libibverbs see to it from \
             its beginning"
        );
    }
    let plans = selection::plan(config, &seen.found)?;
    let left_out = left_out(config, &seen.found, &plans);
    if let Some(unknown) = left_out.unknown_text() {
        degraded(config, unknown)?;
    }
    if let Some(lost) = left_out.lost_text() {
        degraded(config, lost)?;
    }
    if let Some(idle) = left_out.idle_text() {
        tracing::info!(target: "init", "{idle}");
    }
    let devices = build(config, plans, &seen)?;
    for text in devices.iter().filter_map(rails_apart) {
        tracing::warn!(target: "init", "{text}");
    }
    Ok(devices)
}

/// Returns the rail of SOUT and SUP that carries most data, as far as the settings say it. In
/// vanilla mode that is SUP, which carries all data within an island.
fn data_rail(config: &Config) -> usize {
    const SUP: usize = 1;
    match (config.sup_share, config.mode) {
        (Some(share), _) if share >= SHARE_ONE / 2 => SUP,
        (None, Mode::Vanilla) => SUP,
        _ => 0,
    }
}

/// Describes SOUT and SUP if they are far from each other on this host.
fn rails_apart(device: &Device) -> Option<String> {
    let [sout, sup] = &device.rails[..] else { return None };
    let apart = device.is_sout_sup.then(|| sout.place()?.away_from(&sup.place()?)).flatten()?;
    let shown = device.shown()?;
    Some(format!(
        "SOUT {} and SUP {} are {apart}: NCCL sees the place of {} alone, and chooses GPUs, GPUDirect and channels by it, also for \
         data on the other rail. Two ports of one NUMA node and PCI root are faster",
        sout.name(),
        sup.name(),
        shown.name()
    ))
}

/// Returns the wires of ports by their places in `seen`.
fn wires_of(seen: &Seen, places: impl Iterator<Item = usize>) -> BTreeMap<usize, Wire> {
    let function = |place: usize| {
        let Adapter { context, limits, port } = seen.adapters[place].as_ref()?;
        let speed = port.map_or(0, |port| port.speed);
        Some((place, Function::read(context, limits.guid, seen.found[place].port, speed)))
    };
    let (places, functions): (Vec<_>, Vec<_>) = places.filter_map(function).unzip();
    places.into_iter().zip(wires(&functions)).collect()
}

/// Makes the devices of these plans.
fn build(config: &Config, plans: Vec<Plan>, seen: &Seen) -> Result<Vec<Device>> {
    let mut devices: Vec<Device> = Vec::with_capacity(plans.len());
    let wires = wires_of(seen, plans.iter().flat_map(|plan| plan.rails.iter().copied()));
    for plan in plans {
        let mut rails = Vec::with_capacity(plan.rails.len());
        for i in &plan.rails {
            let Some(Adapter { context, limits, port: Some(port) }) = &seen.adapters[*i] else { continue };
            let wanted = Wanted::new(config, context.name(), port.number);
            let nic = Arc::new(Nic::new(Pd::new(context)?, *limits, *port, wanted, wires[i]));
            if let Some(trouble) = &seen.found[*i].trouble {
                let why = format!("{}: {trouble}", nic.name());
                nic.health().happened(Moment::now(), Happening::Failed(&why));
            }
            rails.push(nic);
        }
        let shown = if rails.len() > 1 { data_rail(config) } else { 0 };
        let pci_path = rails.get(shown).and_then(|nic: &Arc<Nic>| nic.context().pci_path());
        let index = c_int::try_from(devices.len()).map_err(|_| Error::Internal("too many devices".into()))?;
        devices.push(Device {
            name: leak(plan.name),
            pci: pci_path
                .map(|path| PciPaths { card: leak(pci::folded(&path, config.merge_vfs)), own: leak(path) }),
            shown,
            is_sout_sup: rails.len() > 1,
            rails,
            members: vec![index],
            rail_id: plan.ids.0,
            plane_id: plan.ids.1,
        });
    }
    Ok(devices)
}

/// One port, whether it can be used or not.
#[derive(Debug)]
pub(crate) struct PortView {
    /// The adapter's name.
    pub(crate) hca: String,
    /// Port number, from 1.
    pub(crate) number: u8,
    /// Why it cannot be used.
    pub(crate) trouble: Option<String>,
    /// Whether `NCCL_IB_HCA` selects it.
    pub(crate) selected: bool,
    /// The port's attributes; `None` if they cannot be queried.
    pub(crate) state: Option<Port>,
    /// sysfs path of the PCI device.
    pub(crate) pci_path: Option<String>,
    /// Index of its wire among those of all ports. `None` if the adapter cannot be opened.
    pub(crate) wire: Option<usize>,
    /// The used entries of its GID table. Each with its rank among those that a connection may use,
    /// 0 for the best, or why it is not one of them.
    pub(crate) gids: Vec<(Gid, Result<usize, String>)>,
}

/// Every port, and the devices made of them.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Every port.
    pub(crate) ports: Vec<PortView>,
    /// The devices that NCCL would be shown, or why there are none.
    pub(crate) devices: Result<Vec<Device>>,
    /// One sentence on faulty ports that somebody misses. A failure with `MPIB_STRICT=1`.
    pub(crate) lost: Option<String>,
    /// One sentence on idle ports that nobody misses.
    pub(crate) idle: Option<String>,
    /// One sentence on SOUT and SUP if they are far from each other.
    pub(crate) apart: Option<String>,
    /// One sentence on names in `NCCL_IB_HCA` that select no port. A failure with `MPIB_STRICT=1`.
    pub(crate) unknown: Option<String>,
}

/// Opens the devices again, even if the process has them open, and logs nothing. Fails if there is
/// no list of adapters.
pub(crate) fn survey(config: &Config) -> Result<Survey> {
    let seen = discover(config)?;
    let wires = wires_of(&seen, 0..seen.found.len());
    let view = |(place, found): (usize, &Found)| {
        let adapter = seen.adapters[place].as_ref();
        let context = adapter.map(|a| &a.context);
        let state = context.and_then(|context| context.port(found.port).ok());
        let wanted = Wanted::new(config, &found.hca, found.port);
        let judged = |(context, port): (&Arc<Context>, &Port)| {
            // A table that cannot be read is the trouble of the port.
            let table = context.gids(port).unwrap_or_default();
            let verdicts = gid::verdicts(&table, port.link, &wanted);
            table.into_iter().zip(verdicts).collect()
        };
        PortView {
            hca: found.hca.clone(),
            number: found.port,
            trouble: found.trouble.as_ref().map(ToString::to_string),
            selected: selection::selected(config, found),
            gids: context.zip(state.as_ref()).map_or_else(Vec::new, judged),
            state,
            pci_path: context.and_then(|context| context.pci_path()),
            wire: wires.get(&place).map(|wire| wire.index),
        }
    };
    let ports = seen.found.iter().enumerate().map(view).collect();
    let plans = selection::plan(config, &seen.found);
    let left_out = left_out(config, &seen.found, plans.as_deref().unwrap_or_default());
    let devices = plans.and_then(|plans| build(config, plans, &seen));
    Ok(Survey {
        ports,
        apart: devices.iter().flatten().find_map(rails_apart),
        devices,
        lost: left_out.lost_text(),
        idle: left_out.idle_text(),
        unknown: left_out.unknown_text(),
    })
}
