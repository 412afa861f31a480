//! Flushes, and the reads that they post.

use mpib_tests::code::Success;
use mpib_tests::log::LOG;
use mpib_tests::table::{Ptr, Table, table};

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
pub(crate) fn iflush(table: &Table, comm: Ptr, buffers: &[(usize, usize, Ptr)]) -> Ptr {
    let (rc, request) = table.iflush(comm, buffers);
    assert_eq!(rc, Success, "iflush");
    request
}

/// Returns what v9 and later report as `forceFlush`.
pub(crate) fn force_flush() -> Vec<bool> {
    (9..=12).map(|version| table(version).properties(0).1.unwrap().force_flush.unwrap()).collect()
}

/// The one line of the log on flushes.
pub(crate) fn line() -> String {
    let log = LOG.lock().unwrap();
    let lines: Vec<_> = log.iter().filter(|(level, line)| *level == 3 && line.contains(" flush ")).collect();
    assert_eq!(lines.len(), 1, "{log:?}");
    lines[0].1.clone()
}
