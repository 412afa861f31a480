//! The table of settings: name, form, default, meaning. `docs/configuration.md` is made from it.
//!
//! Settings are environment variables, read once at init. An invalid value is an error that names
//! the variable, the value found and the values expected. An invalid value never becomes the
//! default.

mod address;
mod filter;
mod form;
mod unsupported;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

pub use address::{AddrRange, GidIndex};
pub use filter::{Family, HcaFilter, HcaName, NameFilter, RailSpeeds};
use form::{
    AbsolutePath, Flag, Form, Millis, ModeNumber, Optional, OrDefault, Parsed, Text, Whole, WholeOrAuto,
    WholeOrUnset,
};
pub use unsupported::{Finding, without_effect};

use nccl_net_mpib_agent_iface::{HINTS_PATH, SOCKET_PATH};

use crate::error::{BadSetting, Error, Result};
use crate::proto::{MAX_PLAIN_QPS, MAX_RAIL_QPS, Mode, RoutePolicy};

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+ $field:ident : $ty:ty = $default:expr, $var:literal, $form:expr
        $(, differs: $differs:literal)? $(, test: $test:literal)?;
    )*) => {
        /// The settings, read once at init and passed down. Nothing else reads the environment.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $ty,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default,)* }
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
                let mut config = Self::default();
                let mut bad = Vec::new();
                $(if let Some(text) = var($var).filter(|text| !is_unset($var, text)) {
                    match form::parse(&$form, $var, &text) {
                        Ok(value) => config.$field = value,
                        Err(e) => bad.push(e),
                    }
                })*
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

            /// Returns the settings that differ from their defaults, for one line in the log.
            pub fn differing(&self) -> Vec<String> {
                let default = Self::default();
                let mut out = Vec::new();
                $(if self.$field != default.$field {
                    out.push(format!("{}={}", $var, $form.show(&self.$field)));
                })*
                out
            }

            /// Makes the table in `docs/configuration.md`.
            pub fn manual() -> String {
                let default = Self::default();
                let mut out = String::from(form::HEAD);
                $(out += &form::row($var, &$form, &default.$field, &[$($doc),+], &[$($differs)?], &[$($test)?]);)*
                out
            }

            /// Names of all variables.
            const VARIABLES: &[&str] = &[$($var),*];
        }
    };
}

settings! {
    /// HCA (and port) of rail 0, the scale-out network. Set together with `MPIB_HCA_SUP`, NCCL sees one device
    /// with both rails; with neither set, one device per port.
    hca_sout: Option<HcaName> = None, "MPIB_HCA_SOUT", Parsed::<HcaName>::OPTIONAL,
        test: "rails_that_cannot_be_are_named_with_what_there_is";
    /// HCA (and port) of rail 1, the scale-up network.
    hca_sup: Option<HcaName> = None, "MPIB_HCA_SUP", Parsed::<HcaName>::OPTIONAL,
        test: "a_rail_that_cannot_be_used_fails_init";
    /// Who decides which of the two rails carries a transfer. 0 (vanilla): the islands, SUP within one and SOUT
    /// between two. 1 (advanced): the hint for the connection splits each transfer over both. See `docs/mpib.md`.
    mode: Mode = Mode::Vanilla, "MPIB_MODE", ModeNumber,
        test: "advanced_joins_both_rails_in_either_class";
    /// Leading bits of SOUT's IPv4 address that the hosts of one island have in common; 0: all are in one.
    island_prefix_len: u8 = 24, "MPIB_ISLAND_PREFIX_LEN", Whole::<u8>::new(0, 32),
        test: "the_prefix_length_draws_the_islands";
    /// Fixes the split over both rails in either mode, islands or not: the part of each transfer that goes on SUP, in
    /// parts per 1024. 0 is all on SOUT, 1024 all on SUP; unset: `MPIB_MODE` decides.
    sup_share: Option<u16> = None, "MPIB_SUP_SHARE", Optional(Whole::<u16>::new(0, 1024)),
        test: "fixed_shares_within_an_island_are_exact";
    /// With `MPIB_MODE=1`: a transfer between islands of at most so many bytes goes on SOUT alone, whatever the hint
    /// says. 0: off.
    bdp_threshold: u32 = 0, "MPIB_BDP_THRESHOLD", Whole::<u32>::new(0, 1 << 30),
        test: "the_threshold_keeps_small_messages_to_the_other_island_on_sout";
    /// Queue pairs of a connection on SOUT; messages take them in turn.
    sout_qp: u8 = 2, "MPIB_SOUT_QP", Whole::<u8>::new(1, MAX_RAIL_QPS),
        test: "messages_take_turns_and_cts_writes_do_not";
    /// Queue pairs of a connection on SUP.
    sup_qp: u8 = 4, "MPIB_SUP_QP", Whole::<u8>::new(1, MAX_RAIL_QPS),
        test: "messages_take_turns_and_cts_writes_do_not";
    /// 1: whatever would be lost with a warning (a rail, GPUDirect, the agent) is a failure of init or connect instead.
    strict: bool = false, "MPIB_STRICT", Flag,
        test: "a_rail_that_the_peer_cannot_use_is_an_error_where_that_is_asked_for";
    /// Which NICs of two hosts a connection may join where devices are not SOUT and SUP: those of a common subnet first
    /// (`prefer-subnet`), those alone (`subnet`), those that NCCL asked for first (`any`), those alone (`strict`). Both
    /// ends must have it alike. See `docs/reach.md`.
    route: RoutePolicy = RoutePolicy::PreferSubnet, "MPIB_ROUTE", Text::<RoutePolicy>::NEW,
        test: "strict_keeps_to_the_devices_that_were_asked_for";
    /// Which network interfaces a listener offers to its peers for the control connections. Goes before
    /// `NCCL_SOCKET_IFNAME`.
    oob_if: Option<NameFilter> = None, "MPIB_OOB_IF", Parsed::<NameFilter>::OPTIONAL,
        test: "control_connections_are_on_sout_unless_the_settings_say_otherwise";
    /// As `MPIB_OOB_IF`. With neither set, the interface that has the address of `MPIB_HCA_SOUT`; where there is none,
    /// every interface that is up, loopback and bridges last.
    socket_ifname: Option<NameFilter> = None, "NCCL_SOCKET_IFNAME", Parsed::<NameFilter>::OPTIONAL,
        differs: "the same filter; what is taken where it is not set differs",
        test: "control_connections_are_on_sout_unless_the_settings_say_otherwise";
    /// Address family of the control connections; unset: both.
    socket_family: Option<Family> = None, "NCCL_SOCKET_FAMILY", Parsed::<Family>::OPTIONAL,
        test: "networks_come_first_and_loopback_last";
    /// Which HCAs (and ports) are used where `MPIB_HCA_SOUT` and `MPIB_HCA_SUP` are not set. Behind a port may stand to which rail
    /// and plane of the network it belongs, which NCCL is told from v12 on.
    ib_hca: Option<HcaFilter> = None, "NCCL_IB_HCA", Parsed::<HcaFilter>::OPTIONAL,
        test: "hca_filters_mean_what_nccl_means";
    /// 1: adapters are in the order of their PCI addresses, those without one last, so that hosts that list them differently
    /// number them alike. 0: as the verbs library lists them.
    device_pci_order: bool = true, "NCCL_IB_DEVICE_PCI_ORDER", Flag,
        test: "devices_are_in_the_order_of_their_pci_addresses";
    /// 0: NCCL may not join several devices to one. See `docs/fused-devices.md`.
    merge_nics: bool = true, "NCCL_IB_MERGE_NICS", Flag,
        test: "nothing_is_joined_where_the_user_wants_none";
    /// What a port carries in Mb/s, for ports that carry something else than they say. It counts for what NCCL is told, and for
    /// the parts of a message on the rails of a fused device.
    rail_speed: Option<RailSpeeds> = None, "MPIB_RAIL_SPEED", Parsed::<RailSpeeds>::OPTIONAL,
        test: "four_rails_carry_by_their_speeds";
    /// Queue pairs of a connection on each rail, where devices are not SOUT and SUP. Both ends must have it alike.
    ib_qps: u8 = 1, "NCCL_IB_QPS_PER_CONNECTION", Whole::<u8>::new(1, MAX_PLAIN_QPS),
        test: "messages_take_turns_on_plain_queue_pairs";
    /// 1: each message goes on all of these queue pairs, a part on each. 0: on one of them, in turn. Both ends must have it alike. See
    /// `docs/fused-devices.md`.
    ib_split: bool = false, "NCCL_IB_SPLIT_DATA_ON_QPS", Flag,
        differs: "a message goes on at most eight queue pairs; the others take turns with these",
        test: "one_rail_of_four_queue_pairs_is_striped";
    /// For networks that choose a way for each packet: 1 sends the data of large messages without an immediate, which follows alone. 0
    /// sends both in one work request; -2 is 1 where all rails of a connection are InfiniBand, else 0.
    adaptive_routing: Option<bool> = None, "NCCL_IB_ADAPTIVE_ROUTING", OrDefault(Flag),
        test: "infiniband_rails_send_large_data_and_its_immediate_apart";
    /// Messages of more bytes are large in this sense; -2: 8192.
    ar_threshold: Option<u32> = None, "NCCL_IB_AR_THRESHOLD", OrDefault(Whole::<u32>::new(0, 1 << 30)),
        test: "infiniband_rails_send_large_data_and_its_immediate_apart";
    /// Place in the GID table: one number for every RoCE port, or a list such as `mlx5_0:3,mlx5_1:1:5` of an HCA, where wanted its
    /// port, and the place. -1, and HCAs that the list lacks: chosen for each connection, see `docs/reach.md`. InfiniBand ports
    /// that no list names use place 0.
    gid_index: GidIndex = GidIndex::Auto, "NCCL_IB_GID_INDEX", Text::<GidIndex>::NEW,
        differs: "also a list; -1 chooses with the peer, not once",
        test: "a_list_has_an_index_for_each_port";
    /// RoCE ports without a `NCCL_IB_GID_INDEX` use addresses of this family only; unset: of both.
    addr_family: Option<Family> = None, "NCCL_IB_ADDR_FAMILY", Parsed::<Family>::OPTIONAL,
        differs: "unset is both, not AF_INET",
        test: "all_three_settings_together";
    /// RoCE ports without a `NCCL_IB_GID_INDEX` use addresses in this range only.
    addr_range: Option<AddrRange> = None, "NCCL_IB_ADDR_RANGE", Parsed::<AddrRange>::OPTIONAL,
        differs: "a port with no address in it is left out; there it uses entry 0",
        test: "a_range_may_leave_the_second_address";
    /// RoCE ports without a `NCCL_IB_GID_INDEX` speak this version of RoCE only; unset: 2 where both ends have it, else 1.
    roce_version: Option<u8> = None, "NCCL_IB_ROCE_VERSION_NUM", Optional(Whole::<u8>::new(1, 2)),
        differs: "unset is both, not 2",
        test: "a_version_is_kept_to";
    /// Acknowledge timeout of queue pairs: 4.096 µs times 2 to this power.
    timeout: u8 = 20, "NCCL_IB_TIMEOUT", Whole::<u8>::new(1, 31),
        differs: "0 (without end) is refused",
        test: "timeouts_and_retries_reach_every_queue_pair";
    /// How often an unacknowledged packet is sent again.
    retry_cnt: u8 = 7, "NCCL_IB_RETRY_CNT", Whole::<u8>::new(0, 7),
        test: "timeouts_and_retries_reach_every_queue_pair";
    /// Index into each port's P_Key table, where `NCCL_IB_PKEY_VALUE` is -1.
    pkey_index: u16 = 0, "NCCL_IB_PKEY", Whole::<u16>::new(0, 65535),
        test: "a_pkey_index_that_the_port_lacks_is_an_error_of_connect";
    /// Partition by its number: the first entry of each port's P_Key table with these low 15 bits. -1: `NCCL_IB_PKEY`.
    pkey_value: Option<u16> = None, "NCCL_IB_PKEY_VALUE", WholeOrAuto::<u16>::new(0, 65535),
        test: "a_partition_is_found_by_its_number_wherever_it_stands";
    /// InfiniBand service level; -1: the communicator's traffic class, else at a receiver the sender's level, else 0.
    sl: Option<u8> = None, "NCCL_IB_SL", WholeOrAuto::<u8>::new(0, 15),
        differs: "a traffic class above 15 is no service level: 0; a receiver's own setting counts, there the sender's",
        test: "classes_are_the_settings_then_the_communicators";
    /// RoCE traffic class; -1: the communicator's, else at a receiver the sender's, else 0.
    tc: Option<u8> = None, "NCCL_IB_TC", WholeOrAuto::<u8>::new(0, 255),
        differs: "a receiver's own setting counts, there the sender's",
        test: "classes_are_the_settings_then_the_communicators";
    /// RoCE traffic class of the receiver's first queue pair on each rail, which its CTS writes go on, beside the
    /// acknowledgements of that queue pair's data; -1: that of the others.
    fifo_tc: Option<u8> = None, "NCCL_IB_FIFO_TC", WholeOrAuto::<u8>::new(0, 255),
        test: "cts_writes_have_a_class_of_their_own";
    /// 1: CTS writes of single receives carry their entry in themselves (`IBV_SEND_INLINE`); an adapter that has no room for that is told. 0: the adapter
    /// reads it from memory, and queue pairs are made without such room. Unset: 1 where the adapter has room. See `docs/receives.md`.
    use_inline: Option<bool> = None, "NCCL_IB_USE_INLINE", Optional(Flag),
        differs: "unset is 1 where the adapter has room, there 0; groups of several receives are never inline",
        test: "cts_writes_are_inline_as_the_settings_say";
    /// 1: enhanced connection establishment, where both ends' adapters and verbs libraries have it: queue pairs then use what their vendor
    /// adds to the specification, such as its congestion control.
    ece: bool = true, "NCCL_IB_ECE_ENABLE", Flag,
        test: "options_that_both_ends_have_hold_on_every_queue_pair";
    /// How often a change of a queue pair that failed with ETIMEDOUT is tried again, while connect and accept are polled: the kernel
    /// may just be looking for the peer's address. A rail whose tries are used up is left out, as one whose probe fails.
    mqp_retry_cnt: u32 = 34, "NCCL_IB_MQP_RETRY_CNT", Whole::<u32>::new(0, 1000),
        test: "a_queue_pair_that_times_out_is_tried_again";
    /// The wait before the first such try, in ms; before the n-th it is n times as long. No call sleeps meanwhile. All tries of
    /// a handshake together, with the kernel's own waits, take no longer than half of `MPIB_CONNECT_TIMEOUT_MS`.
    mqp_retry_sleep: Duration = Duration::from_millis(100), "NCCL_IB_MQP_RETRY_SLEEP_MSEC", Millis::new(0, 60_000),
        differs: "all together bounded by half of `MPIB_CONNECT_TIMEOUT_MS`",
        test: "a_rail_that_stays_dead_is_left_out_in_time";
    /// 1: tried again after any error.
    mqp_retry_all: bool = false, "NCCL_IB_MQP_RETRY_ALL", Flag,
        test: "a_queue_pair_that_fails_otherwise_is_tried_again_where_that_is_asked_for";
    /// 1: an adapter's report that a queue or the adapter itself failed ends the connections that it concerns: their calls fail. 0:
    /// it is told and counted only. See `docs/stats.md`.
    return_async_events: bool = true, "NCCL_IB_RETURN_ASYNC_EVENTS", Flag,
        differs: "also of shared receive queues, which are not used there",
        test: "a_fatal_event_ends_the_connections_that_it_concerns_and_no_others";
    /// How long the handshake of a connection may take, in ms, and each of its steps, from when the peer's NCCL calls accept; before, a
    /// line in the log tells each time that so long has passed. So long, too, are the listener's addresses tried
    /// again where they cannot be reached; where each of them refuses connections, 3 s.
    connect_timeout: Duration = Duration::from_secs(60), "MPIB_CONNECT_TIMEOUT_MS", Millis::new(1, 3_600_000),
        test: "addresses_that_nothing_answers_at_fail_by_the_deadline";
    /// How long nothing may be heard of a peer's host on the control connection, in ms, before the peer counts as gone and the connection
    /// fails, whatever its rails do. Adapters themselves give a peer up after some 35 s (`NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT`).
    peer_timeout: Duration = Duration::from_secs(60), "MPIB_PEER_TIMEOUT_MS", Millis::new(1000, 3_600_000),
        test: "a_host_that_is_silent_for_so_long_is_gone";
    /// How long the probe of a route may take, in ms; routes are probed up to eight at a time.
    probe_timeout: Duration = Duration::from_secs(10), "MPIB_PROBE_TIMEOUT_MS", Millis::new(1, 3_600_000),
        test: "a_probe_waits_as_long_as_the_settings_say";
    /// Relaxed ordering of the adapters' writes to NCCL's memory on PCIe. 0: off; 1: on; 2: on where the verbs library
    /// can ask for it. Adapters that do not know it ignore it.
    relaxed_ordering: u8 = 2, "NCCL_IB_PCI_RELAXED_ORDERING", Whole::<u8>::new(0, 2),
        test: "relaxed_ordering_follows_the_setting";
    /// iflush reads back some of what came, on each rail, so that all of it is visible to the GPU when the read is done. Unset: where NCCL
    /// asks for that of GPU memory. 1: of any memory, and NCCL is told to ask always (forceFlush). 0: iflush does nothing. See
    /// `docs/mpib.md`.
    flush: Option<bool> = None, "MPIB_FLUSH", Optional(Flag),
        test: "a_flush_reads_once_on_each_rail_that_has_carried_data";
    /// Receives posted on a rail fall to this number before they are refilled.
    srq_low: u32 = 64, "MPIB_SRQ_LOW", Whole::<u32>::new(1, 32767),
        test: "receive_queues_may_be_as_small_and_as_large_as_the_manual_says";
    /// Receives on a rail are refilled to this number.
    srq_high: u32 = 512, "MPIB_SRQ_HIGH", Whole::<u32>::new(2, 32768),
        test: "receive_queues_may_be_as_small_and_as_large_as_the_manual_says";
    /// Each n-th CTS write asks for a completion.
    cts_signal_interval: u32 = 128, "MPIB_CTS_SIGNAL_INTERVAL", Whole::<u32>::new(1, 256),
        test: "a_cts_write_asks_for_a_completion_now_and_then";
    /// Unix socket on which the agent listens.
    agent_socket: PathBuf = SOCKET_PATH.into(), "MPIB_AGENT_SOCKET", AbsolutePath::new(107),
        test: "hints_move_data_between_the_rails";
    /// The agent's hint file.
    hints: PathBuf = HINTS_PATH.into(), "MPIB_HINTS", AbsolutePath::new(4095),
        test: "hints_move_data_between_the_rails";
    /// How often the hint file is read, in µs.
    hint_poll_us: u32 = 1000, "MPIB_HINT_POLL_US", Whole::<u32>::new(100, 60_000_000),
        test: "hints_are_read_as_seldom_as_the_settings_say";
    /// 1: what each connection does is counted in a page that `mpib stats` shows. See
    /// `docs/stats.md`.
    stats: bool = true, "MPIB_STATS", Flag,
        test: "no_page_where_the_settings_want_none";
    /// User id to whom the agent's socket and hint file may belong, besides root and the user of
    /// the process itself.
    agent_uid: Option<u32> = None, "MPIB_AGENT_UID", WholeOrUnset::<u32>::new(0, u32::MAX - 1),
        test: "socket_and_file_of_a_stranger_are_not_used_unless_the_settings_name_him";
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

    /// Returns `what`, which the user requested and does not get, for one warning.
    ///
    /// # Errors
    /// With `MPIB_STRICT=1`: the same text.
    pub fn degraded(&self, what: String) -> Result<String> {
        if self.strict { Err(Error::Usage(format!("{what} (MPIB_STRICT=1)"))) } else { Ok(what) }
    }

    /// Returns the filter of control interfaces in effect, and its variable.
    pub fn oob_filter(&self) -> Option<(&'static str, &NameFilter)> {
        let own = self.oob_if.as_ref().map(|f| ("MPIB_OOB_IF", f));
        own.or_else(|| self.socket_ifname.as_ref().map(|f| ("NCCL_SOCKET_IFNAME", f)))
    }

    /// Lists settings that are valid alone but contradict each other.
    fn contradictions(&self) -> Vec<BadSetting> {
        let mut bad = Vec::new();
        let mut both =
            |variable, found: String, expected: String| bad.push(BadSetting { variable, found, expected });
        match (&self.hca_sout, &self.hca_sup) {
            (Some(sout), None) => both(
                "MPIB_HCA_SUP",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SOUT={sout}: set both or neither"),
            ),
            (None, Some(sup)) => both(
                "MPIB_HCA_SOUT",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SUP={sup}: set both or neither"),
            ),
            (Some(sout), Some(sup)) if sout.same_port(sup) => {
                both(
                    "MPIB_HCA_SUP",
                    format!("{:?}", sup.to_string()),
                    format!("another HCA or port than MPIB_HCA_SOUT={sout}"),
                );
            }
            _ => {}
        }
        if let (Some(family), Some(range)) = (self.addr_family, &self.addr_range)
            && family != range.family()
        {
            both(
                "NCCL_IB_ADDR_RANGE",
                format!("{:?}", range.to_string()),
                format!("a range of NCCL_IB_ADDR_FAMILY={family}"),
            );
        }
        if self.srq_low >= self.srq_high {
            both(
                "MPIB_SRQ_LOW",
                format!("\"{}\"", self.srq_low),
                format!("less than MPIB_SRQ_HIGH={}", self.srq_high),
            );
        }
        bad
    }
}

#[cfg(test)]
mod tests;
