//! The kernel's limits on this process: locked memory and open files.

use std::fs;
use std::path::Path;
use std::sync::Once;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that a process with some thousand connections and registrations needs.
pub(crate) const ENOUGH_DESCRIPTORS: u64 = 65_536;

/// How to raise the limit on locked memory.
pub(crate) const RAISE_MEMLOCK: &str =
    "set it to unlimited (limits.conf, LimitMEMLOCK=infinity, --ulimit memlock=-1)";

/// Returns the limit on locked memory in bytes; `None` if it cannot be read.
pub(crate) fn memlock() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft)
}

/// Whether this process has CAP_IPC_LOCK in the first user namespace: the kernel then applies no limit
/// on locked memory to it (drivers/infiniband/core/umem.c asks `capable`). The capability within
/// another user namespace, as in a rootless container, does not count.
pub(crate) fn may_lock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    // `PROC_USER_INIT_INO` of the kernel's include/linux/proc_ns.h.
    const FIRST: &str = "user:[4026531837]";
    let set = status("CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    let is_first = fs::read_link("/proc/self/ns/user").is_ok_and(|ns| ns.as_os_str() == FIRST);
    is_first && set.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// Returns the memory that the kernel has pinned for this process, in KiB. It counts each registration
/// of a page, and compares the sum with the limit on locked memory.
pub(crate) fn pinned() -> Option<u64> {
    status("VmPin:")?.split_whitespace().next()?.parse().ok()
}

/// Returns the value of a line of /proc/self/status.
fn status(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

/// Returns the limits of this process's rdma cgroup and what is used of them, as its files have them;
/// `None` if the process is in none, or does not see it.
pub(crate) fn rdma_cgroup() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let read = |file: &str| {
        let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(path).join(file)).ok()?;
        Some(text.lines().collect::<Vec<_>>().join("; "))
    };
    Some(format!("rdma.max: {}, rdma.current: {}", read("rdma.max")?, read("rdma.current")?))
}

/// Returns how many descriptors this process may have open, and to how many it may raise that.
/// `u64::MAX` if there is no limit, or it cannot be read.
pub(crate) fn descriptors() -> (u64, u64) {
    getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX))
}

/// Raises the soft limit on open files to [`ENOUGH_DESCRIPTORS`], as far as the hard one allows. Each
/// connection and each registered DMA-BUF needs a descriptor. NCCL's bootstrap raises it, too. Once: a
/// program may lower it later.
pub(crate) fn raise_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (soft, hard) = descriptors();
        let wanted = ENOUGH_DESCRIPTORS.min(hard);
        if soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() {
            tracing::info!(target: "init", "raised the limit on open files from {soft} to {wanted} (ulimit -n)");
        }
    });
}
