//! A plugin without a network. It records its calls and returns what a test requested.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nccl_net_versions::*;

/// An unusual result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Fail(Failure),
    Panic,
    /// `connect`, `accept`, `isend`, `irecv`, `iflush` and `test` return "call again".
    NotNow,
}

/// The calls of one fake, and the results that a test requested.
#[derive(Debug)]
pub struct Record {
    calls: Mutex<Vec<String>>,
    acts: Mutex<BTreeMap<&'static str, Act>>,
    next: AtomicU32,
    pub properties: Mutex<Properties>,
    pub sizes: Mutex<Vec<usize>>,
    pub init: Mutex<Option<Init>>,
    /// Number of loggers received.
    pub loggers: AtomicU32,
    pub profiler: Mutex<ProfilerHandle>,
    pub refusals: Mutex<Vec<(&'static str, Refusal)>>,
    pub panics: Mutex<Vec<&'static str>>,
    /// Contexts to finalize at the end of a test.
    pub contexts: Mutex<Vec<AtomicPtr<c_void>>>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the record of the fake `id`.
pub fn record(id: u32) -> &'static Record {
    static RECORDS: Mutex<BTreeMap<u32, &'static Record>> = Mutex::new(BTreeMap::new());
    lock(&RECORDS).entry(id).or_insert_with(|| {
        Box::leak(Box::new(Record {
            calls: Mutex::default(),
            acts: Mutex::default(),
            next: AtomicU32::new(1),
            properties: Mutex::new(properties()),
            sizes: Mutex::default(),
            init: Mutex::default(),
            loggers: AtomicU32::new(0),
            profiler: Mutex::default(),
            refusals: Mutex::default(),
            panics: Mutex::default(),
            contexts: Mutex::default(),
        }))
    })
}

/// Returns properties in which every field has a different value, none of them 0.
pub fn properties() -> Properties {
    Properties {
        name: c"fake0",
        pci_path: Some(c"/sys/devices/fake0"),
        guid: 0x1122_3344_5566_7788,
        ptr_support: 7,
        reg_is_global: true,
        force_flush: true,
        speed: 400_000,
        port: 3,
        latency: 1.5,
        max_comms: 1024,
        max_recvs: 5,
        device_type: 1,
        device_version: 9,
        vdevs: VDevs::default(),
        max_p2p_bytes: 4096,
        max_coll_bytes: 8192,
        max_multi_request_size: 11,
        rail_id: 12,
        plane_id: 13,
    }
}

impl Record {
    /// Returns all calls.
    pub fn calls(&self) -> Vec<String> {
        lock(&self.calls).clone()
    }

    /// Returns the calls whose first word is `name`.
    pub fn calls_of(&self, name: &str) -> Vec<String> {
        self.calls().into_iter().filter(|c| c.split(' ').next() == Some(name)).collect()
    }

    /// Sets the result of `call` from now on.
    pub fn act(&self, call: &'static str, act: Act) {
        lock(&self.acts).insert(call, act);
    }

    /// Restores the usual result of `call`.
    pub fn normal(&self, call: &'static str) {
        lock(&self.acts).remove(call);
    }

    /// Returns the last refusal with its call.
    pub fn refusal(&self) -> Option<(&'static str, Refusal)> {
        lock(&self.refusals).last().copied()
    }

    /// Records a call and returns its number, with `false` for "call again".
    pub fn enter(&self, call: &'static str, args: String) -> Result<(u32, bool), Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.calls).push(format!("{call} {args}"));
        let act = lock(&self.acts).get(call).copied();
        match act {
            None => Ok((number, true)),
            Some(Act::NotNow) => Ok((number, false)),
            Some(Act::Fail(failure)) => Err(failure),
            Some(Act::Panic) => panic!("requested by the test"),
        }
    }
}

/// The plugin, with its optional slots if `FULL`.
#[derive(Debug)]
pub struct Fake<const ID: u32, const FULL: bool = true>;

/// The type of every handle: the number of the call that created it.
#[derive(Debug)]
pub struct Thing(pub u32);

/// A comm and its requests.
#[derive(Debug)]
pub struct Comm {
    number: u32,
    requests: RequestPool<Thing>,
}

impl Comm {
    fn new(number: u32) -> Self {
        Self { number, requests: RequestPool::new(64, |_| Thing(number)) }
    }
}

fn mr(mr: Option<&Thing>) -> String {
    mr.map_or("-".to_owned(), |mr| mr.0.to_string())
}

impl<const ID: u32, const FULL: bool> Plugin for Fake<ID, FULL> {
    const NAME: &'static CStr = c"Fake";

    fn on_panic(call: &'static str) {
        lock(&record(ID).panics).push(call);
        if lock(&record(ID).acts).contains_key("on_panic") {
            panic!("requested by the test");
        }
    }

    fn on_refused(call: &'static str, why: &Refusal) {
        lock(&record(ID).refusals).push((call, *why));
    }

    fn logger(_: Logger) {
        record(ID).loggers.fetch_add(1, Ordering::Relaxed);
    }
}

impl<const ID: u32, const FULL: bool> NetPlugin for Fake<ID, FULL> {
    const VDEVICES: bool = FULL;
    const DMABUF: bool = FULL;
    const NET_ATTR: bool = FULL;

    type Context = Thing;
    type Listen = Thing;
    type Send = Comm;
    type Recv = Comm;
    type Mr = Thing;
    type Request = Pooled<Thing>;

    fn init(args: &Init) -> Result<Thing, Failure> {
        *lock(&record(ID).init) = Some(*args);
        let class = args.config.traffic_class;
        let args = format!("v{} id={} class={class:?}", args.version, args.comm_id);
        Ok(Thing(record(ID).enter("init", args)?.0))
    }

    fn finalize(ctx: Thing) -> Result<(), Failure> {
        record(ID).enter("finalize", format!("ctx={}", ctx.0)).map(drop)
    }

    fn devices() -> Result<usize, Failure> {
        record(ID).enter("devices", String::new()).map(|_| 2)
    }

    fn properties(dev: usize) -> Result<Properties, Failure> {
        record(ID).enter("properties", format!("dev={dev}"))?;
        if dev < 2 { Ok(*lock(&record(ID).properties)) } else { Err(Failure::InvalidArgument) }
    }

    fn make_vdevice(devs: &VDevs) -> Result<usize, Failure> {
        record(ID).enter("make_vdevice", format!("{:?}", devs.as_slice())).map(|_| 2)
    }

    fn set_net_attr(ctx: &Thing, attr: &NetAttr) -> Result<(), Failure> {
        record(ID).enter("set_net_attr", format!("ctx={} {attr:?}", ctx.0)).map(drop)
    }

    fn listen(ctx: &Thing, dev: usize, handle: &mut HandleBuf) -> Result<Thing, Failure> {
        let dirt = handle.iter().filter(|&&b| b != 0).count();
        handle[0] = 0xA5;
        let (number, _) = record(ID).enter("listen", format!("ctx={} dev={dev} dirt={dirt}", ctx.0))?;
        if dev < 2 { Ok(Thing(number)) } else { Err(Failure::InvalidArgument) }
    }

    fn connect(
        ctx: &Thing,
        dev: usize,
        config: &CommConfig,
        handle: &mut HandleBuf,
    ) -> Result<Option<Comm>, Failure> {
        // The handle keeps the state between polls.
        handle[127] += 1;
        let class = config.traffic_class;
        let args =
            format!("ctx={} dev={dev} class={class:?} first={:#x} poll={}", ctx.0, handle[0], handle[127]);
        let (number, now) = record(ID).enter("connect", args)?;
        if dev < 2 { Ok(now.then(|| Comm::new(number))) } else { Err(Failure::InvalidArgument) }
    }

    fn accept(listen: &Thing) -> Result<Option<Comm>, Failure> {
        let (number, now) = record(ID).enter("accept", format!("listen={}", listen.0))?;
        Ok(now.then(|| Comm::new(number)))
    }

    fn reg_mr_send(
        comm: &Comm,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Thing, Failure> {
        let args = format!("comm={} len={} {kind:?} {dmabuf:?}", comm.number, buffer.len);
        Ok(Thing(record(ID).enter("reg_mr_send", args)?.0))
    }

    fn reg_mr_recv(
        comm: &Comm,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Thing, Failure> {
        let args = format!("comm={} len={} {kind:?} {dmabuf:?}", comm.number, buffer.len);
        Ok(Thing(record(ID).enter("reg_mr_recv", args)?.0))
    }

    fn dereg_mr(mr: Thing) -> Result<(), Failure> {
        record(ID).enter("dereg_mr", format!("mr={}", mr.0)).map(drop)
    }

    fn isend<'a>(
        comm: &'a Comm,
        buffer: Buffer,
        tag: c_int,
        m: Option<&Thing>,
        profiler: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<Pooled<Thing>>>, Failure> {
        *lock(&record(ID).profiler) = profiler;
        let args = format!(
            "comm={} addr={} len={} tag={tag} mr={} profiled={}",
            comm.number,
            buffer.addr,
            buffer.len,
            mr(m),
            !profiler.is_none()
        );
        Ok(record(ID).enter("isend", args)?.1.then(|| comm.requests.acquire()).flatten())
    }

    fn irecv<'a>(
        comm: &'a Comm,
        buffers: &[RecvBuffer<'_, Self>],
        optional_completion: bool,
    ) -> Result<Option<&'a Tagged<Pooled<Thing>>>, Failure> {
        let parts: Vec<String> = buffers
            .iter()
            .map(|b| {
                let Buffer { addr, len } = b.buffer;
                format!("{addr}+{len} tag={} mr={} profiled={}", b.tag, mr(b.mr), !b.profiler.is_none())
            })
            .collect();
        let args = format!("comm={} optional={optional_completion} [{}]", comm.number, parts.join("; "));
        Ok(record(ID).enter("irecv", args)?.1.then(|| comm.requests.acquire()).flatten())
    }

    fn iflush<'a>(
        comm: &'a Comm,
        buffers: &[(Buffer, Option<&Thing>)],
    ) -> Result<Option<&'a Tagged<Pooled<Thing>>>, Failure> {
        let parts: Vec<String> =
            buffers.iter().map(|(b, m)| format!("{}+{} mr={}", b.addr, b.len, mr(*m))).collect();
        let args = format!("comm={} [{}]", comm.number, parts.join("; "));
        Ok(record(ID).enter("iflush", args)?.1.then(|| comm.requests.acquire()).flatten())
    }

    fn test(request: &Pooled<Thing>, sizes: &mut Sizes) -> Result<bool, Failure> {
        let (_, now) = record(ID).enter("test", format!("request={}", request.0))?;
        if now {
            let reported = lock(&record(ID).sizes);
            reported.iter().enumerate().try_for_each(|(i, size)| sizes.set(i, *size))?;
            request.release();
        }
        Ok(now)
    }

    fn close_send(comm: Comm) -> Result<(), Failure> {
        record(ID).enter("close_send", format!("comm={}", comm.number)).map(drop)
    }

    fn close_recv(comm: Comm) -> Result<(), Failure> {
        record(ID).enter("close_recv", format!("comm={}", comm.number)).map(drop)
    }

    fn close_listen(listen: Thing) -> Result<(), Failure> {
        record(ID).enter("close_listen", format!("listen={}", listen.0)).map(drop)
    }
}
