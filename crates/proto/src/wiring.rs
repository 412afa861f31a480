//! WIRING, the description of the queue pairs and of the memory of an end.

use super::wire::{
    Codec, DecodeError, Layout, Nested, Optional, Reader, Within, Writer, layout, list, within,
};
use super::{MAX_OFFERS, MAX_RAILS};

/// The maximum number of queue pairs of a route.
const MAX_QPS: usize = 128;

const RAIL: Within = within("rail", 0..=MAX_OFFERS as u64 - 1, "0 to 31");

const fn bits24(what: &'static str) -> Within {
    within(what, 0..=(1 << 24) - 1, "24 bits")
}

layout! {
    /// The description of an end that its peer needs to connect queue pairs.
    pub struct Wiring {
        /// The routes, at most [`MAX_RAILS`].
        pub routes: Vec<RouteWiring> = list("routes", MAX_RAILS, Nested),
        /// The memory that the peer writes: the CTS FIFO of a sender, the completion records of a
        /// receiver.
        pub memory: Memory = Nested,
    }
}

impl Wiring {
    /// Sets the options in effect, by route.
    pub fn set_eces(&mut self, eces: &[Option<Ece>]) {
        self.routes.iter_mut().zip(eces).for_each(|(route, ece)| route.ece = *ece);
    }
}

layout! {
    /// The queue pairs that join two rails.
    pub struct RouteWiring {
        /// Index of the rail in the HELLO of the sender of this message.
        pub local_rail: u8 = RAIL,
        /// Index of the rail in the HELLO of its receiver.
        pub remote_rail: u8 = RAIL,
        /// The queue pairs, in the same order at both ends. None: the end could not make them.
        pub qps: Vec<QpWiring> = list("queue pairs", MAX_QPS, Nested),
        /// Service level of the sender of this message.
        pub service_level: u8 = within("service level", 0..=15, "0 to 15"),
        /// Traffic class of the sender of this message.
        pub traffic_class: u8 = "traffic class",
        /// The connector's options, or those of them that are in effect at the acceptor. `None`: no
        /// options are set.
        pub ece: Option<Ece> = Optional("ECE", Nested),
    }
}

layout! {
    /// `struct ibv_ece`: vendor options of enhanced connection establishment.
    #[repr(C)]
    #[derive(Copy)]
    pub struct Ece {
        /// The vendor.
        pub vendor_id: u32 = "ECE vendor",
        /// The options.
        pub options: u32 = "ECE options",
        /// 0 in all known versions.
        pub comp_mask: u32 = "ECE mask",
    }
}

layout! {
    /// One end of a queue pair.
    #[derive(Copy)]
    pub struct QpWiring {
        /// Number of the queue pair, 24 bits.
        pub qpn: u32 = bits24("queue pair number"),
        /// First packet sequence number, 24 bits.
        pub psn: u32 = bits24("packet sequence number"),
    }
}

layout! {
    /// Memory that the peer writes.
    pub struct Memory {
        /// Virtual address of the memory.
        pub addr: u64 = "address",
        /// Length in bytes.
        pub len: u64 = "length",
        /// Remote key for each route, at most [`MAX_RAILS`].
        pub rkeys: Vec<u32> = list("remote keys", MAX_RAILS, "remote key"),
    }
}
