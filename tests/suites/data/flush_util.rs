//! Flushes, and the reads that they post.

use mpib_tests::code::Success;
use mpib_tests::log::LOG;
use mpib_tests::table::{Ptr, Table};

/// RDMA reads of this process so far, SOUT's and SUP's.
pub(crate) fn reads() -> [u64; 2] {
    let counters = softverbs::counters();
    ["soft0", "soft1"].map(|name| counters.iter().find(|d| d.name == name).unwrap().total.reads)
}

/// Reads on each rail while `f` runs.
pub(crate) fn during<T>(f: impl FnOnce() -> T) -> ([u64; 2], T) {
    let before = reads();
    let result = f();
    let after = reads();
    ([after[0] - before[0], after[1] - before[1]], result)
}

/// A flush that must be accepted; NULL where nothing has to be done.
pub(crate) fn iflush(table: &dyn Table, comm: Ptr, buffers: &[(usize, usize, Ptr)]) -> Ptr {
    let (rc, request) = table.iflush(comm, buffers);
    assert_eq!(rc, Success, "iflush");
    request
}

/// What `v9` and later say of `forceFlush`.
pub(crate) fn force_flush() -> [i32; 4] {
    macro_rules! asked {
        ($($module:ident $symbol:ident),*) => {[$({
            // SAFETY: a struct of integers and pointers.
            let mut props: nccl_net_abi::$module::Props = unsafe { std::mem::zeroed() };
            // SAFETY: a writable struct of this version.
            let rc = unsafe { nccl_net_mpib::$symbol.getProperties.unwrap()(0, &raw mut props) };
            assert_eq!(rc, nccl_net_abi::ncclSuccess);
            props.forceFlush
        }),*]};
    }
    asked!(v9 ncclNetPlugin_v9, v10 ncclNetPlugin_v10, v11 ncclNetPlugin_v11, v12 ncclNetPlugin_v12)
}

/// The one line of the log on flushes.
pub(crate) fn line() -> String {
    let log = LOG.lock().unwrap();
    let lines: Vec<_> = log.iter().filter(|(level, line)| *level == 3 && line.contains(" flush ")).collect();
    assert_eq!(lines.len(), 1, "{log:?}");
    lines[0].1.clone()
}
