//! What all parts of a worker's run use: its device, its plan, and the other worker.

use std::time::{Duration, Instant};

use super::{
    cuda::Gpu,
    link::{Link, Message, Role, expect_message},
    pin::Pin,
    plan::Plan,
    region::Layout,
    report::{Account, Closing, Connections, SizeResult},
    worker::Trial,
};
use crate::device::Device;
use crate::failure::{Failure, Kind};
use nccl_net_host::{Handle, Properties, Watch};

/// `NCCL_PTR_HOST`
const HOST: i32 = nccl_net_abi::NCCL_PTR_HOST;
/// `NCCL_PTR_CUDA`
const CUDA: i32 = nccl_net_abi::NCCL_PTR_CUDA;
/// `NCCL_PTR_DMABUF`
const DMA_BUF: i32 = nccl_net_abi::NCCL_PTR_DMABUF;
/// Requests in flight that a v6 table guarantees.
const V6_REQUESTS: usize = nccl_net_abi::NCCL_NET_MAX_REQUESTS_V6 as usize;

/// A worker's state.
pub(super) struct Session<'a> {
    pub(super) link: &'a mut Link,
    pub(super) watch: &'static Watch,
    pub(super) role: Role,
    pub(super) version: u32,
    pub(super) device: i32,
    pub(super) pin: Option<Pin>,
    pub(super) gpu: Option<&'static Gpu>,
    /// Whether the device registers DMA-BUFs.
    pub(super) dma_bufs: bool,
    pub(super) plan: Plan,
    pub(super) trial: Trial,
}

/// Receives each result as soon as the session has it.
pub(super) trait Listener {
    fn device(&mut self, net: &str, device: &Device) -> Result<(), Failure>;
    fn connections(&mut self, connections: &Connections) -> Result<(), Failure>;
    fn closed(&mut self, closing: [Closing; 2]) -> Result<(), Failure>;
    fn result(&mut self, result: &SizeResult) -> Result<(), Failure>;
    fn account(&mut self, account: Account) -> Result<(), Failure>;
}

impl Session<'_> {
    /// Checks that there are devices up to this number, which the option chose.
    pub(super) fn numbered(&self, option: &str, last: i32, count: i32) -> Result<(), Failure> {
        if last < count {
            return Ok(());
        }
        let text = match count {
            ..=0 => format!("the plugin has no devices (devices returned {count})"),
            _ => format!("{option} {last}: the plugin has {count}, numbered from 0"),
        };
        Err(Failure::new(Kind::Load, text))
    }

    /// Takes the device with these properties, if it can do what the plan needs.
    pub(super) fn take(&mut self, properties: Properties) -> Result<Device, Failure> {
        let pci_path = properties.pci_path.clone();
        let device = Device::from(properties);
        if let Some(pin) = &self.pin {
            pin.apply_to_device(&device.name, pci_path.as_deref())?;
        }
        self.supports_memory(&device)?;
        self.dma_bufs = device.ptr_support & DMA_BUF != 0;
        self.fits(&device, &format!("device {}", self.device))?;
        Ok(device)
    }

    /// Exchanges the devices with the other end, whose device must fit as well.
    pub(super) fn exchange(&mut self, device: Device) -> Result<(), Failure> {
        self.link.send(&Message::Device(device))?;
        let peer = expect_message!(self.link, Message::Device(device) => device);
        self.fits(&peer, "the other end's device")
    }

    /// Waits until both ends are connected.
    pub(super) fn connected(&mut self, patience: &Patience) -> Result<(), Failure> {
        self.link.send(&Message::Connected)?;
        patience.await_message(self.link);
        expect_message!(self.link, Message::Connected => ());
        Ok(())
    }

    /// Waits until the other end has come to the same point.
    pub(super) fn meet(&mut self, patience: &Patience) -> Result<(), Failure> {
        self.link.send(&Message::Here)?;
        patience.await_message(self.link);
        expect_message!(self.link, Message::Here => ());
        Ok(())
    }

    /// Returns the handle that the other end's `listen` wrote.
    pub(super) fn handle(&mut self, patience: &Patience) -> Result<Handle, Failure> {
        patience.await_message(self.link);
        let bytes = expect_message!(self.link, Message::Handle(bytes) => bytes);
        let wrong = |_| Failure::new(Kind::Peer, "the other end sent a handle of a wrong length");
        bytes.try_into().map(Handle).map_err(wrong)
    }

    /// Checks that this end's device can use this end's memory.
    fn supports_memory(&self, device: &Device) -> Result<(), Failure> {
        let Device { name, ptr_support, .. } = device;
        let what = match self.gpu {
            None if ptr_support & HOST == 0 => {
                format!("host memory (ptrSupport {ptr_support:#x}); --memory cuda uses a GPU's")
            }
            Some(_) if ptr_support & (CUDA | DMA_BUF) == 0 => {
                format!("memory of GPUs (ptrSupport {ptr_support:#x}); \"mpib doctor\" shows why")
            }
            Some(_) if self.plan.optional => {
                "optional receives into memory of GPUs: flushes need sizes".into()
            }
            _ => return Ok(()),
        };
        let text = format!("device {} ({name:?}) does not support {what}", self.device);
        Err(Failure::new(Kind::Usage, text))
    }

    /// Checks that a device can do what the plan needs.
    fn fits(&self, device: &Device, which: &str) -> Result<(), Failure> {
        let Device { name, max_recvs, max_bytes, .. } = device;
        let refuse = |text: String| Err(Failure::new(Kind::Usage, format!("{which} ({name:?}) {text}")));
        if usize::try_from(*max_recvs).is_ok_and(|max| self.plan.receives > max) || *max_recvs < 1 {
            return refuse(format!(
                "supports {max_recvs} receives in an irecv, but {} are requested",
                self.plan.receives
            ));
        }
        match self.plan.sizes.iter().find(|size| *size > max_bytes) {
            Some(size) => {
                refuse(format!("supports messages of at most {max_bytes} bytes, but {size} are requested"))
            }
            None => Ok(()),
        }
    }

    /// Returns this end's directions: sends, receives. With one-sided traffic: begins, serves.
    pub(super) fn directions(&self) -> (bool, bool) {
        (self.role == Role::A || self.plan.both_ways(), self.role == Role::B || self.plan.both_ways())
    }

    /// Returns the layout of a region for this size, and how many groups may be in flight.
    pub(super) fn layout(&self, size: usize) -> (Layout, usize) {
        const MOST_GROUPS: usize = 4096;
        let receives = self.plan.receives;
        let counted = self.plan.iterations.map_or(MOST_GROUPS, |n| usize::try_from(n).unwrap_or(usize::MAX));
        // Enough for one round and for the warm-up.
        let wanted = counted.div_ceil(receives).max(2 * self.plan.depth).min(MOST_GROUPS);
        let groups = (self.plan.memory / (size.max(1) * receives)).clamp(1, wanted);
        let promised = if self.version == 6 { V6_REQUESTS } else { usize::MAX };
        (Layout { size, slots: groups * receives }, self.plan.depth.min(groups).min(promised))
    }
}

/// Yields between polls, up to a limit.
pub(super) struct Patience {
    limit: Duration,
    yields: bool,
    since: Option<Instant>,
    polls: u32,
}

impl Patience {
    /// Polls between checks of the clock and of the other end.
    const STRIDE: u32 = 256;

    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, yields: true, since: None, polls: 0 }
    }

    /// Polls without a pause, as NCCL's threads do.
    pub(super) const fn spinning(limit: Duration) -> Self {
        Self { yields: false, ..Self::new(limit) }
    }

    /// Waits for a message as for the plugin: a sleep of either end would be part of a measured time.
    fn await_message(&self, link: &Link) {
        if !self.yields {
            link.spin();
        }
    }

    /// Restarts the limit after progress.
    pub(super) const fn moved(&mut self) {
        self.since = None;
        self.polls = 0;
    }

    /// Waits after a poll without progress; `state` describes the requests in flight.
    pub(super) fn idle(&mut self, link: &mut Link, state: impl Fn() -> String) -> Result<(), Failure> {
        if self.yields {
            std::thread::yield_now();
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(Self::STRIDE) {
            return Ok(());
        }
        link.check_peer(&state)?;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited < self.limit {
            return Ok(());
        }
        Err(Failure::new(Kind::Timeout, format!("nothing completed for {waited:.1?}: {}", state())))
    }
}
