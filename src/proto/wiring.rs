//! WIRING, the description of the queue pairs and of the memory of an end.

use super::wire::{DecodeError, Reader, Writer};
use super::{MAX_OFFERS, MAX_RAILS};

/// The maximum number of queue pairs of a route.
const MAX_QPS: usize = 128;

/// The description of an end that its peer needs to connect queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wiring {
    /// The routes, at most [`MAX_RAILS`].
    pub routes: Vec<RouteWiring>,
    /// The memory that the peer writes: the CTS FIFO of a sender, the completion records of a
    /// receiver.
    pub memory: Memory,
}

/// The queue pairs that join two rails.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteWiring {
    /// Index of the rail in the HELLO of the sender of this message.
    pub local_rail: u8,
    /// Index of the rail in the HELLO of its receiver.
    pub remote_rail: u8,
    /// The queue pairs, in the same order at both ends.
    pub qps: Vec<QpWiring>,
    /// Service level of the sender of this message.
    pub service_level: u8,
    /// Traffic class of the sender of this message.
    pub traffic_class: u8,
    /// The connector's options, or those of them that are in effect at the acceptor. `None`: no
    /// options are set.
    pub ece: Option<Ece>,
}

/// `struct ibv_ece`: vendor options of enhanced connection establishment.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// 0 in all known versions.
    pub comp_mask: u32,
}

/// One end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QpWiring {
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// First packet sequence number, 24 bits.
    pub psn: u32,
}

/// Memory that the peer writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Virtual address of the memory.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key for each route, at most [`MAX_RAILS`].
    pub rkeys: Vec<u32>,
}

impl Wiring {
    /// Sets the options in effect, by route.
    pub(crate) fn set_eces(&mut self, eces: &[Option<Ece>]) {
        self.routes.iter_mut().zip(eces).for_each(|(route, ece)| route.ece = *ece);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.list(&self.routes, MAX_RAILS, "routes", |out, route| route.write(out));
        out.u64(self.memory.addr).u64(self.memory.len);
        out.list(&self.memory.rkeys, MAX_RAILS, "remote keys", |out, rkey| _ = out.u32(*rkey));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let routes = from.list(MAX_RAILS, "routes", RouteWiring::read)?;
        let memory = Memory {
            addr: from.u64("address")?,
            len: from.u64("length")?,
            rkeys: from.list(MAX_RAILS, "remote keys", |from| from.u32("remote key"))?,
        };
        Ok(Self { routes, memory })
    }
}

impl RouteWiring {
    pub(super) fn write(&self, out: &mut Writer) {
        out.u8(self.local_rail).u8(self.remote_rail);
        out.list(&self.qps, MAX_QPS, "queue pairs", |out, qp| _ = out.u32(qp.qpn).u32(qp.psn));
        out.u8(self.service_level).u8(self.traffic_class).u8(self.ece.is_some().into());
        if let Some(ece) = self.ece {
            out.u32(ece.vendor_id).u32(ece.options).u32(ece.comp_mask);
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            local_rail: rail(from)?,
            remote_rail: rail(from)?,
            qps: from.list(MAX_QPS, "queue pairs", |from| {
                Ok(QpWiring {
                    qpn: bits24(from, "queue pair number")?,
                    psn: bits24(from, "packet sequence number")?,
                })
            })?,
            service_level: from.below(16, "service level", "0 to 15")?,
            traffic_class: from.u8("traffic class")?,
            ece: match from.below(2, "ECE", "0 or 1")? {
                0 => None,
                _ => Some(Ece {
                    vendor_id: from.u32("ECE vendor")?,
                    options: from.u32("ECE options")?,
                    comp_mask: from.u32("ECE mask")?,
                }),
            },
        })
    }
}

fn rail(from: &mut Reader<'_>) -> Result<u8, DecodeError> {
    from.below(MAX_OFFERS as u8, "rail", "0 to 31")
}

fn bits24(from: &mut Reader<'_>, what: &'static str) -> Result<u32, DecodeError> {
    let found = from.u32(what)?;
    if found < 1 << 24 {
        Ok(found)
    } else {
        Err(DecodeError::Range { what, found: found.into(), expected: "24 bits" })
    }
}
