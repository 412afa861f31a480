//! A view of every port of the host, and of the devices that the settings make of them.

use std::sync::Arc;

use super::discovery::{Adapter, discover};
use super::enumeration::{build, rails_apart};
use super::gid::{self, Wanted};
use super::left_out::left_out;
use super::net_device::Device;
use super::selection::{self, Found};
use crate::config::Config;
use crate::error::Result;
use crate::verbs::{Context, Gid, Port};

/// One port, whether it can be used or not.
#[derive(Debug)]
pub(crate) struct PortView {
    /// The adapter's name.
    pub hca: String,
    /// Port number, from 1.
    pub number: u8,
    /// Why it cannot be used.
    pub trouble: Option<String>,
    /// Whether `NCCL_IB_HCA` selects it.
    pub selected: bool,
    /// The port's attributes; `None` if they cannot be queried.
    pub state: Option<Port>,
    /// sysfs path of the PCI device.
    pub pci_path: Option<String>,
    /// The used entries of its GID table. Each with its rank among those that a connection may use,
    /// 0 for the best, or why it is not one of them.
    pub gids: Vec<(Gid, Result<usize, String>)>,
}

/// Every port, and the devices made of them.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Every port.
    pub ports: Vec<PortView>,
    /// The devices that NCCL would be shown, or why there are none.
    pub devices: Result<Vec<Device>>,
    /// One sentence on faulty ports that somebody misses. A failure with `MPIB_STRICT=1`.
    pub lost: Option<String>,
    /// One sentence on idle ports that nobody misses.
    pub idle: Option<String>,
    /// One sentence on SOUT and SUP if they are far from each other.
    pub apart: Option<String>,
    /// One sentence on names in `NCCL_IB_HCA` that select no port. A failure with `MPIB_STRICT=1`.
    pub unknown: Option<String>,
}

/// Opens the devices anew, even if the process has them open, and logs nothing. Fails if there is
/// no list of adapters.
pub(crate) fn survey(config: &Config) -> Result<Survey> {
    let seen = discover(config)?;
    let view = |(found, adapter): (&Found, &Option<Adapter>)| {
        let context = adapter.as_ref().map(|a| &a.context);
        let state = context.and_then(|context| context.port(found.port).ok());
        let wanted = Wanted::new(config, &found.hca, found.port);
        let judged = |(context, port): (&Arc<Context>, &Port)| {
            let table = context.gids(port);
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
        }
    };
    let ports = seen.found.iter().zip(&seen.adapters).map(view).collect();
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
