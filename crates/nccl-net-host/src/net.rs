//! A table in use: `init`, devices, listeners and connections.

use std::{
    ffi::{c_int, c_void},
    ptr::{NonNull, from_mut, null_mut},
    sync::Arc,
};

use nccl_net_abi::{NCCL_NET_HANDLE_MAXSIZE, v9, v10, v11, v12};

use crate::{
    Call, Comm, Error, Properties, Raw, RecvComm, SendComm, Settings, Table,
    error::{Result, check},
    raw::Ptr,
};

/// `NCCL_NET_HANDLE_MAXSIZE`
pub const HANDLE_BYTES: usize = NCCL_NET_HANDLE_MAXSIZE;

/// The bytes that `listen` writes and the peer's `connect` reads. A plugin may keep its state in
/// them between two calls of `connect`. Aligned as memory from malloc is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Handle(pub [u8; HANDLE_BYTES]);

impl Default for Handle {
    fn default() -> Self {
        Self([0; HANDLE_BYTES])
    }
}

/// A table after `init`, as NCCL holds it for one communicator.
///
/// Dropping a `Net` does not call [`finalize`](Self::finalize): after a failed call, a plugin may
/// not be in a state to do that.
#[derive(Debug)]
pub struct Net {
    raw: Raw,
    ctx: *mut c_void,
    settings: Settings,
    /// Every listener and comm has a clone.
    open: Arc<()>,
}

// SAFETY: NCCL itself uses a plugin's context from other threads than the one that called `init`.
unsafe impl Send for Net {}
// SAFETY: as above; NCCL's threads make connections at the same time.
unsafe impl Sync for Net {}

/// A comm that waits for connections.
#[derive(Debug)]
pub struct Listener {
    raw: Raw,
    ptr: NonNull<c_void>,
    handle: Handle,
    settings: Settings,
    open: Arc<()>,
}

// SAFETY: NCCL itself passes comms between its threads.
unsafe impl Send for Listener {}

impl Net {
    /// Calls `init`.
    pub fn init(table: Table, settings: &Settings) -> Result<Self> {
        let mut config = settings.traffic_class.map(|class| v11::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(null_mut(), from_mut);
        let raw = Raw::new(table);
        let mut ctx = null_mut();
        let Settings { comm_id, logger, profiler, .. } = *settings;
        check(Call::Init, raw.init(&raw mut ctx, comm_id, config, logger, profiler))?;
        Ok(Self { raw, ctx, settings: *settings, open: Arc::default() })
    }

    /// Uses a table whose `init` somebody else called, for example NCCL's core.
    ///
    /// # Safety
    /// `init` of this table succeeded and gave `ctx`; NULL before v11.
    pub unsafe fn adopt(table: Table, ctx: *mut c_void, settings: &Settings) -> Self {
        Self { raw: Raw::new(table), ctx, settings: *settings, open: Arc::default() }
    }

    /// Returns the table.
    pub const fn table(&self) -> Table {
        self.raw.table()
    }

    /// Returns the context that `init` gave; NULL before v11. For calls of [`Raw`].
    pub const fn context(&self) -> Ptr {
        self.ctx
    }

    /// Returns the table's name, or "(NULL)".
    pub fn name(&self) -> String {
        self.table().name().unwrap_or_else(|| "(NULL)".into())
    }

    /// Returns the number of devices.
    pub fn devices(&self) -> Result<c_int> {
        let mut count = 0;
        check(Call::Devices, self.raw.devices(&raw mut count))?;
        Ok(count)
    }

    /// Returns a device's properties. A device without a name is an error.
    pub fn properties(&self, dev: c_int) -> Result<Properties> {
        let (code, properties) = self.raw.properties(dev);
        check(Call::GetProperties, code)?;
        properties
            .filter(|properties| properties.name.is_some())
            .ok_or(Error::Null { call: Call::GetProperties, what: "name" })
    }

    /// Makes one device of several, and returns its index.
    pub fn make_vdevice(&self, devices: &[c_int]) -> Result<c_int> {
        match self.table().version() {
            ..=8 => Err(Error::Unsupported(format!(
                "v{} has no makeVDevice; use a table of v9 or later",
                self.table().version()
            ))),
            9..=11 => {
                let mut props = v9::VDeviceProps { ndevs: 0, devs: Default::default() };
                self.fill(devices, &mut props.ndevs, &mut props.devs)?;
                self.make(from_mut(&mut props).cast())
            }
            _ => {
                let mut props = v12::VDeviceProps { ndevs: 0, devs: Default::default() };
                self.fill(devices, &mut props.ndevs, &mut props.devs)?;
                self.make(from_mut(&mut props).cast())
            }
        }
    }

    fn fill(&self, devices: &[c_int], count: &mut c_int, places: &mut [c_int]) -> Result<()> {
        if devices.len() > places.len() {
            return Err(Error::Unsupported(format!(
                "{} devices cannot be merged: v{} takes at most {}",
                devices.len(),
                self.table().version(),
                places.len()
            )));
        }
        places[..devices.len()].copy_from_slice(devices);
        *count = devices.len() as c_int;
        Ok(())
    }

    fn make(&self, props: Ptr) -> Result<c_int> {
        let mut dev = -1;
        check(Call::MakeVDevice, self.raw.make_vdevice(&raw mut dev, props))?;
        Ok(dev)
    }

    /// Calls `listen`.
    pub fn listen(&self, dev: c_int) -> Result<Listener> {
        let mut handle = Handle::default();
        let mut comm = null_mut();
        let code = self.raw.listen(self.ctx, dev, handle.0.as_mut_ptr().cast(), &raw mut comm);
        check(Call::Listen, code)?;
        let ptr = NonNull::new(comm).ok_or(Error::Null { call: Call::Listen, what: "listenComm" })?;
        let (settings, open) = (self.settings, Arc::clone(&self.open));
        Ok(Listener { raw: self.raw, ptr, handle, settings, open })
    }

    /// Calls `connect` with a copy of a listener's handle. `None`: not yet; call again with the
    /// same handle.
    pub fn connect(&self, dev: c_int, handle: &mut Handle) -> Result<Option<SendComm>> {
        let class = self.settings.traffic_class;
        let mut config = class.map(|class| v10::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(null_mut(), from_mut);
        let handle = handle.0.as_mut_ptr().cast();
        let (mut comm, mut device) = (null_mut(), null_mut());
        let code = self.raw.connect(self.ctx, dev, config, handle, &raw mut comm, &raw mut device);
        check(Call::Connect, code)?;
        Ok(Comm::new(self.raw, comm, &self.settings, &self.open))
    }

    /// Calls `setNetAttr`, which tables have from v11 on. `false`: there is no such function.
    pub fn set_net_attr(&self, attr: &mut v11::NetAttr) -> Result<bool> {
        match self.raw.set_net_attr(self.ctx, attr) {
            crate::Code::NoFunction => Ok(false),
            code => check(Call::SetNetAttr, code).map(|()| true),
        }
    }

    /// Calls `finalize`, which tables have from v11 on; nothing happens before v11. All listeners
    /// and comms must be closed.
    pub fn finalize(self) -> Result<()> {
        if Arc::strong_count(&self.open) > 1 {
            return Err(Error::Misuse("finalize while listeners or comms are open; close them first"));
        }
        match self.table().version() {
            ..=10 => Ok(()),
            _ => check(Call::Finalize, self.raw.finalize(self.ctx)),
        }
    }
}

impl Listener {
    /// Returns the handle that the peer connects with.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the pointer that `listen` gave. For calls of [`Raw`].
    pub const fn as_ptr(&self) -> Ptr {
        self.ptr.as_ptr()
    }

    /// Calls `accept`. `None`: not yet; call again.
    pub fn accept(&self) -> Result<Option<RecvComm>> {
        let (mut comm, mut device) = (null_mut(), null_mut());
        let code = self.raw.accept(self.ptr.as_ptr(), &raw mut comm, &raw mut device);
        check(Call::Accept, code)?;
        Ok(Comm::new(self.raw, comm, &self.settings, &self.open))
    }

    /// Calls `closeListen`.
    pub fn close(self) -> Result<()> {
        check(Call::CloseListen, self.raw.close_listen(self.ptr.as_ptr()))
    }
}
