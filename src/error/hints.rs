//! Usual causes of failed verbs calls.

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Returns a sentence on what to check; `None` if the errno is clear enough.
pub(super) fn verbs(call: &str, errno: Errno) -> Option<String> {
    let text = match (call, errno) {
        (_, Errno::ENOMEM) => {
            return Some(memlock_text(memlock_limit()));
        }
        ("ibv_reg_mr" | "ibv_reg_mr_iova2", Errno::EFAULT | Errno::EINVAL | Errno::EOPNOTSUPP) => {
            "The memory cannot be registered: was it freed? Is it mapped read-only?"
        }
        // Its causes are listed with those of GPU memory.
        ("ibv_reg_dmabuf_mr", _) => return None,
        ("ibv_modify_qp", Errno::ETIMEDOUT) => {
            "On RoCE the driver could not resolve the peer's address: is the peer's port up, and is there a route from this \
             rail's network to the peer's GID (ip route get, ping -I)?"
        }
        ("ibv_modify_qp", Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EADDRNOTAVAIL) => {
            "There is no route from this rail to the peer's GID: compare both GIDs' networks, and NCCL_IB_GID_INDEX"
        }
        ("ibv_modify_qp", Errno::EINVAL) => {
            "The GID index, MTU, P_Key or peer address does not fit this port: compare ibv_devinfo -v with NCCL_IB_GID_INDEX and \
             NCCL_IB_PKEY"
        }
        ("ibv_create_qp" | "ibv_create_cq" | "ibv_create_srq", Errno::EINVAL) => {
            "More entries are requested than the adapter has: compare with max_qp_wr, max_cqe and max_srq_wr of ibv_devinfo -v"
        }
        ("ibv_open_device", Errno::EACCES | Errno::EPERM) => {
            "This user may not open /dev/infiniband/uverbs*: look at its permissions, and at the container's devices"
        }
        (_, Errno::EPERM | Errno::EACCES) => {
            "The kernel denies it to this user: look at the permissions of /dev/infiniband/*, the container's capabilities \
             (IPC_LOCK) and the cgroup's rdma limits"
        }
        ("ibv_get_device_list", Errno::ENOSYS) => {
            "The kernel has no RDMA support loaded: is ib_uverbs there (lsmod)?"
        }
        (_, Errno::ENODEV | Errno::ENXIO) => {
            "The device was removed: was its driver reloaded or the card reset (dmesg)?"
        }
        (_, Errno::EIO) => "The adapter is in a fatal state: look at dmesg",
        (_, Errno::EMFILE) => "This process has too many files open: raise ulimit -n",
        (_, Errno::EOPNOTSUPP | Errno::ENOSYS) => {
            "The adapter, its driver or the installed libibverbs does not offer this call"
        }
        _ => return None,
    };
    Some(text.into())
}

/// Returns the limit on locked memory in bytes; `None` if it cannot be read.
pub(crate) fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft)
}

/// How to raise the limit on locked memory.
pub(crate) const RAISE_MEMLOCK: &str =
    "set it to unlimited (limits.conf, LimitMEMLOCK=infinity, --ulimit memlock=-1)";

/// Describes the limit on locked memory.
fn memlock_text(limit: Option<u64>) -> String {
    let now = match limit {
        Some(RLIM_INFINITY) => {
            "unlimited here, so look at the adapter's limits (ibv_devinfo -v) and at free memory".into()
        }
        Some(bytes) => format!("{} KiB here: {RAISE_MEMLOCK}", bytes >> 10),
        None => "unknown here".into(),
    };
    format!("The usual cause is the limit on locked memory (ulimit -l), which is {now}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enomem_names_the_limit_and_the_remedy() {
        assert!(
            memlock_text(Some(8 << 20)).contains("ulimit -l), which is 8192 KiB here: set it to unlimited")
        );
        assert!(
            memlock_text(Some(RLIM_INFINITY)).contains("unlimited here, so look at the adapter's limits")
        );
        for call in ["ibv_create_cq", "ibv_create_qp", "ibv_reg_mr"] {
            assert!(verbs(call, Errno::ENOMEM).is_some_and(|t| t.contains("ulimit -l")), "{call}");
        }
    }

    #[test]
    fn the_call_decides_the_hint() {
        let at = |call, errno| verbs(call, errno).unwrap_or_default();
        assert!(at("ibv_modify_qp", Errno::ETIMEDOUT).contains("route"));
        assert!(at("ibv_modify_qp", Errno::EINVAL).contains("GID index"));
        assert!(at("ibv_create_qp", Errno::EINVAL).contains("max_qp_wr"));
        assert!(at("ibv_open_device", Errno::EACCES).contains("uverbs"));
        assert!(at("ibv_create_cq", Errno::EPERM).contains("IPC_LOCK"));
        assert_eq!(verbs("ibv_create_cq", Errno::EAGAIN), None);
    }
}
