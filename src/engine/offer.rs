//! The rails that one end brings to a handshake.

use std::net::IpAddr;
use std::sync::Arc;

use crate::bootstrap::interfaces;
use crate::device::{Device, Nic};
use crate::error::{Error, Result};
use crate::proto::{Hello, Mtu, Nonce, RailInfo};
use crate::verbs::{Gid, Port};

/// A port of the device that can be used now.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) nic: Arc<Nic>,
    pub(super) port: Port,
    pub(super) gid: Gid,
    /// Rail index in the device.
    role: u8,
}

/// The device's rails as they are now. One that cannot be used is left out with a warning; `strict` makes it
/// an error.
pub(super) fn offers(device: &Device, strict: bool) -> Result<Vec<Offer>> {
    let mut offers = Vec::with_capacity(device.rails.len());
    let mut lost = Vec::new();
    for (role, nic) in (0u8..).zip(&device.rails) {
        match nic.now() {
            Ok((port, gid)) => offers.push(Offer { nic: Arc::clone(nic), port, gid, role }),
            Err(why) => lost.push(format!("rail {role} ({}): {why}", nic.name())),
        }
    }
    if lost.is_empty() {
        return Ok(offers);
    }
    let what = format!("rails that cannot be used: {}", lost.join("; "));
    if offers.is_empty() {
        return Err(Error::Usage(what));
    }
    if strict {
        return Err(Error::Usage(format!("{what} (MPIB_STRICT=1)")));
    }
    tracing::warn!(target: "net", "{what}; the connection goes on without");
    Ok(offers)
}

/// What the peer is told of us.
pub(super) fn hello(offers: &[Offer]) -> Result<Hello> {
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
        rails: offers.iter().map(rail).collect::<Result<_>>()?,
    })
}

/// For logs.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".into(), |n| n.trim().to_owned())
}
