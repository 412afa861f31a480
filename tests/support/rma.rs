//! Groups of ranks, all in this process, through an exported RMA table.

use std::cell::RefCell;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use nccl_net_host::{Place, Ptr, RMA_VERSIONS, Rma};

use crate::code::{Code, Success, known};
use crate::log::c_logger;
use crate::memory::{Memfd, PAGE};
use crate::pair::{LIMIT, Polling};

/// `NCCL_PTR_HOST` and `NCCL_PTR_CUDA`
pub const HOST: c_int = 1;
pub const CUDA: c_int = 2;
/// `NCCL_NET_MR_FLAG_FORCE_SO` with `NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET`
pub const OF_SIGNALS: u64 = 3;
/// `NCCL_NET_SIGNAL_OP_INC` and `NCCL_NET_SIGNAL_OP_ADD`
pub const INC: u32 = 1;
pub const ADD: u32 = 2;
/// No place: data of no bytes has none.
pub const NOWHERE: Place = (null_mut(), 0);

/// Returns the exported table of a version.
pub fn rma_table(version: u32) -> Rma {
    use nccl_net_mpib::{ncclRmaPlugin_v13, ncclRmaPlugin_v14, ncclRmaPlugin_v15, ncclRmaPlugin_v16};
    let table: *const () = match version {
        13 => (&raw const ncclRmaPlugin_v13).cast(),
        14 => (&raw const ncclRmaPlugin_v14).cast(),
        15 => (&raw const ncclRmaPlugin_v15).cast(),
        16 => (&raw const ncclRmaPlugin_v16).cast(),
        other => panic!("no RMA table v{other}"),
    };
    let table = NonNull::new(table.cast_mut().cast()).unwrap();
    // SAFETY: the table of this version. The plugin promises to refuse wrong pointers.
    unsafe { Rma::from_ptr(version, table) }.expect("a known version")
}

/// Returns each exported table, oldest first.
pub fn rma_tables() -> Vec<Rma> {
    RMA_VERSIONS.map(rma_table).to_vec()
}

/// One rank of a group.
#[derive(Debug)]
pub struct Rank {
    pub coll: Ptr,
    pub ctx: Ptr,
}

/// A group whose ranks are all here.
#[derive(Debug)]
pub struct Group {
    pub table: Rma,
    pub ctx: Ptr,
    pub ranks: Vec<Rank>,
    /// The ranks that make progress.
    live: RefCell<Vec<bool>>,
}

// SAFETY: handles may be used from any thread; the tests keep to NCCL's rules.
unsafe impl Send for Group {}

/// One rank of a group, before it knows the others.
#[derive(Debug)]
pub struct Listening {
    table: Rma,
    ctx: Ptr,
    listen: Ptr,
    pub handle: [u8; 128],
}

impl Listening {
    #[track_caller]
    fn on(table: Rma, ctx: Ptr, dev: c_int) -> Self {
        let (mut listen, mut handle) = (null_mut(), [0; 128]);
        assert_eq!(
            known(table.listen(ctx, dev, handle.as_mut_ptr().cast(), &raw mut listen)),
            Success,
            "listen"
        );
        Self { table, ctx, listen, handle }
    }

    /// Connects as number `rank` of the ranks with these handles, and makes contexts.
    #[track_caller]
    fn rank(&self, rank: usize, handles: &mut [[u8; 128]], contexts: c_int) -> Rank {
        let mut places: Vec<Ptr> = handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
        let (table, mut coll, mut ctx) = (self.table, null_mut(), null_mut());
        // NCCL's host RMA passes the context of the network table.
        let foreign = without_provenance_mut(0x10);
        let rc = table.connect(foreign, &mut places, rank as c_int, self.listen, &raw mut coll);
        assert_eq!(known(rc), Success, "connect");
        assert_eq!(known(table.close_listen(self.listen)), Success, "closeListen");
        assert_eq!(known(table.create_context(coll, contexts, &raw mut ctx)), Success, "createContext");
        Rank { coll, ctx }
    }

    /// Makes the group with the ranks of these handles, and this one as number `rank`. It has the
    /// index 0 here.
    #[track_caller]
    pub fn join(&mut self, rank: usize, mut others: Vec<[u8; 128]>) -> Group {
        others.insert(rank, self.handle);
        Group::of(self.table, self.ctx, vec![self.rank(rank, &mut others, 1)])
    }
}

/// `init` that must succeed.
#[track_caller]
fn init(table: Rma) -> Ptr {
    let mut ctx = null_mut();
    assert_eq!(known(table.init(&raw mut ctx, 7, c_logger())), Success, "init of v{}", table.version());
    ctx
}

/// A request, and the rank that began it.
pub type Pending = (usize, Ptr);

/// Memory that all ranks have registered as one window.
#[derive(Debug)]
pub struct Window {
    /// By rank.
    mrs: Vec<Ptr>,
    memory: Vec<Memory>,
}

/// One rank's memory of a window.
#[derive(Debug)]
enum Memory {
    Host(Vec<u64>),
    /// A file in the place of a GPU's memory, at addresses where nothing is mapped.
    Gpu(Memfd),
}

impl Group {
    /// Makes a group with this number of contexts, all ranks on the first device.
    #[track_caller]
    pub fn new(table: Rma, ranks: usize, contexts: c_int) -> Self {
        Self::on(table, &vec![0; ranks], contexts)
    }

    /// Makes a group with a rank on each of these devices.
    #[track_caller]
    pub fn on(table: Rma, devices: &[c_int], contexts: c_int) -> Self {
        let ctx = init(table);
        let listening: Vec<Listening> = devices.iter().map(|dev| Listening::on(table, ctx, *dev)).collect();
        let mut handles: Vec<[u8; 128]> = listening.iter().map(|rank| rank.handle).collect();
        let ranks = listening.iter().enumerate().map(|(rank, end)| end.rank(rank, &mut handles, contexts));
        Self::of(table, ctx, ranks.collect())
    }

    fn of(table: Rma, ctx: Ptr, ranks: Vec<Rank>) -> Self {
        let live = RefCell::new(vec![true; ranks.len()]);
        Self { table, ctx, ranks, live }
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Begins a group with one rank in this process.
    #[track_caller]
    pub fn listen(table: Rma) -> Listening {
        Listening::on(table, init(table), 0)
    }

    /// Returns a window that no rank has registered yet.
    pub fn part_of_a_window(&self) -> Window {
        Window { mrs: Vec::new(), memory: Vec::new() }
    }

    /// Registers zeroed memory of `words` words on each rank as a window.
    #[track_caller]
    pub fn window(&self, kind: c_int, words: usize, flags: u64) -> Window {
        let mut window = self.part_of_a_window();
        (0..self.len()).for_each(|rank| self.register(&mut window, rank, kind, words, flags));
        window
    }

    /// Registers the memory of the next rank for a window.
    #[track_caller]
    pub fn register(&self, window: &mut Window, rank: usize, kind: c_int, words: usize, flags: u64) {
        assert_eq!(window.mrs.len(), rank, "ranks register in order");
        let (coll, len) = (self.ranks[rank].coll, 8 * words);
        let mut mr = null_mut();
        let memory = match kind {
            HOST => {
                let mut words = vec![0_u64; words];
                let data = words.as_mut_ptr();
                let _ = data.expose_provenance();
                assert_eq!(
                    known(self.table.reg_mr(coll, data.cast(), len, HOST, flags, &raw mut mr)),
                    Success
                );
                Memory::Host(words)
            }
            _ => {
                let file = Memfd::new(len);
                let nccls = file.again();
                let at = without_provenance_mut(GPU.fetch_add(len.next_multiple_of(PAGE), Relaxed));
                let rc =
                    self.table.reg_mr_dma_buf(coll, (at, len), CUDA, (0, nccls.fd()), flags, &raw mut mr);
                assert_eq!(known(rc), Success);
                Memory::Gpu(file)
            }
        };
        assert!(!mr.is_null());
        window.mrs.push(mr);
        window.memory.push(memory);
    }

    /// Ends a window on all ranks.
    #[track_caller]
    pub fn deregister(&self, window: Window) {
        for (rank, mr) in self.ranks.iter().zip(window.mrs) {
            assert_eq!(known(self.table.dereg_mr(rank.coll, mr)), Success, "deregMrSym");
        }
    }

    /// Begins a put by the context 0 of a rank.
    #[track_caller]
    pub fn put(&self, from: usize, src: Place, size: usize, dst: Place, to: usize) -> Pending {
        self.put_by((from, 0), src, size, dst, to)
    }

    /// Begins a put by a context of a rank.
    #[track_caller]
    pub fn put_by(
        &self,
        (from, context): (usize, c_int),
        src: Place,
        size: usize,
        dst: Place,
        to: usize,
    ) -> Pending {
        let (ctx, mut request) = (self.ranks[from].ctx, null_mut());
        let rc = self.table.iput(ctx, context, src, size, dst, to as u32, &raw mut request);
        assert_eq!(known(rc), Success, "iput");
        assert!(!request.is_null(), "iput without a request");
        (from, request)
    }

    /// Begins a put with a strong signal, which adds `value`.
    #[track_caller]
    pub fn put_signal(
        &self,
        by: (usize, c_int),
        src: Place,
        size: usize,
        dst: Place,
        to: usize,
        (word, value): (Place, u64),
    ) -> Pending {
        self.put_signal_as(by, src, size, dst, to, (word, value, ADD), true)
    }

    /// Begins a put with a signal: a word, a value and an operation.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "those of the table")]
    pub fn put_signal_as(
        &self,
        (from, context): (usize, c_int),
        src: Place,
        size: usize,
        dst: Place,
        to: usize,
        signal: (Place, u64, u32),
        strong: bool,
    ) -> Pending {
        let (ctx, mut request) = (self.ranks[from].ctx, null_mut());
        let rc =
            self.table.iput_signal(ctx, context, src, size, dst, to as u32, signal, strong, &raw mut request);
        assert_eq!(known(rc), Success, "iputSignal");
        assert!(!request.is_null(), "iputSignal without a request");
        (from, request)
    }

    /// Begins a get by the context 0 of a rank.
    #[track_caller]
    pub fn get(&self, rank: usize, from: usize, remote: Place, size: usize, local: Place) -> Pending {
        let mut request = null_mut();
        let rc = self.table.iget(self.ranks[rank].ctx, 0, remote, size, local, from as u32, &raw mut request);
        assert_eq!(known(rc), Success, "iget");
        assert!(!request.is_null(), "iget without a request");
        (rank, request)
    }

    /// Makes what gets have brought into a rank's window visible, which it is when they are done.
    #[track_caller]
    pub fn flush(&self, rank: usize, window: &Window, from: usize) {
        let (ctx, mut request) = (self.ranks[rank].ctx, null_mut());
        let rc = self.table.iflush(ctx, 0, window.mrs[rank], from as u32, &raw mut request);
        assert_eq!(known(rc), Success, "iflush");
        assert!(request.is_null(), "iflush after a get that is done");
    }

    /// Tests a request once.
    #[track_caller]
    pub fn test(&self, (rank, request): Pending) -> Result<bool, Code> {
        let mut done = -1;
        match known(self.table.test(self.ranks[rank].coll, request, &raw mut done)) {
            Success => Ok(done == 1),
            failed => Err(failed),
        }
    }

    /// Makes progress on each rank once.
    #[track_caller]
    pub fn progress(&self) {
        for (rank, live) in self.ranks.iter().zip(&*self.live.borrow()) {
            if *live {
                assert_eq!(known(self.table.progress(rank.ctx)), Success, "rmaProgress");
            }
        }
    }

    /// From now on a rank makes no progress.
    pub fn stop(&self, rank: usize) {
        self.live.borrow_mut()[rank] = false;
    }

    /// A rank makes progress again.
    pub fn resume(&self, rank: usize) {
        self.live.borrow_mut()[rank] = true;
    }

    /// Makes progress until `f` returns something.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut f: impl FnMut() -> Option<T>) -> T {
        let polling = Polling::start();
        loop {
            self.progress();
            if let Some(value) = f() {
                return value;
            }
            assert!(polling.pause() < LIMIT, "{what}: nothing within {LIMIT:?}");
        }
    }

    /// Waits for requests.
    #[track_caller]
    pub fn wait(&self, requests: impl IntoIterator<Item = Pending>) {
        let mut left: Vec<Pending> = requests.into_iter().collect();
        self.until("requests", || {
            left.retain(|request| !self.test(*request).expect("a request that does not fail"));
            left.is_empty().then_some(())
        });
    }

    /// Ends the group: each rank in a thread, as each has its process.
    #[track_caller]
    pub fn close(self) {
        let Self { table, ctx, ranks, .. } = self;
        std::thread::scope(|scope| {
            for Rank { coll, ctx } in ranks {
                let (coll, ctx) = (coll.expose_provenance(), ctx.expose_provenance());
                scope.spawn(move || {
                    assert_eq!(known(table.destroy_context(without_provenance_mut(ctx))), Success);
                    assert_eq!(known(table.close_coll(without_provenance_mut(coll))), Success, "closeColl");
                });
            }
        });
        assert_eq!(known(table.finalize(ctx)), Success, "finalize");
    }
}

/// Where the next memory of a GPU would be: nothing is mapped there.
static GPU: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);

impl Window {
    /// Returns a place, as a rank names it.
    pub fn at(&self, rank: usize, offset: usize) -> Place {
        (self.mrs[rank], offset as u64)
    }

    /// Writes bytes into a rank's memory.
    pub fn write(&self, rank: usize, offset: usize, bytes: &[u8]) {
        match &self.memory[rank] {
            Memory::Gpu(file) => file.write(offset as u64, bytes),
            Memory::Host(words) => {
                assert!(offset + bytes.len() <= 8 * words.len());
                // SAFETY: inside of the vector, which nothing borrows: adapters write it, too.
                unsafe {
                    let place = words.as_ptr().cast::<u8>().cast_mut().add(offset);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
                }
            }
        }
    }

    /// Reads bytes of a rank's memory.
    pub fn read(&self, rank: usize, offset: usize, len: usize) -> Vec<u8> {
        match &self.memory[rank] {
            Memory::Gpu(file) => file.read(offset as u64, len),
            Memory::Host(words) => {
                assert!(offset + len <= 8 * words.len());
                let mut bytes = vec![0; len];
                // SAFETY: inside of the vector.
                unsafe {
                    let place = words.as_ptr().cast::<u8>().add(offset);
                    std::ptr::copy(place, bytes.as_mut_ptr(), len);
                }
                bytes
            }
        }
    }

    /// Reads a word of a rank's memory.
    pub fn word(&self, rank: usize, offset: usize) -> u64 {
        match &self.memory[rank] {
            Memory::Gpu(_) => u64::from_ne_bytes(self.read(rank, offset, 8).try_into().unwrap()),
            Memory::Host(words) => {
                // SAFETY: an aligned word of the vector. Adapters and the plugin write it.
                let word = unsafe {
                    std::sync::atomic::AtomicU64::from_ptr(words.as_ptr().cast_mut().add(offset / 8))
                };
                word.load(std::sync::atomic::Ordering::Acquire)
            }
        }
    }
}
