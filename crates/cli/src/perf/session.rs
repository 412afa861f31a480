//! A worker's run after `init`: devices, connections and sizes, in the order of NCCL's calls.

use std::time::{Duration, Instant};

use super::{
    connections,
    cuda::Gpu,
    link::{Link, Message, Role, expect_message},
    measure, outage,
    pin::Pin,
    plan::Plan,
    region::Layout,
    report::{Account, Closing, Connections, SizeResult},
    worker::Trial,
};
use crate::device::Device;
use crate::failure::{Failure, Kind};
use nccl_net_host::{Handle, Listener as NetListener, Net, RecvComm, SendComm, Watch};

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
    pub(super) net: Net,
    pub(super) link: &'a mut Link,
    pub(super) watch: &'static Watch,
    pub(super) role: Role,
    pub(super) version: u32,
    pub(super) device: i32,
    pub(super) merge: Vec<i32>,
    pub(super) pin: Option<Pin>,
    pub(super) gpu: Option<&'static Gpu>,
    /// Whether the device registers DMA-BUFs.
    pub(super) dma_bufs: bool,
    pub(super) plan: Plan,
    pub(super) trial: Trial,
}

/// The comms of one end.
#[derive(Debug)]
pub(super) struct Comms {
    pub(super) send: Option<SendComm>,
    pub(super) recv: Option<RecvComm>,
}

impl Comms {
    pub(super) fn close(self) -> Result<(), Failure> {
        self.send.map_or(Ok(()), SendComm::close)?;
        self.recv.map_or(Ok(()), RecvComm::close)?;
        Ok(())
    }
}

/// A connection in the making.
struct Pending {
    /// Until connect has returned a comm.
    handle: Option<Handle>,
    /// Until accept has returned a comm.
    listener: Option<NetListener>,
    comms: Comms,
}

impl Pending {
    fn waits(&self) -> bool {
        self.handle.is_some() || self.listener.is_some()
    }

    /// Calls connect and accept once; returns whether one of them has returned a comm.
    fn poll(&mut self, net: &Net, device: i32) -> Result<bool, Failure> {
        if let Some(handle) = &mut self.handle {
            self.comms.send = net.connect(device, handle)?;
        }
        let connected = self.comms.send.is_some() && self.handle.take().is_some();
        let Some(listener) = self.listener.take() else { return Ok(connected) };
        self.comms.recv = listener.accept()?;
        if self.comms.recv.is_none() {
            self.listener = Some(listener);
            return Ok(connected);
        }
        listener.close()?;
        Ok(true)
    }
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
    /// Runs everything between `init` and `finalize`. A failure leaves all objects open: the
    /// process ends.
    pub(super) fn run(&mut self, listener: &mut dyn Listener) -> Result<(), Failure> {
        let device = self.choose_device()?;
        listener.device(&self.net.name(), &device)?;
        self.link.send(&Message::Device(device))?;
        let peer = expect_message!(self.link, Message::Device(device) => device);
        self.fits(&peer, "the other end's device")?;
        let comms = self.connect()?;
        if self.plan.connections > 0 {
            let (made, result) = connections::make(self)?;
            listener.connections(&result)?;
            if let Some(closing) = connections::close(self, made)? {
                listener.closed(closing)?;
            }
        }
        for size in self.plan.sizes.clone() {
            let result = measure::size(self, &comms, size)?;
            listener.result(&result)?;
            if let Some(fault) = &self.plan.fault
                && let Some(failure) = outage::missing(&result.stages, fault)
            {
                return Err(failure);
            }
        }
        if self.trial.accounts {
            listener.account(Account::of_this_process())?;
        }
        comms.close()
    }

    fn choose_device(&mut self) -> Result<Device, Failure> {
        let count = self.net.devices()?;
        let (option, last) = match self.merge.iter().max() {
            Some(last) => ("--merge", *last),
            None => ("--device", self.device),
        };
        if last >= count {
            let text = match count {
                ..=0 => format!("the plugin has no devices (devices returned {count})"),
                _ => format!("{option} {last}: the plugin has {count}, numbered from 0"),
            };
            return Err(Failure::new(Kind::Load, text));
        }
        if !self.merge.is_empty() {
            self.device = self.net.make_vdevice(&self.merge)?;
        }
        let properties = self.net.properties(self.device)?;
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

    /// Returns this end's directions: sends, receives.
    pub(super) fn directions(&self) -> (bool, bool) {
        (self.role == Role::A || self.plan.both_ways(), self.role == Role::B || self.plan.both_ways())
    }

    /// Makes one connection.
    pub(super) fn connect(&mut self) -> Result<Comms, Failure> {
        let patience = Patience::new(self.plan.timeout);
        let mut made = self.connect_at_once(1, patience)?;
        made.pop().ok_or_else(|| Failure::new(Kind::Peer, "no connection was made"))
    }

    /// Listens `count` times, exchanges handles, and polls each connect and accept in turn until
    /// all have returned a comm.
    pub(super) fn connect_at_once(
        &mut self,
        count: usize,
        mut patience: Patience,
    ) -> Result<Vec<Comms>, Failure> {
        let (sends, receives) = self.directions();
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut one = Pending { handle: None, listener: None, comms: Comms { send: None, recv: None } };
            if receives {
                let listener = self.net.listen(self.device)?;
                self.link.send(&Message::Handle(listener.handle().0.to_vec()))?;
                one.listener = Some(listener);
            }
            all.push(one);
        }
        for one in all.iter_mut().filter(|_| sends) {
            let bytes = expect_message!(self.link, Message::Handle(bytes) => bytes);
            let Ok(bytes) = bytes.try_into() else {
                return Err(Failure::new(Kind::Peer, "the other end sent a handle of a wrong length"));
            };
            one.handle = Some(Handle(bytes));
        }
        while all.iter().any(Pending::waits) {
            for one in all.iter_mut().filter(|one| one.waits()) {
                if one.poll(&self.net, self.device)? {
                    patience.moved();
                }
            }
            patience.idle(self.link, || {
                let count = |waits: usize, call: &str| match waits {
                    0 => String::new(),
                    1 => format!("; {call} has returned no comm"),
                    n => format!("; {call} has returned no comm for {n} connections"),
                };
                let c = count(all.iter().filter(|one| one.handle.is_some()).count(), "connect");
                let a = count(all.iter().filter(|one| one.listener.is_some()).count(), "accept");
                format!("the connection is not made{c}{a}")
            })?;
        }
        self.link.send(&Message::Connected)?;
        expect_message!(self.link, Message::Connected => ());
        Ok(all.into_iter().map(|one| one.comms).collect())
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
