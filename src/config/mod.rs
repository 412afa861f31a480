//! The table of settings: name, form, default, meaning. `docs/guide/configuration.md` is made from
//! it.
//!
//! Settings are environment variables, read once at init. An invalid value is an error that names
//! the variable, the value found and the values expected. An invalid value never becomes the
//! default.

mod address;
mod contradictions;
mod filter;
mod form;
mod retries;
mod unsupported;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use nccl_net_mpib_agent_iface::doctor::{Alike, Level};

pub(crate) use address::{AddrRange, GidIndex};
pub(crate) use filter::{Broad, Family, HcaFilter, HcaName, NameFilter, PLANE_END, RailSpeeds};
pub(crate) use form::SplitBy;
use form::{AbsolutePath, Faults, Flag, Form, ModeNumber, Name, Optional, Or, Text, Time, Whole};
pub(crate) use unsupported::{Finding, nearest};

use mpib_proto::{MAX_PLAIN_QPS, MAX_RAIL_QPS, Mode, RoutePolicy};

use crate::error::{BadSetting, Error, Result};

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+ $field:ident : $ty:ty = $default:expr, $var:literal, $form:expr
        $(, differs: $differs:literal)?
        $(, alike: $alike:expr)?;
    )*) => {
        /// The settings, read once at init and passed down. Nothing else reads the environment.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $ty,)*
            /// Settings that are out of bounds, each with the value that is used in its place.
            pub substituted: Vec<(BadSetting, String)>,
            /// Lists with empty items, which are skipped.
            pub(crate) with_empty_items: Vec<&'static str>,
            /// The user's folder for sockets, `XDG_RUNTIME_DIR`, as the desktop or login service
            /// has set it.
            pub(crate) runtime_dir: Option<OsString>,
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)* substituted: Vec::new(), with_empty_items: Vec::new(), runtime_dir: None }
            }
        }

        impl Config {
            /// Reads the settings through `var`. Tests need not change the environment. The error
            /// has all invalid settings.
            pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
                let (config, bad) = Self::read_lenient(var);
                if bad.is_empty() { Ok(config) } else { Err(Error::Config(bad)) }
            }

            /// Like [`Config::read`], but returns invalid settings beside the valid ones. An
            /// invalid one has its default.
            pub fn read_lenient(var: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<BadSetting>) {
                let mut config = Self { runtime_dir: var("XDG_RUNTIME_DIR"), ..Self::default() };
                let mut faults = Faults::default();
                $(if let Some(text) = var($var).filter(|text| !is_unset($var, text)) {
                    faults.read(&$form, $var, &text, &mut config.$field);
                })*
                let Faults { mut bad, substituted, with_empty_items } = faults;
                (config.substituted, config.with_empty_items) = (substituted, with_empty_items);
                let is_set = |name| var(name).is_some_and(|text| !is_unset(name, &text));
                if !is_set("MPIB_FAILOVER") {
                    config.failover = config.port_failover.unwrap_or(!config.strict);
                }
                if config.strict {
                    bad.extend(config.substituted.drain(..).map(|(e, _)| e));
                }
                if bad.is_empty() {
                    bad = config.contradictions();
                }
                (config, bad)
            }

            /// Returns every setting in effect: variable, value, and whether that is the default.
            pub fn all(&self) -> Vec<(&'static str, String, bool)> {
                let default = Self::default();
                vec![$(($var, $form.show(&self.$field), self.$field == default.$field)),*]
            }

            /// Makes the sections in `docs/guide/configuration.md`.
            #[cfg(test)]
            fn manual() -> String {
                let default = Self::default();
                let mut out = String::from("\n");
                $(out += &form::section($var, &$form, &default.$field, &[$($doc),+], &[$($differs)?], &[$($alike)?]);)*
                out
            }

            /// Names of all variables.
            const VARIABLES: &[&str] = &[$($var),*];

            /// The settings that are to be alike on all hosts, beside those that a handshake compares.
            pub(crate) const ALIKE: &[(&str, Alike)] = &[$($(($var, $alike),)?)*];
        }
    };
}

/// A difference costs something.
const fn costs(why: &'static str) -> Alike {
    Alike { level: Level::Warn, by_presence: false, why: Cow::Borrowed(why) }
}

/// The same, of a value that names what each host may call otherwise.
const fn absence_costs(why: &'static str) -> Alike {
    Alike { level: Level::Warn, by_presence: true, why: Cow::Borrowed(why) }
}

/// A difference stops jobs.
const fn breaks(why: &'static str) -> Alike {
    Alike { level: Level::Fail, by_presence: false, why: Cow::Borrowed(why) }
}

const SPLITS: Alike = costs("each host splits what it sends by its own value, and the two directions differ");
const CLASSES: Alike = costs(
    "data and their acknowledgements travel in different classes, and flow control may protect one alone",
);
const GIVES_UP: Alike =
    costs("each host gives up on a lost packet by its own value: one notices a fault later");
const ORDERS: Alike = costs("each host sends large messages by its own value");
const FUSED: &str =
    "the devices of the two hosts have other ports, and connections use the rails that both have";

settings! {
    /// HCA and port of rail 0, the scale-out network. Set it together with `MPIB_HCA_SUP`: NCCL
    /// then sees one device with both rails. With neither set, each port is a device.
    hca_sout: Option<HcaName> = None, "MPIB_HCA_SOUT", Optional(Text::<HcaName>::NEW),
        alike: absence_costs(FUSED);
    /// HCA and port of rail 1, the scale-up network.
    hca_sup: Option<HcaName> = None, "MPIB_HCA_SUP", Optional(Text::<HcaName>::NEW);
    /// Decides which of the two rails carries a transfer. 0 (vanilla): SUP within an island, SOUT
    /// between islands. 1 (advanced): the connection's hint splits each transfer over both rails.
    /// See [mpib.md](mpib.md).
    mode: Mode = Mode::Vanilla, "MPIB_MODE", ModeNumber;
    /// Leading bits of SOUT's IPv4 address that the hosts of one island have in common. 0: all
    /// hosts are in one island.
    island_prefix_len: u8 = 24, "MPIB_ISLAND_PREFIX_LEN", Whole::<u8>::new(0, 32);
    /// Fixes the split over both rails, in either mode: the part of each transfer that goes on SUP,
    /// in parts per 1024. 0 is all on SOUT, 1024 all on SUP. Unset: `MPIB_MODE` decides.
    sup_share: Option<u16> = None, "MPIB_SUP_SHARE", Optional(Whole::<u16>::new(0, 1024)),
        alike: SPLITS;
    /// With `MPIB_MODE=1`: transfers between islands of at most this many bytes use SOUT alone,
    /// regardless of the hint. 0: off.
    bdp_threshold: u32 = 0, "MPIB_BDP_THRESHOLD", Whole::<u32>::new(0, 1 << 30),
        alike: SPLITS;
    /// How a message is split if neither `MPIB_SUP_SHARE` nor a hint nor the island decides.
    /// `measured`: by the goodput that the sender measures on each rail, at first by the speeds that
    /// the ports report. `speed`: by these speeds. `share`: for SOUT and SUP, with `MPIB_SUP_SHARE`
    /// or `MPIB_MODE=1`; all on SOUT without a hint. The sender's value counts. See
    /// [measured-split.md](measured-split.md).
    split: SplitBy = SplitBy::Measured, "MPIB_SPLIT", Text::<SplitBy>::NEW,
        alike: SPLITS;
    /// Messages below this many bytes go whole on one rail, larger ones are split over all rails
    /// that may carry data. 0: messages of at least 128 bytes are split. Unset: 65536; if all rails
    /// of the connection are slower than 100 Gb/s, by their ports or as measured, less in proportion
    /// to the fastest one. See
    /// [mpib.md](mpib.md#small-messages) and
    /// [fused-devices.md](fused-devices.md#which-rail-carries-what).
    split_min: Option<u32> = None, "MPIB_SPLIT_MIN", Optional(Whole::<u32>::new(0, 1 << 30)),
        alike: SPLITS;
    /// Queue pairs per connection on SOUT. Messages use them round-robin. Set more where the network
    /// or a bond balances by flow. See [mpib.md](mpib.md#queue-pairs).
    sout_qp: u8 = 1, "MPIB_SOUT_QP", Whole::<u8>::new(1, MAX_RAIL_QPS);
    /// Queue pairs per connection on SUP.
    sup_qp: u8 = 1, "MPIB_SUP_QP", Whole::<u8>::new(1, MAX_RAIL_QPS);
    /// 1: a loss that is otherwise a warning (a rail, GPUDirect, the agent) fails init or connect. A
    /// rail that fails later fails its connections, unless `MPIB_FAILOVER=1` is set.
    strict: bool = false, "MPIB_STRICT", Flag;
    /// Which NICs of two hosts a connection may join if the devices are not SOUT and SUP. `any`:
    /// those that NCCL requested first, others if these do not reach each other. `strict`: only
    /// those that NCCL requested. `prefer-subnet`: those on a common subnet first. `subnet`: only
    /// those. Must be equal on both ends. See [reach.md](reach.md).
    route: RoutePolicy = RoutePolicy::Any, "MPIB_ROUTE", Text::<RoutePolicy>::NEW;
    /// Network interfaces whose addresses a listener advertises for control connections. Overrides
    /// `NCCL_SOCKET_IFNAME`.
    oob_if: Option<NameFilter> = None, "MPIB_OOB_IF", Optional(Text::<NameFilter>::NEW);
    /// Like `MPIB_OOB_IF`. With neither set, the interface that has the address of `MPIB_HCA_SOUT`;
    /// if there is none, every interface that is up, loopback and bridges last.
    socket_ifname: Option<NameFilter> = None, "NCCL_SOCKET_IFNAME", Optional(Text::<NameFilter>::NEW),
        differs: "same filter; the default differs";
    /// Address family of the control connections. Unset: both.
    socket_family: Option<Family> = None, "NCCL_SOCKET_FAMILY", Optional(Text::<Family>::NEW);
    /// HCAs and ports to use if `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` are not set. After the port an
    /// item may give the rail and plane of the network, which NCCL learns from v12 on.
    ib_hca: Option<HcaFilter> = None, "NCCL_IB_HCA", Optional(Text::<HcaFilter>::NEW);
    /// 1: adapters are ordered by PCI address, those without one last. Hosts that enumerate
    /// adapters differently then number them alike. 0: the order of the verbs library.
    device_pci_order: bool = true, "NCCL_IB_DEVICE_PCI_ORDER", Flag,
        alike: costs("the hosts number their devices differently, and NCCL joins other pairs");
    /// 1: a virtual function shows NCCL the PCI path of its physical one, whose link it shares. 0:
    /// its own. See [fused-devices.md](fused-devices.md#properties-that-nccl-sees).
    merge_vfs: bool = true, "NCCL_IB_MERGE_VFS", Flag,
        differs: "the kernel's link physfn names the physical function; net_ib takes all devices of a bus for one card";
    /// 0: NCCL may not fuse several devices into one. See [fused-devices.md](fused-devices.md).
    merge_nics: bool = true, "NCCL_IB_MERGE_NICS", Flag,
        alike: costs(FUSED);
    /// Capacity of a port in Mb/s, if it differs from what the port reports. It determines the
    /// speed that NCCL sees and the parts of a message on the rails of a fused device.
    rail_speed: Option<RailSpeeds> = None, "MPIB_RAIL_SPEED", Optional(Text::<RailSpeeds>::NEW);
    /// Microseconds that NCCL adds to the latency between hosts in its own table, with which it
    /// chooses the algorithm and the protocol of a size. For networks that are slower than its
    /// table of InfiniBand, such as routed ones: a larger value prefers trees and LL. Must be equal on
    /// all ranks, which otherwise choose differently and wait for each other.
    latency_us: u16 = 0, "MPIB_LATENCY_US", Whole::<u16>::new(0, 10_000),
        alike: breaks("ranks choose different algorithms, and wait for each other");
    /// Queue pairs per connection on each rail, if the devices are not SOUT and SUP. Must be equal
    /// on both ends.
    ib_qps: u8 = 1, "NCCL_IB_QPS_PER_CONNECTION", Whole::<u8>::new(1, MAX_PLAIN_QPS);
    /// 1: each message is split over all of these queue pairs. 0: it uses one of them, round-robin.
    /// Must be equal on both ends. See
    /// [fused-devices.md](fused-devices.md#several-queue-pairs-on-a-rail).
    ib_split: bool = false, "NCCL_IB_SPLIT_DATA_ON_QPS", Flag,
        differs: "a message uses at most eight queue pairs; more take turns";
    /// For networks that route each packet by itself. 1: the immediate of large messages follows in
    /// a separate work request. 0: data and immediate are one work request. -2: 1 if all rails of
    /// the connection are InfiniBand, else 0.
    adaptive_routing: Option<bool> = None, "NCCL_IB_ADAPTIVE_ROUTING", Or("-2", Flag),
        alike: ORDERS;
    /// Messages above this many bytes are large in that sense. -2: 8192.
    ar_threshold: Option<u32> = None, "NCCL_IB_AR_THRESHOLD", Or("-2", Whole::<u32>::new(0, 1 << 30)),
        alike: ORDERS;
    /// Index into the GID table: one number for every RoCE port, or a list such as
    /// `mlx5_0:3,mlx5_1:1:5` of HCA, optional port, and index. -1, and HCAs that are not in the
    /// list: chosen for each connection, see [reach.md](reach.md#choice-of-addresses). InfiniBand
    /// ports that are not in a list use index 0.
    gid_index: GidIndex = GidIndex::Auto, "NCCL_IB_GID_INDEX", Text::<GidIndex>::NEW,
        differs: "also a list; -1 chooses per connection, not once";
    /// Index of the entry in the GID table of an InfiniBand port that carries its FLID, by which
    /// routers reach the port from other subnets. See [reach.md](reach.md#infiniband).
    flid_gid_index: u8 = 1, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", Whole::<u8>::new(0, 255),
        differs: "a peer in another subnet without an FLID is refused; net_ib uses its LID";
    /// RoCE ports without `NCCL_IB_GID_INDEX` use addresses of this family only. Unset: of both.
    addr_family: Option<Family> = None, "NCCL_IB_ADDR_FAMILY", Optional(Text::<Family>::NEW),
        differs: "unset is both, not AF_INET";
    /// RoCE ports without `NCCL_IB_GID_INDEX` use addresses in this range only.
    addr_range: Option<AddrRange> = None, "NCCL_IB_ADDR_RANGE", Optional(Text::<AddrRange>::NEW),
        differs: "a port without an address in it is left out; net_ib uses entry 0";
    /// RoCE ports without `NCCL_IB_GID_INDEX` use this version of RoCE only. Unset: 2 if both ends
    /// have it, else 1.
    roce_version: Option<u8> = None, "NCCL_IB_ROCE_VERSION_NUM", Optional(Whole::<u8>::new(1, 2)),
        differs: "unset is both, not 2";
    /// Acknowledge timeout of queue pairs: 4.096 µs times 2 to this power. Adapters may wait up to
    /// four times as long, see [reach.md](reach.md#how-long-adapters-try). When another value is
    /// better: [failover.md](failover.md#how-soon-a-fault-is-noticed).
    timeout: u8 = 20, "NCCL_IB_TIMEOUT", Whole::<u8>::new(1, 31).or_largest(),
        differs: "31, with a warning, for 0 (no timeout) and above 31",
        alike: GIVES_UP;
    /// Retransmissions of an unacknowledged packet.
    retry_cnt: u8 = 7, "NCCL_IB_RETRY_CNT", Whole::<u8>::new(0, 7).or_largest(),
        differs: "7, with a warning, for more than 7",
        alike: GIVES_UP;
    /// Index into each port's P_Key table, if `NCCL_IB_PKEY_VALUE` is -1. A port without a P_Key
    /// there is not used.
    pkey_index: u16 = 0, "NCCL_IB_PKEY", Whole::<u16>::new(0, 65535),
        differs: "a port without it is left out";
    /// Partition by number: the first entry of each port's P_Key table with these low 15 bits. A
    /// port without it is not used. -1: `NCCL_IB_PKEY`.
    pkey_value: Option<u16> = None, "NCCL_IB_PKEY_VALUE", Or("-1", Whole::<u16>::new(0, 65535)),
        differs: "a port without it is left out",
        alike: costs("ports of two partitions do not reach each other");
    /// InfiniBand service level. -1: the communicator's traffic class; without one, 0 at a sender
    /// and the sender's level at a receiver.
    sl: Option<u8> = None, "NCCL_IB_SL", Or("-1", Whole::<u8>::new(0, 15)),
        differs: "a traffic class above 15 gives 0; a receiver uses its own setting, net_ib the sender's",
        alike: CLASSES;
    /// RoCE traffic class. -1: the communicator's; without one, 0 at a sender and the sender's at a
    /// receiver.
    tc: Option<u8> = None, "NCCL_IB_TC", Or("-1", Whole::<u8>::new(0, 255)),
        differs: "a receiver uses its own setting, net_ib the sender's",
        alike: CLASSES;
    /// RoCE traffic class of the receiver's first queue pair on each rail, which carries CTS writes
    /// and the acknowledgements of its data. -1: that of the other queue pairs.
    fifo_tc: Option<u8> = None, "NCCL_IB_FIFO_TC", Or("-1", Whole::<u8>::new(0, 255)),
        alike: CLASSES;
    /// 1: CTS writes of single receives are inline (`IBV_SEND_INLINE`); a warning if an adapter has
    /// no room for that. 0: the adapter reads them from memory, and queue pairs have no inline
    /// room. Unset: 1 if the adapter has room. See
    /// [receives.md](../internals/receives.md#cts-writes).
    use_inline: Option<bool> = None, "NCCL_IB_USE_INLINE", Optional(Flag),
        differs: "unset is 1 if the adapter has room, in net_ib 0; groups of receives are never inline";
    /// 1: queue pairs use enhanced connection establishment if the adapters and verbs libraries of
    /// both ends support it. It enables vendor features such as congestion control.
    ece: bool = true, "NCCL_IB_ECE_ENABLE", Flag,
        alike: costs("connections between the two do without ECE");
    /// Retries of a queue pair change that failed with ETIMEDOUT, made while connect and accept are
    /// polled: the kernel may still be resolving the peer's address. A rail without retries left is
    /// dropped like one whose probe fails.
    mqp_retry_cnt: u32 = 34, "NCCL_IB_MQP_RETRY_CNT", Whole::<u32>::new(0, 1000);
    /// Wait before the first such retry, in ms; before the n-th it is n times as long. No call
    /// sleeps. All retries of a handshake, with the kernel's own waits, end after half of
    /// `MPIB_CONNECT_TIMEOUT_MS`.
    mqp_retry_sleep: Duration = Duration::from_millis(100), "NCCL_IB_MQP_RETRY_SLEEP_MSEC", Time::millis(0, 60_000),
        differs: "in all at most half of `MPIB_CONNECT_TIMEOUT_MS`";
    /// 1: retries after any error.
    mqp_retry_all: bool = false, "NCCL_IB_MQP_RETRY_ALL", Flag;
    /// 1: a connection whose rail fails carries on over its other rails, and uses the rail again
    /// when it works again; a control connection that breaks is dialled again over any network. 0: a
    /// failed rail or control connection fails the connection. Counts if both ends have 1. With
    /// `MPIB_STRICT=1` the default is 0. See [failover.md](failover.md).
    failover: bool = true, "MPIB_FAILOVER", Flag,
        alike: costs("connections between the two have no failover, which needs both ends");
    /// The same, if `MPIB_FAILOVER` is not set.
    port_failover: Option<bool> = None, "NCCL_IB_RESILIENCY_PORT_FAILOVER", Optional(Flag),
        differs: "unset is 1, with `MPIB_STRICT=1` 0; also for devices that NCCL has not fused, and for any number of failed rails";
    /// How long a connection waits for a usable rail if it has none, in seconds, and how long a
    /// control connection may be broken while no rail shows that the peer's host lives. Then the
    /// connection fails. 0: it fails at once.
    failover_wait: Duration = Duration::from_secs(60), "MPIB_FAILOVER_WAIT", Time::seconds(0, 3600),
        alike: costs("a connection without a rail ends when the shorter time is over");
    /// How long a rail may complete nothing while other rails of its connection do, in ms, or eight
    /// times as long as its completions usually take, if that is longer. Then the connection carries
    /// on without the rail. 0: until the adapter reports an error. See
    /// [rail-life.md](../internals/rail-life.md#the-watchdog).
    stall: Duration = Duration::from_millis(50), "MPIB_STALL_MS", Time::millis(0, 3_600_000);
    /// 1: an adapter's event that a queue or the adapter failed ends the connections that use it:
    /// their calls fail. 0: the event is only logged and counted. Connections with failover carry on
    /// without the rail in either case. See [stats.md](stats.md#what-adapters-report).
    return_async_events: bool = true, "NCCL_IB_RETURN_ASYNC_EVENTS", Flag,
        differs: "also events of shared receive queues, which net_ib does not use";
    /// Limit of the handshake of a connection, and of each of its steps, in ms, counted from the
    /// peer's first accept. Until then a warning is logged once per interval. Addresses of the
    /// listener that cannot be reached are retried for the same time, or for 3 s if every one
    /// refuses the connection.
    connect_timeout: Duration = Duration::from_secs(60), "MPIB_CONNECT_TIMEOUT_MS", Time::millis(1, 3_600_000);
    /// How long a peer's host may be silent on the control connection, in ms. Then the control
    /// connection is broken: without failover the connection fails, even if its rails work. The
    /// default is longer than adapters may take to give up on a peer, see
    /// [reach.md](reach.md#how-long-adapters-try).
    peer_timeout: Duration = Duration::from_secs(150), "MPIB_PEER_TIMEOUT_MS", Time::millis(1000, 3_600_000);
    /// Limit of the probe of a route, in ms. A route on which nothing answers is left earlier if there
    /// are others. See [reach.md](reach.md#choice-of-nics).
    probe_timeout: Duration = Duration::from_secs(10), "MPIB_PROBE_TIMEOUT_MS", Time::millis(1, 3_600_000);
    /// Relaxed ordering of the adapters' PCIe writes to NCCL's memory. 0: off. 1: on. 2: on if the
    /// verbs library supports it. Adapters without support ignore it.
    relaxed_ordering: u8 = 2, "NCCL_IB_PCI_RELAXED_ORDERING", Whole::<u8>::new(0, 2);
    /// What is logged of an adapter's Data Direct interface, which this plugin does not use. 0: one
    /// line at INFO. 1, 2: a warning.
    data_direct: u8 = 1, "NCCL_IB_DATA_DIRECT", Whole::<u8>::new(0, 2),
        differs: "the interface is never used";
    /// Makes received data visible to the GPU by a read on each rail in iflush. Unset: for GPU
    /// memory, if NCCL calls iflush. 1: for any memory, and NCCL always calls iflush (forceFlush).
    /// 0: iflush does nothing; one-sided traffic is flushed nevertheless. See [mpib.md](mpib.md#flush).
    flush: Option<bool> = None, "MPIB_FLUSH", Optional(Flag);
    /// Carries one-sided traffic for NCCL 2.30.7 and later: windows, ncclPutSignal, and GIN by its
    /// proxy. 0: NCCL uses its own InfiniBand code for them. The same on all ranks. See
    /// [one-sided.md](one-sided.md).
    rma: bool = true, "MPIB_RMA", Flag,
        alike: costs("one-sided traffic between the two fails: NCCL carries it by two networks");
    /// Messages of up to this many bytes go inline (`IBV_SEND_INLINE`): the processor copies the data
    /// into the work request, and the adapter does not read it from memory. For messages that are
    /// sent whole from host memory. An adapter without that much room sends none inline. Send queues
    /// grow by this many bytes per entry. See [receives.md](../internals/receives.md#data-inline).
    inline: u32 = 0, "MPIB_INLINE", Whole::<u32>::new(0, 1024);
    /// Unix socket on which the agent listens. Unset: `agent.sock` in `/run/mpib`,
    /// `$XDG_RUNTIME_DIR/mpib` or `/tmp/mpib`. See [agent.md](agent.md).
    agent_socket: Option<PathBuf> = None, "MPIB_AGENT_SOCKET", Optional(AbsolutePath::new(107));
    /// The hint file of an agent that has no memory file. Unset: `hints` in the folder of the
    /// agent's socket, else in one of the folders above.
    hints: Option<PathBuf> = None, "MPIB_HINTS", Optional(AbsolutePath::new(4095));
    /// Interval at which the hint file is read, in µs, while a connection's hint is in it.
    hint_poll_us: u32 = 1000, "MPIB_HINT_POLL_US", Whole::<u32>::new(100, 60_000_000);
    /// File in which the processes of the host share which pairs of ports did not answer. Unset:
    /// `reach` in `/run/mpib`, `$XDG_RUNTIME_DIR/mpib` or `/dev/shm/mpib-UID`. Without the folder of
    /// the path there is none. See [reach.md](reach.md#pairs-that-are-not-probed).
    reach_file: Option<PathBuf> = None, "MPIB_REACH_FILE", Optional(AbsolutePath::new(4095));
    /// 1: counts what each connection does, in a page that `mpib stats` reads. See
    /// [stats.md](stats.md).
    stats: bool = true, "MPIB_STATS", Flag;
    /// Name of the job in metrics and in `mpib stats`. Unset: the number that Slurm, PBS, LSF or Flux
    /// has for it (`SLURM_JOB_ID`, `PBS_JOBID`, `LSB_JOBID`, `FLUX_JOB_ID`), or in a Kubernetes pod the
    /// pod's name. See [stats.md](stats.md#jobs).
    job: Option<String> = None, "MPIB_JOB", Optional(Name::new(40));
    /// User id that may own the agent's socket and hint file, besides root and the process's own
    /// user.
    agent_uid: Option<u32> = None, "MPIB_AGENT_UID", Optional(Whole::<u32>::new(0, u32::MAX - 1));
}

/// Whether the variable counts as not set. NCCL treats its own empty variables so, and scripts
/// clear variables that way.
fn is_unset(variable: &str, text: &OsStr) -> bool {
    variable.starts_with("NCCL_") && text.is_empty()
}

impl Config {
    /// Reads the process environment.
    pub fn from_env() -> Result<Self> {
        Self::read(|name| std::env::var_os(name))
    }

    /// Returns the settings that differ from their defaults, for one line in the log.
    pub fn differing(&self) -> Vec<String> {
        let set = self.all().into_iter().filter(|(_, _, is_default)| !is_default);
        set.map(|(variable, value, _)| format!("{variable}={value}")).collect()
    }

    /// Returns `what`, which the user requested and does not get, for one warning.
    ///
    /// # Errors
    /// With `MPIB_STRICT=1`: the same text.
    pub(crate) fn degraded(&self, what: String) -> Result<String> {
        if self.strict { Err(Error::Usage(format!("{what} (MPIB_STRICT=1)"))) } else { Ok(what) }
    }

    /// Returns the filter of control interfaces in effect, and its variable.
    pub(crate) fn oob_filter(&self) -> Option<(&'static str, &NameFilter)> {
        let own = self.oob_if.as_ref().map(|f| ("MPIB_OOB_IF", f));
        own.or_else(|| self.socket_ifname.as_ref().map(|f| ("NCCL_SOCKET_IFNAME", f)))
    }
}

#[cfg(test)]
mod tests;
