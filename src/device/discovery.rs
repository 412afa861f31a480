//! Finds every port of the host.

use std::sync::Arc;

use super::gid::Wanted;
use super::nic::usable;
use super::selection::{Found, Trouble};
use super::{partition, pci};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::verbs::{self, Context, DeviceLimits, Port};

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
    /// The port as it was found; `None` if it has a fault.
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
                    let wanted = Wanted::new(config, &hca, number);
                    let port = usable(&context, &limits, number, &wanted).and_then(|(port, _)| {
                        partition::index(&context, &port, config).map_err(Trouble::Fault)?;
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
