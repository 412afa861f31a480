//! Makes the physical devices that the settings select.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::discovery::{self, Adapter, Seen};
use super::gid::Wanted;
use super::mr_cache::Registrations;
use super::net_device::{Device, leak};
use super::nic::Nic;
use super::pci;
use super::selection::{self, Plan};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::verbs::Pd;
use crate::warned::{Subject, Warned};

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
    let left_out = selection::left_out(config, &seen.found);
    if let Some(lost) = left_out.lost_text() {
        degraded(config, lost)?;
    }
    if let Some(idle) = left_out.idle_text() {
        tracing::info!(target: "init", "{idle}");
    }
    build(config, plans, &seen)
}

/// Makes the devices of these plans.
pub(super) fn build(config: &Config, plans: Vec<Plan>, seen: &Seen) -> Result<Vec<Device>> {
    let mut devices = Vec::with_capacity(plans.len());
    for plan in plans {
        let mut rails = Vec::with_capacity(plan.rails.len());
        for &i in &plan.rails {
            let Some(Adapter { context, limits, port: Some(port) }) = &seen.adapters[i] else { continue };
            rails.push(Arc::new(Nic {
                name: format!("{}:{}", context.name(), port.number),
                pd: Arc::new(Pd::new(context)?),
                limits: *limits,
                port: *port,
                wanted: Wanted::new(config, context.name(), port.number),
                registrations: Registrations::new(),
                known: Mutex::default(),
                dmabuf: OnceLock::new(),
                srq: OnceLock::new(),
                no_loopback: OnceLock::new(),
            }));
        }
        let pci_path = rails.first().and_then(|n| n.pd.context().pci_path());
        let address = pci_path.as_deref().and_then(pci::Address::of);
        let on_card = |other: &&Device| {
            address.zip(other.pci_address()).is_some_and(|(ours, theirs)| ours.is_of_card(&theirs))
        };
        let card_place = u8::try_from(devices.iter().filter(on_card).count()).unwrap_or(u8::MAX);
        let index = c_int::try_from(devices.len()).map_err(|_| Error::Internal("too many devices".into()))?;
        devices.push(Device {
            name: leak(plan.name),
            pci_path: pci_path.map(leak),
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
