//! This host as its peers see it: its name, its usable ports and the networks of their addresses.

use std::sync::{Arc, OnceLock};

use crate::control::Interface;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::proto::{MAX_RAIL_ADDRS, Mtu, RailAddr, RailInfo, RailRole};
use crate::verbs::{Gid, Port};

/// A port that can be used now.
#[derive(Debug, Clone)]
pub(crate) struct LocalRail {
    pub(crate) nic: Arc<Nic>,
    pub(crate) port: Port,
    /// The addresses that the HELLO advertises, the best first: 1 to [`MAX_RAIL_ADDRS`].
    pub(crate) gids: Vec<Gid>,
    /// Rail index in its device.
    pub(crate) role: RailRole,
    /// Whether the port belongs to the device that NCCL requested.
    requested: bool,
}

impl LocalRail {
    /// Takes the port and its GIDs as [`Nic::now`] returned them.
    pub(crate) fn new(
        nic: &Arc<Nic>,
        port: Port,
        mut gids: Vec<Gid>,
        role: RailRole,
        requested: bool,
    ) -> Self {
        if gids.len() > MAX_RAIL_ADDRS {
            let (name, n) = (nic.name(), gids.len());
            tracing::info!(target: "net", "{name} has {n} addresses; the HELLO advertises {MAX_RAIL_ADDRS}");
            gids.truncate(MAX_RAIL_ADDRS);
        }
        Self { nic: Arc::clone(nic), port, gids, role, requested }
    }

    /// Describes the port for the HELLO.
    pub(crate) fn info(&self, networks: &[Interface]) -> Result<RailInfo> {
        let addr = |gid: &Gid| RailAddr {
            gid: gid.raw,
            gid_index: gid.index,
            gid_kind: gid.kind,
            prefix_len: prefix_len(networks, gid),
        };
        let (name, port) = (self.nic.name(), &self.port);
        let mtu = Mtu::from_raw(port.mtu.into());
        Ok(RailInfo {
            name: name.to_owned(),
            port: port.number,
            link_layer: port.link,
            mtu: mtu.ok_or_else(|| Error::Internal(format!("{name} has MTU number {}", port.mtu)))?,
            lid: port.lid,
            addrs: self.gids.iter().map(addr).collect(),
            speed_mbps: port.speed,
            role: self.role,
            requested: self.requested,
            grh_required: port.grh_required,
        })
    }
}

/// Describes a port for the HELLO as if NCCL had requested it. The error is the reason why the
/// port cannot be used.
pub(crate) fn rail_info(nic: &Arc<Nic>, role: RailRole, networks: &[Interface]) -> Result<RailInfo, String> {
    let (port, gids) = nic.now()?;
    LocalRail::new(nic, port, gids, role, true).info(networks).map_err(|e| e.to_string())
}

/// Returns the prefix length of the network that a GID is an address of: that of the GID's own
/// interface, else of any interface with this address. Returns 0 if no interface has the address,
/// as in a container that has the adapter but not its interface.
pub(crate) fn prefix_len(networks: &[Interface], gid: &Gid) -> u8 {
    let with_address = || networks.iter().filter(|i| i.addr.ip() == gid.addr());
    let own = with_address().find(|i| i.index == gid.interface && i.index != 0);
    own.or_else(|| with_address().next()).map_or(0, |i| i.addr.prefix())
}

/// Returns the host's name for HELLOs and logs.
pub(crate) fn host_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/hostname");
    NAME.get_or_init(|| read().map_or_else(|_| "?".into(), |n| n.trim().to_owned())).clone()
}
