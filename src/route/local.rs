//! This host as its peers see it: its name, its usable ports and the networks of their addresses.

use std::sync::{Arc, OnceLock};

use mpib_proto::{MAX_RAIL_ADDRS, Mtu, RailAddr, RailInfo, RailRole};

use crate::control::Interface;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::verbs::{Gid, Pd, Port};

/// A port that can be used now, or once it is active.
#[derive(Debug, Clone)]
pub(crate) struct LocalRail {
    pub(crate) nic: Arc<Nic>,
    /// The protection domain of all objects of the connection on this port.
    pub(crate) pd: Arc<Pd>,
    pub(crate) port: Port,
    /// The addresses that the HELLO advertises, the best first: 1 to [`MAX_RAIL_ADDRS`].
    pub(crate) gids: Vec<Gid>,
    /// Rail index in its device.
    pub(crate) role: RailRole,
    /// Whether the port belongs to the device that NCCL requested.
    requested: bool,
    /// Events of the adapter before the port was read; `None` if one waited to be read.
    changes: Option<u64>,
    /// Names of the network interfaces of `gids`, as far as [`info`](Self::info) has seen them.
    interfaces: Vec<Option<String>>,
}

impl LocalRail {
    /// Takes the port and its GIDs as `read` returns them, for example [`Nic::now`].
    ///
    /// # Errors
    /// That of `read`.
    pub(crate) fn read(
        nic: &Arc<Nic>,
        role: RailRole,
        requested: bool,
        read: impl FnOnce(&Nic) -> Result<(Port, Vec<Gid>), String>,
    ) -> Result<Self, String> {
        // Before the port is read: an event that comes later may not be in what was read.
        let changes = nic.context().changes();
        let (port, mut gids) = read(nic)?;
        if gids.len() > MAX_RAIL_ADDRS {
            let (name, n) = (nic.name(), gids.len());
            tracing::info!(target: "net", "{name} has {n} addresses; the HELLO advertises {MAX_RAIL_ADDRS}");
            gids.truncate(MAX_RAIL_ADDRS);
        }
        let (nic, pd) = (Arc::clone(nic), nic.pd());
        Ok(Self { nic, pd, port, gids, role, requested, changes, interfaces: Vec::new() })
    }

    /// Returns whether the port is not active, or the adapter has reported an event since the port was
    /// read: its link may have been down and up again.
    pub(crate) fn has_changed(&self) -> bool {
        let changes = self.nic.context().changes();
        changes.is_none() || changes != self.changes || self.nic.down().is_some()
    }

    /// Describes the port for the HELLO.
    pub(crate) fn info(&mut self, networks: &[Interface]) -> Result<RailInfo> {
        let seen: Vec<Seen> = self.gids.iter().map(|gid| Seen::new(networks, gid)).collect();
        let addr = |(gid, seen): (&Gid, &Seen)| RailAddr {
            gid: gid.raw,
            gid_index: gid.index,
            gid_kind: gid.kind,
            prefix_len: seen.prefix_len,
        };
        let addrs = self.gids.iter().zip(&seen).map(addr).collect();
        self.interfaces = seen.into_iter().map(|seen| seen.interface).collect();
        let (name, port) = (self.nic.name(), &self.port);
        let mtu = Mtu::from_raw(port.mtu.into());
        Ok(RailInfo {
            name: name.to_owned(),
            port: port.number,
            link_layer: port.link,
            mtu: mtu.ok_or_else(|| Error::Internal(format!("{name} has MTU number {}", port.mtu)))?,
            lid: port.lid,
            addrs,
            speed_mbps: port.speed,
            role: self.role,
            requested: self.requested,
            grh_required: port.grh_required,
            is_down: !port.active,
        })
    }

    /// Returns a GID and the name of its network interface; `None` if the process does not see it.
    pub(crate) fn interface(&self, gid: usize) -> Option<(&Gid, &str)> {
        Some((self.gids.get(gid)?, self.interfaces.get(gid)?.as_deref()?))
    }
}

/// Describes a port for the HELLO as if NCCL had requested it. The error is the reason why the
/// port cannot be used.
pub(crate) fn rail_info(nic: &Arc<Nic>, role: RailRole, networks: &[Interface]) -> Result<RailInfo, String> {
    LocalRail::read(nic, role, true, Nic::now)?.info(networks).map_err(|e| e.to_string())
}

/// What the process sees of the network that a GID is an address of.
struct Seen {
    /// That of the GID's own interface, else of any interface with this address. 0 if no interface
    /// has the address, as in a container that has the adapter but not its interface.
    prefix_len: u8,
    /// The GID's own interface, else the only one with this address.
    interface: Option<String>,
}

impl Seen {
    fn new(networks: &[Interface], gid: &Gid) -> Self {
        let mut found = networks.iter().filter(|i| i.addr.ip() == gid.addr());
        let Some(first) = found.next() else { return Self { prefix_len: 0, interface: None } };
        let own =
            std::iter::once(first).chain(found.clone()).find(|i| i.index == gid.interface && i.index != 0);
        let only = Some(first).filter(|_| found.next().is_none());
        Self {
            prefix_len: own.unwrap_or(first).addr.prefix(),
            interface: own.or(only).map(|i| i.name.clone()),
        }
    }
}

/// Returns the prefix length of the network that a GID is an address of, or 0 if the process sees
/// no interface with the address.
pub(crate) fn prefix_len(networks: &[Interface], gid: &Gid) -> u8 {
    Seen::new(networks, gid).prefix_len
}

/// Returns the host's name for HELLOs and logs.
pub(crate) fn host_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/hostname");
    NAME.get_or_init(|| read().map_or_else(|_| "?".into(), |n| n.trim().to_owned())).clone()
}
