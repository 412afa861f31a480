//! Whether an adapter has shared receive queues that work.
//!
//! ionic, irdma (E810), erdma and others have none. There each queue pair has its own receive
//! queue, which `transport::recv::receives` fills.

use nix::errno::Errno;

use super::nic::Nic;
use crate::error::Error;
use crate::verbs::{DeviceLimits, Srq};

impl Nic {
    /// Whether the adapter has shared receive queues that work, as far as is known. Their creation
    /// is tried once. The error is the reason.
    pub fn has_srq(&self) -> Result<(), &str> {
        if let Some(why) = self.srq_failed.get() {
            return Err(why);
        }
        let found = self.srq.get_or_init(|| probe(&self.limits, || Srq::new(&self.pd(), 1)));
        found.as_ref().copied().map_err(String::as_str)
    }

    /// Notes why receives in the adapter's shared queues do not work. Returns whether that is new.
    pub fn set_srq_failed(&self, why: &str) -> bool {
        self.srq_failed.set(why.to_owned()).is_ok()
    }

    /// Describes the receive queues of the adapter.
    pub fn receive_queues(&self) -> String {
        describe_queues(self.adapter(), self.has_srq().err())
    }
}

/// Describes the receive queues of adapters, with the reason if they have no shared ones.
pub(super) fn describe_queues(adapters: &str, lacks: Option<&str>) -> String {
    match lacks {
        None => format!("shared receive queues on {adapters}: the queue pairs of a rail receive from one"),
        Some(why) => {
            format!("no shared receive queues on {adapters} ({why}): each queue pair receives from its own")
        }
    }
}

/// Some drivers report a limit although their library has no calls for SRQs. Any other failure is
/// that of the moment: a connection then reports it.
fn probe(limits: &DeviceLimits, create: impl FnOnce() -> crate::error::Result<Srq>) -> Result<(), String> {
    if limits.max_srq == 0 || limits.max_srq_wr == 0 {
        return Err("max_srq of ibv_devinfo -v is 0".into());
    }
    match create() {
        Err(Error::Verbs { source, .. })
            if matches!(
                Errno::from_raw(source.raw_os_error().unwrap_or(0)),
                Errno::EOPNOTSUPP | Errno::ENOSYS
            ) =>
        {
            Err(format!("ibv_create_srq: {source}"))
        }
        _ => Ok(()),
    }
}
