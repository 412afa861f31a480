//! Usual causes of failed verbs calls.

use nix::errno::Errno;
use nix::sys::resource::RLIM_INFINITY;

use crate::limits::{RAISE_MEMLOCK, may_lock, memlock, pinned, rdma_cgroup};

/// What to check after a failed call.
struct Row {
    /// C names of the calls; of any call if there are none.
    calls: &'static [&'static str],
    errnos: &'static [Errno],
    advice: Advice,
}

enum Advice {
    Text(&'static str),
    /// A text that depends on this process, and what it says; `None` if the row does not apply.
    Ask(
        fn() -> Option<String>,
        #[cfg_attr(not(test), allow(dead_code, reason = "the guide has it"))] &'static str,
    ),
}

/// Calls whose memory the kernel pins, and counts against the limit on locked memory: buffers, and the
/// rings of queues.
const PIN_MEMORY: &[&str] =
    &["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_create_cq", "ibv_create_qp", "ibv_create_srq"];
/// Calls that make an object which the rdma cgroup counts.
const MAKE_OBJECTS: &[&str] =
    &["ibv_alloc_pd", "ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_create_cq", "ibv_create_qp", "ibv_create_srq"];
const REGISTER: &[&str] = &["ibv_reg_mr", "ibv_reg_mr_iova2"];
const MODIFY: &[&str] = &["ibv_modify_qp"];
const OPEN: &[&str] = &["ibv_open_device"];
const ANY: &[&str] = &[];

/// The first row that fits counts. The causes of a failed `ibv_reg_dmabuf_mr` are with those of GPU
/// memory.
///
/// What the kernel returns to each call was read in its drivers/infiniband/core (umem.c, verbs.c,
/// cache.c, addr.c, uverbs_main.c) and kernel/cgroup/rdma.c of 6.17, and in rdma-core 65.
const TABLE: &[Row] = &[
    // No kernel and no memory: the provider writes to its queue.
    row(
        &["ibv_post_send", "ibv_post_recv", "ibv_post_srq_recv"],
        &[Errno::ENOMEM],
        "The queue is full: the adapter completes nothing, or this plugin posts too much. Look at dmesg, and report it",
    ),
    // -2 of mlx5 and hns (`CQ_POLL_ERR`) is no errno.
    row(
        &["ibv_poll_cq"],
        &[Errno::ENOENT, Errno::EINVAL, Errno::EIO],
        "The provider cannot read its completion queue: an entry is of no queue pair that it knows (-2 on mlx5 and hns, \
         which is no errno), or is damaged. Look at dmesg, and report it with the adapter's model",
    ),
    // erdma refuses posts to a queue pair in ERR.
    row(
        &["ibv_post_send", "ibv_post_recv", "ibv_post_srq_recv"],
        &[Errno::EIO],
        "The queue pair has failed before, which an earlier line may explain, or the adapter was removed or reset: look at \
         the port, and at dmesg",
    ),
    ask(
        PIN_MEMORY,
        &[Errno::ENOMEM],
        || Some(no_memory(memlock(), may_lock())),
        "The limit on locked memory (ulimit -l) and what is pinned, if the limit binds this process. Else the adapter's \
         limits (ibv_devinfo -v), free memory and dmesg",
    ),
    ask(
        ANY,
        &[Errno::ENOMEM],
        || Some(format!("The kernel or the adapter has no room for it: {FULL}")),
        "The adapter's limits (ibv_devinfo -v), free memory and dmesg",
    ),
    ask(
        PIN_MEMORY,
        &[Errno::EPERM],
        || {
            let zero = format!("The limit on locked memory is 0 here (ulimit -l): {RAISE_MEMLOCK}");
            (memlock() == Some(0)).then_some(zero)
        },
        "The limit on locked memory, if it is 0",
    ),
    row(
        REGISTER,
        &[Errno::EFAULT],
        "The memory cannot be registered: was it freed? Is it mapped read-only, or from a file on disk? Is /dev/shm full?",
    ),
    row(
        REGISTER,
        &[Errno::EINVAL],
        "The length does not fit the adapter: compare it with max_mr_size of ibv_devinfo -v",
    ),
    row(
        MODIFY,
        &[Errno::ETIMEDOUT],
        "On RoCE the driver could not resolve the peer's address: is the peer's port up, and is there a route from this \
         rail's network to the peer's GID (ip route get, ip neigh, ping -I)? If the call took many seconds, the adapter's \
         firmware does not answer (dmesg)",
    ),
    row(
        MODIFY,
        &[Errno::ENODEV],
        "The GID's network interface is in another network namespace, or was removed: does the container have it, as with \
         --network host?",
    ),
    row(
        MODIFY,
        &[Errno::ENODATA],
        "The GID's entry is empty: its address was removed, or has another index by now. Unset NCCL_IB_GID_INDEX, which \
         keeps to an index",
    ),
    row(
        MODIFY,
        &[Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EADDRNOTAVAIL],
        "The GID's network interface is down or has lost its address (ip addr), or there is no route from this rail to \
         the peer's GID: compare both GIDs' networks, and NCCL_IB_GID_INDEX",
    ),
    row(
        MODIFY,
        &[Errno::EINVAL],
        "The GID index, MTU, P_Key or peer address does not fit this port: compare ibv_devinfo -v with NCCL_IB_GID_INDEX and \
         NCCL_IB_PKEY",
    ),
    row(&["ibv_create_qp"], &[Errno::UnknownErrno], ENTRIES),
    row(&["ibv_create_qp", "ibv_create_cq", "ibv_create_srq"], &[Errno::EINVAL], ENTRIES),
    // libibverbs tries /dev/char next, and reports that errno.
    row(
        OPEN,
        &[Errno::ENOENT, Errno::EACCES, Errno::EPERM],
        "This user may not open /dev/infiniband/uverbs*, or the container lacks it: look at its permissions, and at the \
         container's devices",
    ),
    ask(
        OPEN,
        &[Errno::EAGAIN],
        || {
            Some(format!(
                "The adapter is starting or recovering (dmesg), or a limit is reached: {}",
                cgroup()
            ))
        },
        "The adapter is starting or recovering (dmesg), or a limit of the rdma cgroup is reached (rdma.max)",
    ),
    ask(
        MAKE_OBJECTS,
        &[Errno::EAGAIN],
        || {
            let what = "A limit on RDMA objects is reached, or the adapter has no more of them";
            Some(format!("{what}: {}", cgroup()))
        },
        "A limit of the rdma cgroup is reached (rdma.max), or the adapter has no more of these objects",
    ),
    row(
        ANY,
        &[Errno::EPERM, Errno::EACCES],
        "The kernel denies it to this user: look at the permissions of /dev/infiniband/*, the container's devices and the \
         audit log (SELinux)",
    ),
    row(
        &["ibv_get_device_list"],
        &[Errno::ENOSYS],
        "The kernel has no RDMA support loaded: is ib_uverbs there (lsmod)?",
    ),
    row(
        ANY,
        &[Errno::ENODEV, Errno::ENXIO],
        "The device was removed: was its driver reloaded or the card reset (dmesg)?",
    ),
    row(ANY, &[Errno::EIO], "The adapter was removed or reset, or is in a fatal state: look at dmesg"),
    row(
        ANY,
        &[Errno::ETIMEDOUT],
        "The adapter's firmware does not answer its driver: look at dmesg, and reset the adapter",
    ),
    row(ANY, &[Errno::ENOLINK], "The adapter's driver is recovering it from an error: look at dmesg"),
    row(ANY, &[Errno::EMFILE], "This process has too many files open: raise ulimit -n"),
    row(ANY, &[Errno::ENFILE], "The host has too many files open: raise fs.file-max (sysctl)"),
    row(
        ANY,
        &[Errno::EPROTONOSUPPORT, Errno::ENOSPC],
        "The installed libibverbs, its provider and the kernel's driver are of different releases: in a container, \
         install those of the host",
    ),
    row(
        ANY,
        &[Errno::EOPNOTSUPP, Errno::ENOSYS],
        "The adapter, its driver or the installed libibverbs does not offer this call",
    ),
];

const ENTRIES: &str = "More entries are requested than the adapter has: compare with max_qp_wr, max_cqe and max_srq_wr of \
                       ibv_devinfo -v";
/// Where to look if neither a limit of the process nor an argument is the cause.
const FULL: &str =
    "look at the adapter's limits (ibv_devinfo -v: max_mr, max_qp, max_cq), at free memory and at dmesg";

const fn row(calls: &'static [&'static str], errnos: &'static [Errno], text: &'static str) -> Row {
    Row { calls, errnos, advice: Advice::Text(text) }
}

const fn ask(
    calls: &'static [&'static str],
    errnos: &'static [Errno],
    ask: fn() -> Option<String>,
    says: &'static str,
) -> Row {
    Row { calls, errnos, advice: Advice::Ask(ask, says) }
}

/// Returns a sentence on what to check; `None` if the errno is clear enough.
pub(super) fn verbs(call: &str, errno: Errno) -> Option<String> {
    let fits =
        |row: &&Row| (row.calls.is_empty() || row.calls.contains(&call)) && row.errnos.contains(&errno);
    if call == "ibv_reg_dmabuf_mr" {
        return None;
    }
    TABLE.iter().filter(fits).find_map(|row| match row.advice {
        Advice::Text(text) => Some(text.into()),
        Advice::Ask(ask, _) => ask(),
    })
}

/// Names the limits of the rdma cgroup.
fn cgroup() -> String {
    let shown = rdma_cgroup().unwrap_or_else(|| "this process sees none".into());
    format!("compare rdma.max with rdma.current of its cgroup and of those above it ({shown})")
}

/// Explains ENOMEM of a call that pins memory. `unbound`: the limit on locked memory does not apply to
/// this process.
fn no_memory(limit: Option<u64>, unbound: bool) -> String {
    match limit {
        Some(RLIM_INFINITY) => format!("Locked memory is unlimited here (ulimit -l): {FULL}"),
        _ if unbound => {
            format!("The limit on locked memory does not bind this process, which has CAP_IPC_LOCK: {FULL}")
        }
        Some(bytes) => format!(
            "The usual cause is the limit on locked memory (ulimit -l), which is {} KiB here{}: {RAISE_MEMLOCK}",
            bytes >> 10,
            pinned().map_or(String::new(), |kib| format!(", with {kib} KiB pinned (VmPin)"))
        ),
        None => format!("The usual cause is the limit on locked memory (ulimit -l). Else {FULL}"),
    }
}

#[cfg(test)]
mod tests {
    use mpib_test_env::stands_in_the_guide;

    use super::*;

    #[test]
    fn the_guide_has_the_errors_of_verbs_calls() {
        let mut calls = String::from("| call | errno | what to check |\n|---|---|---|\n");
        for Row { calls: of, errnos, advice } in TABLE {
            let of: Vec<_> = of.iter().map(|call| format!("`{call}`")).collect();
            let errnos = errnos.iter().map(|errno| match errno {
                Errno::UnknownErrno => "0".to_owned(),
                _ => format!("{errno:?}"),
            });
            let (Advice::Text(text) | Advice::Ask(_, text)) = advice;
            let of = if of.is_empty() { "any other".into() } else { of.join(", ") };
            calls += &format!("| {of} | {} | {text} |\n", errnos.collect::<Vec<_>>().join(", "));
        }
        stands_in_the_guide("errors.md", "calls", &calls);
    }

    #[test]
    fn enomem_names_the_limit_and_the_remedy() {
        for (limit, unbound, expected) in [
            (Some(8 << 20), false, "ulimit -l), which is 8192 KiB here, with "),
            (
                Some(8 << 20),
                true,
                "does not bind this process, which has CAP_IPC_LOCK: look at the adapter's",
            ),
            (Some(RLIM_INFINITY), false, "unlimited here (ulimit -l): look at the adapter's limits"),
            (None, false, "(ulimit -l). Else look at the adapter's limits"),
        ] {
            let text = no_memory(limit, unbound);
            assert!(text.contains(expected), "{text}");
        }
        for call in ["ibv_create_cq", "ibv_create_qp", "ibv_reg_mr"] {
            assert!(verbs(call, Errno::ENOMEM).is_some_and(|t| t.contains("ocked memory")), "{call}");
        }
    }

    #[test]
    fn the_call_decides_the_hint() {
        for (call, errno, expected) in [
            ("ibv_modify_qp", Errno::ETIMEDOUT, "route"),
            ("ibv_modify_qp", Errno::ENODEV, "network interface is in another network namespace"),
            ("ibv_modify_qp", Errno::ENODATA, "entry is empty"),
            ("ibv_modify_qp", Errno::ENETUNREACH, "interface is down"),
            ("ibv_modify_qp", Errno::EINVAL, "GID index"),
            ("ibv_modify_qp", Errno::ENOMEM, "adapter's limits"),
            ("ibv_create_qp", Errno::ENODEV, "driver reloaded"),
            ("ibv_create_qp", Errno::EINVAL, "max_qp_wr"),
            ("ibv_create_srq", Errno::ETIMEDOUT, "firmware does not answer"),
            ("ibv_create_qp", Errno::from_raw(0), "max_qp_wr"),
            ("ibv_create_cq", Errno::EAGAIN, "rdma.max"),
            ("ibv_create_cq", Errno::EPERM, "permissions"),
            ("ibv_post_send", Errno::ENOMEM, "queue is full"),
            ("ibv_post_send", Errno::EIO, "has failed before"),
            ("ibv_open_device", Errno::ENOENT, "uverbs"),
            ("ibv_poll_cq", Errno::ENOENT, "no queue pair that it knows"),
            ("ibv_open_device", Errno::EACCES, "uverbs"),
            ("ibv_open_device", Errno::EPROTONOSUPPORT, "different releases"),
            ("ibv_reg_mr", Errno::EFAULT, "freed"),
            ("ibv_reg_mr", Errno::EINVAL, "max_mr_size"),
        ] {
            let text = verbs(call, errno).unwrap_or_default();
            assert!(text.contains(expected), "{call} {errno}: {text}");
            let blames = text.contains("ulimit -l");
            assert!(!blames, "{call} {errno}: {text}");
        }
        assert_eq!(verbs("ibv_post_send", Errno::EAGAIN), None);
        assert_eq!(verbs("ibv_reg_dmabuf_mr", Errno::ENOMEM), None);
    }
}
