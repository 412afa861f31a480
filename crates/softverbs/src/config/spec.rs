//! The description of one device.

use std::net::IpAddr;

use super::{Order, Quirks, VerbTime, check, parse};
use crate::error::Error;
use crate::limits::{MAX_INLINE, MAX_MSG, MAX_QP_WR, MAX_SRQ_WR};

/// The default subnet prefix of InfiniBand.
pub(super) const DEFAULT_SUBNET: u64 = 0xfe80 << 48;

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet: the port speaks RoCE and has IP addresses.
    Ethernet,
    /// InfiniBand: the port has a LID.
    InfiniBand,
}

/// A capability that nearly every adapter has. [`DeviceSpec::without`] removes it from a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// The InfiniBand transport. A device without it reports `IBV_TRANSPORT_IWARP`.
    IbTransport,
    /// A known link layer. A port without it reports `IBV_LINK_LAYER_UNSPECIFIED`.
    LinkLayer,
    /// Shared receive queues. Without them `max_srq` is 0 and `ibv_create_srq` fails.
    Srq,
    /// The calls for shared receive queues. Without them `ibv_create_srq` fails although `max_srq` is
    /// not 0, as with a kernel driver that is newer than its library.
    SrqCalls,
    /// A valid MTU. A port without it reports an `active_mtu` of 0.
    ActiveMtu,
    /// Retries while the link is down. Without them work requests wait until it is up, as those of the
    /// kernel's rxe may (rxe_req.c): with too many packets at the network interface a queue pair retries
    /// nothing, and an interface that is down may keep them.
    Retries,
}

/// The description of a device and its first port, or of a further port.
///
/// What belongs to the whole device is equal in all its ports.
///
/// Start from [`roce`](Self::roce), [`infiniband`](Self::infiniband) or
/// [`parse_list`](Self::parse_list), change fields, and pass the list to
/// [`configure`](crate::configure), which validates it.
///
/// ```
/// use softverbs::DeviceSpec;
///
/// let mut slow = DeviceSpec::roce("mlx5_0", &[([10, 0, 0, 1].into(), 24)]);
/// slow.rate = Some(12_500_000_000); // 100 Gb/s
/// slow.latency_ns = 2_000;
///
/// let text = "mlx5_0:addr=10.0.0.1/24,rate=100Gb,latency=2us";
/// assert_eq!(DeviceSpec::parse_list(text).unwrap(), [slow]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSpec {
    /// Device name: 1 to 63 letters, digits, `_`, `-` or `.`. A further port of a device has the name
    /// `NAME/PORT`, and follows the port before it.
    pub name: String,
    /// IP addresses of the port with their prefix lengths: 1 to [`MAX_ADDRS`](crate::MAX_ADDRS) for
    /// Ethernet, none for InfiniBand.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Base LID of the port, 1 to 0xBFFF and a multiple of 2 to the power of `lmc`. Only InfiniBand
    /// has one; `None` derives it from the name.
    pub lid: Option<u16>,
    /// LID mask control of an InfiniBand port, 0 to 7: the port has 2 to this power LIDs.
    pub lmc: u8,
    /// Prefix of the subnet of an InfiniBand port. A LID is valid in its own subnet only.
    pub subnet: u64,
    /// FLID of an InfiniBand port, 1 to 0xBFFF: entry 1 of the GID table carries it, and the routers
    /// between the subnets of a wire forward packets to it. `None`: no router forwards to the port.
    pub flid: Option<u16>,
    /// Whether an InfiniBand port requires a GRH in every packet (`IBV_QPF_GRH_REQUIRED`), as a
    /// virtual port that shares its LID does.
    pub grh_required: bool,
    /// Whether packets of the port to itself arrive. They do not on some virtual functions.
    pub loopback: bool,
    /// Rate in bytes per second, for each direction; `None` is unlimited.
    pub rate: Option<u64>,
    /// One-way latency in nanoseconds, at most 10 s.
    pub latency_ns: u64,
    /// How much later than its time the completion of a receive becomes visible, in nanoseconds, at
    /// most 10 s. The sender's completion is not delayed.
    pub cqe_delay_ns: u64,
    /// Active MTU of the port in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Largest path MTU of the network behind the port in bytes, as for `mtu`. Longer packets are
    /// dropped. `None` means `mtu`.
    pub path_mtu: Option<u32>,
    /// The cable or switch of the port. Ports on different wires cannot reach each other, even if
    /// their addresses are in one subnet.
    pub wire: u32,
    /// P_Key table of the port, 1 to 16 entries.
    pub pkeys: Vec<u16>,
    /// Options for enhanced connection establishment (ECE) that the device supports, as bits. With
    /// `None`, `ibv_query_ece` and `ibv_set_ece` fail with EOPNOTSUPP.
    pub ece: Option<u32>,
    /// Whether `ibv_reg_dmabuf_mr` is supported. It accepts any file that can be mapped. It cannot
    /// reach GPU memory.
    pub dmabuf: bool,
    /// How much later than its completion the data of a WRITE lands in a DMA-BUF, in nanoseconds, at
    /// most 10 s. A READ of a DMA-BUF through the device waits until none is on its way.
    pub posted_ns: u64,
    /// When and in which order the data of WRITEs lands in the memory of the device's process. `None`: as
    /// `SOFTVERBS_ORDER` says, and `Strict` without it.
    pub order: Option<Order>,
    /// GUID of the system image (`sys_image_guid`), which the functions of one card share. `None`:
    /// the device's own GUID.
    pub system: Option<u64>,
    /// Directory that represents the device in sysfs (`ibdev_path`), at most 255 bytes. The caller
    /// creates it. With `None`, the path does not exist.
    pub sysfs: Option<String>,
    /// Whether the hardware counters of the port are files, `ports/1/hw_counters/*` below
    /// `ibdev_path`. That is the directory of `sysfs`, or else one that softverbs makes in the folder
    /// of the fabric.
    pub hw_counters: bool,
    /// Capabilities that the device does not have.
    pub without: Vec<Capability>,
    /// Where the device differs from the verbs specification. `None`: as `SOFTVERBS_QUIRKS` says, and
    /// nowhere without it.
    pub quirks: Option<Quirks>,
    /// Largest `max_inline_data` of a queue pair in bytes, at most 1024.
    pub max_inline_data: u32,
    /// Most work requests in one queue of a queue pair, 1 to 16384.
    pub max_qp_wr: u32,
    /// Most work requests in one shared receive queue, 1 to 65536.
    pub max_srq_wr: u32,
    /// Largest message of the port in bytes (`max_msg_sz`), at most 2 GiB.
    pub max_msg: u32,
    /// How long calls take.
    pub verb_time: VerbTime,
}

impl DeviceSpec {
    /// Describes a RoCE device with an MTU of 4096, unlimited rate and no latency.
    pub fn roce(name: &str, addrs: &[(IpAddr, u8)]) -> Self {
        Self {
            name: name.to_owned(),
            addrs: addrs.to_vec(),
            link_layer: LinkLayer::Ethernet,
            lid: None,
            lmc: 0,
            subnet: DEFAULT_SUBNET,
            flid: None,
            grh_required: false,
            loopback: true,
            rate: None,
            latency_ns: 0,
            cqe_delay_ns: 0,
            mtu: 4096,
            path_mtu: None,
            wire: 0,
            // Full member of the default partition.
            pkeys: vec![0xffff],
            ece: None,
            dmabuf: false,
            posted_ns: 0,
            order: None,
            system: None,
            sysfs: None,
            hw_counters: false,
            without: Vec::new(),
            quirks: None,
            max_inline_data: MAX_INLINE,
            max_qp_wr: MAX_QP_WR,
            max_srq_wr: MAX_SRQ_WR,
            max_msg: MAX_MSG,
            verb_time: VerbTime::default(),
        }
    }

    /// Describes an InfiniBand device with the defaults of [`roce`](Self::roce). Its LID is derived
    /// from the name.
    pub fn infiniband(name: &str) -> Self {
        Self { link_layer: LinkLayer::InfiniBand, ..Self::roce(name, &[]) }
    }

    /// Returns the number of the port; 1 if the name has none.
    pub(crate) fn port(&self) -> u8 {
        let number = self.name.split_once('/').and_then(|(_, number)| number.parse().ok());
        number.unwrap_or(1)
    }

    /// Returns the name of the device.
    pub(crate) fn device(&self) -> &str {
        self.name.split_once('/').map_or(&self.name, |(device, _)| device)
    }

    /// Returns whether the device has a capability.
    pub fn has(&self, capability: Capability) -> bool {
        !self.without.contains(&capability)
    }

    /// Parses and validates a list in the format of `SOFTVERBS_DEVICES`.
    ///
    /// # Errors
    /// The text is malformed, or [`configure`](crate::configure) would reject the list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, Error> {
        let devices = parse::list(text)?;
        check::list(&devices)?;
        Ok(devices)
    }
}
