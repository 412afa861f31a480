//! The rails that one end brings to a handshake.

use std::sync::Arc;

use nix::net::if_::if_indextoname;

use crate::bootstrap::{Interface, interfaces};
use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::proto::{Hello, MAX_RAIL_ADDRS, Mtu, Nonce, RailAddr, RailInfo, Terms};
use crate::verbs::{Gid, Port};

/// A port of the device that can be used now.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) nic: Arc<Nic>,
    pub(super) port: Port,
    /// What the peer is told, the best first: 1 to [`MAX_RAIL_ADDRS`].
    pub(super) gids: Vec<Gid>,
    /// Rail index in the device.
    pub(super) role: u8,
}

/// The device's rails as they are now.
#[derive(Debug)]
pub(super) struct Offers {
    /// At least one.
    pub(super) usable: Vec<Offer>,
    /// Index in the device of each rail that cannot be used, and why. Whether it is missed depends on the peer.
    pub(super) lost: Vec<(u8, String)>,
}

/// An error where no rail can be used.
pub(super) fn offers(device: &Device) -> Result<Offers> {
    let mut usable = Vec::with_capacity(device.rails.len());
    let mut lost = Vec::new();
    for (role, nic) in (0u8..).zip(&device.rails) {
        match nic.now() {
            Ok((port, mut gids)) => {
                if gids.len() > MAX_RAIL_ADDRS {
                    let (name, n) = (nic.name(), gids.len());
                    tracing::info!(target: "net", "{name} has {n} addresses; the peer is told of {MAX_RAIL_ADDRS}");
                    gids.truncate(MAX_RAIL_ADDRS);
                }
                usable.push(Offer { nic: Arc::clone(nic), port, gids, role });
            }
            Err(why) => lost.push((role, format!("our {}: {why}", nic.name()))),
        }
    }
    if usable.is_empty() {
        let why: Vec<_> = lost.into_iter().map(|(_, why)| why).collect();
        return Err(Error::Usage(format!("rails that cannot be used: {}", why.join("; "))));
    }
    Ok(Offers { usable, lost })
}

/// What the peer is told of us.
pub(super) fn hello(offers: &[Offer], terms: Terms) -> Result<Hello> {
    let networks = interfaces()?;
    let addr = |gid: &Gid| RailAddr {
        gid: gid.raw,
        gid_index: gid.index,
        gid_kind: gid.kind,
        prefix_len: prefix_len(&networks, gid),
    };
    let rail = |o: &Offer| {
        let mtu = Mtu::from_raw(o.port.mtu.into());
        Ok(RailInfo {
            name: o.nic.name().to_owned(),
            port: o.port.number,
            link_layer: o.port.link,
            mtu: mtu
                .ok_or_else(|| Error::Internal(format!("{} has MTU number {}", o.nic.name(), o.port.mtu)))?,
            lid: o.port.lid,
            addrs: o.gids.iter().map(addr).collect(),
            speed_mbps: o.port.speed,
            role: o.role,
        })
    };
    Ok(Hello {
        nonce: Nonce::default(),
        token: Nonce::default(),
        pid: std::process::id(),
        host: host_name(),
        terms,
        rails: offers.iter().map(rail).collect::<Result<_>>()?,
    })
}

/// Prefix length of the network that a GID is an address of: its own interface's, else that of any interface with this
/// address; 0 where there is none, as in a container that has the adapter and not its interface.
fn prefix_len(networks: &[Interface], gid: &Gid) -> u8 {
    let name = if_indextoname(gid.interface).ok().and_then(|name| name.into_string().ok());
    let with_address = || networks.iter().filter(|i| i.addr.ip() == gid.addr());
    let own = with_address().find(|i| Some(&i.name) == name.as_ref());
    own.or_else(|| with_address().next()).map_or(0, |i| i.addr.prefix())
}

/// For logs.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".into(), |n| n.trim().to_owned())
}
