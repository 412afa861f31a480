//! Makes the physical devices that the settings select.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::discovery::{self, Adapter, Seen};
use super::gid::Wanted;
use super::left_out::left_out;
use super::mr_cache::Registrations;
use super::net_device::{Device, PciPaths, leak};
use super::nic::Nic;
use super::pci;
use super::port_meter::PortMeter;
use super::selection::{self, Plan};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::failover::{Happening, Moment, PortHealth};
use crate::proto::{Mode, SHARE_ONE};
use crate::verbs::Pd;
use crate::warned::{Subject, Warned};
use crate::worker::Worker;

/// Logs what the user requested and does not get; an error with `MPIB_STRICT=1`.
pub(super) fn degraded(config: &Config, what: String) -> Result<()> {
    tracing::warn!(target: "init", "{}", config.degraded(what)?);
    Ok(())
}

pub(super) fn enumerate(config: &Config, warned: &Warned) -> Result<Vec<Device>> {
    let seen = discovery::discover(config)?;
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
pub(super) fn rails_apart(device: &Device) -> Option<String> {
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

/// Makes the devices of these plans.
pub(super) fn build(config: &Config, plans: Vec<Plan>, seen: &Seen) -> Result<Vec<Device>> {
    let mut devices: Vec<Device> = Vec::with_capacity(plans.len());
    let mut cards: Vec<Option<pci::Address>> = Vec::with_capacity(plans.len());
    for plan in plans {
        let mut rails = Vec::with_capacity(plan.rails.len());
        for &i in &plan.rails {
            let Some(Adapter { context, limits, port: Some(port) }) = &seen.adapters[i] else { continue };
            let nic = Arc::new(Nic {
                name: format!("{}:{}", context.name(), port.number),
                pd: RwLock::new(Arc::new(Pd::new(context)?)),
                limits: *limits,
                port: *port,
                wanted: Wanted::new(config, context.name(), port.number),
                registrations: Registrations::new(),
                known: Mutex::default(),
                dmabuf: OnceLock::new(),
                srq: OnceLock::new(),
                srq_failed: OnceLock::new(),
                health: PortHealth::default(),
                meter: PortMeter::default(),
                worker: Worker::new("mpib-verbs"),
            });
            if let Some(trouble) = &seen.found[i].trouble {
                let why = format!("{}: {trouble}", nic.name);
                nic.health.happened(Moment::now(), Happening::Failed(&why));
            }
            rails.push(nic);
        }
        let shown = if rails.len() > 1 { data_rail(config) } else { 0 };
        let pci_path = rails.get(shown).and_then(|nic: &Arc<Nic>| nic.context().pci_path());
        let card = pci_path.as_deref().and_then(pci::card);
        let on_card = |other: &&Option<pci::Address>| {
            card.zip(**other).is_some_and(|(ours, theirs)| ours.is_of_card(&theirs))
        };
        let card_place = u8::try_from(cards.iter().filter(on_card).count()).unwrap_or(u8::MAX);
        cards.push(card);
        let index = c_int::try_from(devices.len()).map_err(|_| Error::Internal("too many devices".into()))?;
        devices.push(Device {
            name: leak(plan.name),
            pci: pci_path
                .map(|path| PciPaths { card: leak(pci::folded(&path, config.merge_vfs)), own: leak(path) }),
            shown,
            card_place,
            is_sout_sup: rails.len() > 1,
            rails,
            members: vec![index],
            rail_id: plan.ids.0,
            plane_id: plan.ids.1,
        });
    }
    Ok(devices)
}
