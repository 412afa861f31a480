//! The rails that one end brings to a handshake.

use std::net::IpAddr;
use std::sync::Arc;

use crate::bootstrap::interfaces;
use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::proto::{Hello, Mtu, Nonce, RailInfo, Terms};
use crate::verbs::{Gid, Port};

/// A port of the device that can be used now.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) nic: Arc<Nic>,
    pub(super) port: Port,
    pub(super) gid: Gid,
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
            Ok((port, gid)) => usable.push(Offer { nic: Arc::clone(nic), port, gid, role }),
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
    let prefix = |ip: IpAddr| networks.iter().find(|i| i.addr.ip() == ip).map_or(0, |i| i.addr.prefix());
    let rail = |o: &Offer| {
        let mtu = Mtu::from_raw(o.port.mtu.into());
        Ok(RailInfo {
            name: o.nic.name().to_owned(),
            port: o.port.number,
            link_layer: o.port.link,
            mtu: mtu
                .ok_or_else(|| Error::Internal(format!("{} has MTU number {}", o.nic.name(), o.port.mtu)))?,
            lid: o.port.lid,
            gid: o.gid.raw,
            gid_index: o.gid.index,
            gid_kind: o.gid.kind,
            prefix_len: prefix(o.gid.addr()),
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

/// For logs.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".into(), |n| n.trim().to_owned())
}
