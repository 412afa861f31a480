//! Finds every port of the host, and what the settings make of it.

use std::sync::Arc;

use super::gid::{self, Wanted};
use super::selection::{self, Found, Trouble};
use super::{Device, build, pci, usable};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::verbs::{self, Context, DeviceLimits, Gid, Port};

/// Every port of this host, and the adapters behind them. Both lists have the same order.
pub(super) struct Seen {
    pub(super) found: Vec<Found>,
    /// `None` if the adapter cannot be opened.
    pub(super) adapters: Vec<Option<Adapter>>,
    /// Why connections may break when this process forks, if they may.
    pub(super) fork_unsafe: Option<Error>,
}

/// The adapter of a port.
pub(super) struct Adapter {
    pub(super) context: Arc<Context>,
    pub(super) limits: DeviceLimits,
    /// The port as it was found; `None` if it cannot be used.
    pub(super) port: Option<Port>,
}

/// Opens every adapter. Fails if there is no list of adapters.
pub(super) fn discover(config: &Config) -> Result<Seen> {
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
                    let port = usable(&context, &limits, number, &Wanted::new(config, &hca, number));
                    let trouble = port.as_ref().err().cloned();
                    seen.found.push(Found { hca: hca.clone(), port: number, trouble });
                    let port = port.ok().map(|(port, _)| port);
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

/// One port, whether it can be used or not.
#[derive(Debug)]
pub struct PortView {
    /// The adapter's name.
    pub hca: String,
    /// Port number, from 1.
    pub number: u8,
    /// Why it cannot be used.
    pub trouble: Option<String>,
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
pub struct Survey {
    /// Every port.
    pub ports: Vec<PortView>,
    /// The devices that NCCL would be shown, or why there are none.
    pub devices: Result<Vec<Device>>,
    /// One sentence on faulty ports that somebody misses. A failure with `MPIB_STRICT=1`.
    pub lost: Option<String>,
    /// One sentence on idle ports that nobody misses.
    pub idle: Option<String>,
}

/// Opens the devices anew, even if the process has them open, and logs nothing. Fails if there is
/// no list of adapters.
pub fn survey(config: &Config) -> Result<Survey> {
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
            gids: context.zip(state.as_ref()).map_or_else(Vec::new, judged),
            state,
            pci_path: context.and_then(|context| context.pci_path()),
        }
    };
    let ports = seen.found.iter().zip(&seen.adapters).map(view).collect();
    let left_out = selection::left_out(config, &seen.found);
    Ok(Survey {
        ports,
        devices: selection::plan(config, &seen.found).and_then(|plans| build(config, plans, &seen)),
        lost: left_out.lost_text(),
        idle: left_out.idle_text(),
    })
}
