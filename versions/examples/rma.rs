//! A whole plugin for one-sided transfers: host memory, between the ranks of one process.
//!
//! The handle of rank 0 is the name of a group. All ranks register in the same order, so memory that
//! a transfer names by this rank's registration has the same index in the target's list.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use nccl_net_versions::*;

struct Memory;
nccl_net_versions::export_rma!(Memory);

/// The memory of each rank, in the order of its registrations.
type Group = Mutex<BTreeMap<usize, Vec<Buffer>>>;

/// The groups that have members.
static GROUPS: Mutex<BTreeMap<HandleBuf, Weak<Group>>> = Mutex::new(BTreeMap::new());

/// One rank of a group.
struct Member {
    group: Arc<Group>,
    rank: usize,
    ranks: usize,
}

struct Context {
    member: Arc<Member>,
    requests: RequestPool<()>,
}

type Posted<'a> = Result<&'a Tagged<Pooled<()>>, Failure>;

impl Context {
    /// Returns the address of `size` bytes at a place in the memory of a rank.
    fn at(&self, rank: usize, place: Place<'_, usize>, size: usize) -> Result<*mut u8, Failure> {
        let ranks = self.member.group.lock().unwrap();
        let memory = ranks.get(&rank).and_then(|list| list.get(*place.mr));
        match memory.filter(|memory| place.offset.checked_add(size).is_some_and(|end| end <= memory.len)) {
            Some(memory) => Ok(memory.as_ptr().wrapping_add(place.offset)),
            None => {
                warn::<Memory>("RMA transfer", &format_args!("no such memory of rank {rank}"));
                Err(Failure::InvalidArgument)
            }
        }
    }

    /// Every transfer is complete when its call returns.
    fn complete(&self) -> Posted<'_> {
        self.requests.acquire().ok_or(Failure::Internal)
    }
}

impl Plugin for Memory {
    const NAME: &'static CStr = c"Memory";
}

impl RmaPlugin for Memory {
    type Context = ();
    type Listen = ();
    type Coll = Arc<Member>;
    type RmaContext = Context;
    type Mr = usize;
    type Request = Pooled<()>;

    fn init(_: &RmaInit) -> Result<(), Failure> {
        Ok(())
    }
    fn devices() -> Result<usize, Failure> {
        Ok(1)
    }
    fn properties(dev: usize) -> Result<Properties, Failure> {
        if dev == 0 { Ok(Properties::new(c"memory0")) } else { Err(Failure::InvalidArgument) }
    }
    fn listen(_: &(), dev: usize, handle: &mut HandleBuf) -> Result<(), Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        handle[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
        Self::properties(dev).map(drop)
    }
    fn connect(_: &(), handles: &[&HandleBuf], rank: usize) -> Result<Arc<Member>, Failure> {
        let name = **handles.first().ok_or(Failure::InvalidArgument)?;
        let mut groups = GROUPS.lock().unwrap();
        groups.retain(|_, group| group.strong_count() > 0);
        let group = groups.get(&name).and_then(Weak::upgrade).unwrap_or_default();
        groups.insert(name, Arc::downgrade(&group));
        Ok(Arc::new(Member { group, rank, ranks: handles.len() }))
    }
    fn create_context(coll: &Arc<Member>, config: &RmaConfig) -> Result<Context, Failure> {
        let requests = config.contexts * coll.ranks * abi::NCCL_NET_MAX_REQUESTS as usize;
        Ok(Context { member: coll.clone(), requests: RequestPool::rma(requests, |_| ()) })
    }
    fn reg_mr(
        coll: &Arc<Member>,
        buffer: Buffer,
        kind: MemKind,
        _: Option<DmaBuf>,
        _: MrFlags,
    ) -> Result<usize, Failure> {
        if kind != MemKind::Host {
            return Err(Failure::InvalidUsage);
        }
        let mut ranks = coll.group.lock().unwrap();
        let list = ranks.entry(coll.rank).or_default();
        list.push(buffer);
        Ok(list.len() - 1)
    }
    fn dereg_mr(coll: &Arc<Member>, mr: usize) -> Result<(), Failure> {
        // The place stays, as the index of later registrations depends on it.
        coll.group.lock().unwrap().entry(coll.rank).or_default()[mr] = Buffer::default();
        Ok(())
    }
    fn iput<'a>(ctx: &'a Context, put: &Put<'_, Self>) -> Posted<'a> {
        if let (Some(src), Some(dst)) = (put.src, put.dst) {
            let src = ctx.at(ctx.member.rank, src, put.size)?;
            // SAFETY: both places have the bytes, and NCCL keeps the memory until they are deregistered.
            unsafe { ptr::copy(src, ctx.at(put.rank, dst, put.size)?, put.size) };
        }
        if let Some(signal) = &put.signal {
            let word = ctx.at(put.rank, signal.place, 8)?.cast::<u64>();
            if !word.is_aligned() {
                return Err(Failure::InvalidArgument);
            }
            // SAFETY: as above, aligned, and NCCL reads it by atomic loads. All earlier puts are done.
            unsafe { AtomicU64::from_ptr(word) }.fetch_add(signal.value, Ordering::Release);
        }
        ctx.complete()
    }
    fn iget<'a>(ctx: &'a Context, get: &Get<'_, Self>) -> Posted<'a> {
        let remote = ctx.at(get.rank, get.remote, get.size)?;
        // SAFETY: as in `iput`.
        unsafe { ptr::copy(remote, ctx.at(ctx.member.rank, get.local, get.size)?, get.size) };
        ctx.complete()
    }
    fn test(_: &Arc<Member>, request: &Pooled<()>) -> Result<bool, Failure> {
        request.release();
        Ok(true)
    }
}
