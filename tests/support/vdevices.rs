//! makeVDevice of each version that has it, and what the rails of a device carry.

use std::ffi::c_int;
use std::hint::black_box;

use nccl_net_abi as abi;

use crate::code::{Code, Success, known};
use crate::pair::{Buffer, Pair, connect, init, pattern, until};
use crate::table::{Ptr, Table, table};

/// What only newer versions report of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// `vProps`
    pub members: Vec<c_int>,
    /// v12: rail and plane.
    pub ids: Option<(i16, i16)>,
}

/// A version with virtual devices.
pub struct Version {
    pub number: u32,
    /// Most devices in one.
    pub most: usize,
}

/// The versions with virtual devices, oldest first.
pub const VERSIONS: &[Version] = &[
    Version { number: 9, most: 4 },
    Version { number: 10, most: 4 },
    Version { number: 11, most: 4 },
    Version { number: 12, most: 8 },
];

impl Version {
    /// Returns the code and the index of `makeVDevice` with an `ndevs` and an array that begins with
    /// these.
    pub fn make(&self, ndevs: c_int, devs: &[c_int]) -> (Code, c_int) {
        let (mut d, raw) = (77, table(self.number).raw());
        let code = if self.number < 12 {
            let mut props = abi::v9::VDeviceProps { ndevs, devs: Default::default() };
            props.devs[..devs.len()].copy_from_slice(devs);
            raw.make_vdevice(&raw mut d, (&raw mut props).cast())
        } else {
            let mut props = abi::v12::VDeviceProps { ndevs, devs: Default::default() };
            props.devs[..devs.len()].copy_from_slice(devs);
            raw.make_vdevice(&raw mut d, (&raw mut props).cast())
        };
        (known(code), d)
    }

    /// Returns what this version reports of a device.
    pub fn made(&self, dev: c_int) -> Made {
        let (rc, props) = table(self.number).properties(dev);
        assert_eq!(rc, Success, "getProperties({dev})");
        let props = props.expect("the call succeeded");
        Made { members: props.vdevs.expect("from v9 on"), ids: props.rail_id.zip(props.plane_id) }
    }

    /// A device that must come to be.
    pub fn fuse(&self, devs: &[c_int]) -> c_int {
        let (rc, d) = self.make(devs.len() as c_int, devs);
        assert_eq!(rc, Success, "v{}: makeVDevice of {devs:?}", self.number);
        d
    }
}

/// The newest version.
pub fn newest() -> &'static Version {
    &VERSIONS[VERSIONS.len() - 1]
}

/// RoCE rails r0, r1, …, each in a different subnet, for `SOFTVERBS_DEVICES`. `host` is the last
/// byte of their addresses.
pub fn rails(n: usize, host: u8) -> String {
    (0..n).map(|i| format!("r{i}:addr=10.0.{i}.{host}/24")).collect::<Vec<_>>().join(";")
}

/// Speeds of r0, r1, …, for `MPIB_RAIL_SPEED`.
pub fn speeds(of: &[u32]) -> String {
    of.iter().enumerate().map(|(i, speed)| format!("r{i}:{speed}")).collect::<Vec<_>>().join(",")
}

/// What a rail carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    pub bytes: u64,
    /// Writes with an immediate.
    pub signals: u64,
}

/// By rail, since the process began; rails are named r0, r1, ….
pub fn carried(n: usize) -> Vec<Carried> {
    let counters = softverbs::counters();
    let rail = |i: usize| {
        let c = &counters.iter().find(|d| d.name == format!("r{i}")).unwrap().total;
        Carried { bytes: c.bytes, signals: c.writes_with_imm }
    };
    (0..n).map(rail).collect()
}

/// The rule: parts in proportion to the weights, rounded down to 128; the first rail with a weight
/// has the rest.
pub fn parts(len: usize, weights: &[u64]) -> Vec<usize> {
    let sum: u64 = weights.iter().sum();
    let first = weights.iter().position(|w| *w > 0).unwrap();
    let part = |(i, w): (usize, &u64)| {
        if i == first { 0 } else { (len as u128 * u128::from(*w) / u128::from(sum)) as usize / 128 * 128 }
    };
    let mut parts: Vec<_> = weights.iter().enumerate().map(part).collect();
    parts[first] = len - parts.iter().sum::<usize>();
    parts
}

/// Whether an immediate of a connection of `rails` rails can say this size.
pub fn fits_immediate(len: usize, rails: usize) -> bool {
    let bits = 23 - rails.max(2);
    len < 1 << bits || len.is_multiple_of(128) && len / 128 < (1 << bits) - 1
}

/// What a group of sends of these lengths should be carried by, when the rails have these weights:
/// payload, the record on the first active rail if the immediate cannot encode the size, and the
/// CTS entries on rail `cts`.
pub fn by_the_rule(lens: &[usize], weights: &[u64], cts: usize) -> Vec<Carried> {
    let rails = weights.iter().filter(|w| **w > 0).count();
    let mut all = vec![Carried::default(); weights.len()];
    for len in lens {
        for (rail, part) in all.iter_mut().zip(parts(*len, weights)) {
            rail.bytes += part as u64;
            rail.signals |= u64::from(part > 0);
        }
    }
    if lens.iter().all(|len| *len == 0) {
        all[weights.iter().position(|w| *w > 0).unwrap()].signals = 1;
    }
    if lens.len() > 1 || !fits_immediate(lens[0], rails) {
        all.iter_mut().find(|rail| rail.signals > 0).unwrap().bytes += 64;
    }
    all[cts].bytes += 64 * lens.len() as u64;
    all
}

/// A connection, and memory for its largest messages.
pub struct Rig {
    pub pair: Pair,
    from: Buffer,
    to: Buffer,
    turn: usize,
    /// Single receives are called optional: they are done before their data is here.
    pub optional: bool,
    /// Each message is followed by a flush.
    pub flushes: bool,
}

/// Room behind each message that must stay as it was.
const SLACK: usize = 64;

impl Rig {
    pub fn new(table: &'static Table, ctx: Ptr, dev: c_int, most: usize) -> Self {
        Self::of(connect(table, ctx, dev), most)
    }

    /// Over a connection that is there.
    pub fn of(pair: Pair, most: usize) -> Self {
        let from = pair.send_buffer(pattern(most + 65_536, 1));
        let to = pair.recv_buffer(most + 8 * SLACK);
        Self { pair, from, to, turn: 0, optional: false, flushes: false }
    }

    /// One group of messages of these lengths, sent last first; every byte is checked, and those
    /// behind.
    pub fn exchange(&mut self, lens: &[usize]) {
        let mut at = 0;
        let mut places = Vec::new();
        for len in lens {
            self.turn += 1;
            places.push((at, self.turn * 4099 % 65_536));
            at += len + SLACK;
        }
        self.to.bytes[..at].fill(0xEE);
        let (pair, to, from) = (&self.pair, &self.to, &self.from);
        let group: Vec<_> =
            (0..lens.len()).map(|i| (to.addr() + places[i].0, lens[i] + SLACK, i as c_int, to.mr)).collect();
        let optional = self.optional && lens.len() == 1;
        // While an episode is going on, no receive begins.
        let recv = until("irecv", || {
            let (rc, recv) = pair.table.irecv_as(pair.recv, &group, usize::from(optional));
            assert_eq!(rc, Success, "irecv");
            (recv.addr() > 1).then_some(recv)
        });
        let sends: Vec<_> = (0..lens.len())
            .rev()
            .map(|i| (i, pair.isend(from.addr() + places[i].1, lens[i], i as c_int, from.mr)))
            .collect();
        for (i, send) in sends {
            assert_eq!(pair.wait(send)[0] as usize, lens[i], "send {i} of {lens:?}");
        }
        let sizes = pair.wait(recv);
        if self.flushes {
            let (rc, flush) = pair.table.iflush(pair.recv, &[(to.addr(), 1, to.mr)]);
            assert_eq!(rc, Success, "iflush");
            if !flush.is_null() {
                pair.wait(flush);
            }
        }
        for (i, (len, (at, source))) in lens.iter().zip(&places).enumerate() {
            let size = sizes[i] as usize;
            assert!(size == *len || optional && size == 0, "receive {i} of {lens:?}: {size}");
            let (data, rest) = self.to.bytes[*at..at + len + SLACK].split_at(*len);
            if optional && size == 0 {
                // Its completion covers no data, which lands by itself. Byte by byte: memcmp may call
                // memory equal that changes meanwhile.
                let sent = &self.from.bytes[*source..source + len];
                let is_here = || black_box(data).iter().zip(sent).all(|(here, sent)| here == sent);
                until("data of an optional receive", || is_here().then_some(()));
            }
            assert!(*data == self.from.bytes[*source..source + len], "receive {i} of {lens:?} differs");
            assert!(rest.iter().all(|b| *b == 0xEE), "written behind receive {i} of {lens:?}");
        }
    }

    pub fn close(self) {
        self.from.dereg();
        self.to.dereg();
        self.pair.close();
    }
}

/// `init` of the newest version, and a device of the first `n` rails.
pub fn newest_device(n: usize) -> (Ptr, c_int) {
    let ctx = init(table(12));
    let devs: Vec<c_int> = (0..n as c_int).collect();
    (ctx, newest().fuse(&devs))
}
