//! Owners of verbs objects. Each keeps its parents alive, so objects die in the order that libibverbs wants.
//!
//! Nothing here knows of connections or messages. Only symbols of `IBVERBS_1.1` or older are linked; newer
//! ones are looked up at run time in `shim`.

mod chain;
mod context;
mod cq;
mod memory;
mod qp;
mod shim;
mod srq;

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;

pub use chain::{Chain, Local, Remote};
pub use context::{Context, DeviceLimits, Gid, GidKind, LinkLayer, Port, open_all};
pub use cq::{Completion, Cq, Kind};
pub use memory::{Mr, Pd, Region};
pub use qp::{Fresh, Path, Qp, QpOptions, Ready, Timing};
pub use srq::Srq;

/// A verbs call that failed: its C name, the device, and the reason.
#[derive(Debug)]
pub struct Fault {
    /// C name of the call.
    pub call: &'static str,
    /// Device, and what else tells the place.
    pub on: String,
    /// `errno`, as the call returned or set it.
    pub source: io::Error,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.call, self.on, self.source)?;
        match self.source.raw_os_error() {
            Some(libc::ENOMEM) => write!(
                f,
                "; where memory is free, the limit on locked memory (ulimit -l) or the device's own limit is reached"
            ),
            Some(libc::EPERM | libc::EACCES) => write!(f, "; may this user open /dev/infiniband/uverbs*?"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Pointer-returning calls set `errno`.
fn non_null<T>(call: &'static str, on: impl Into<String>, p: *mut T) -> Result<NonNull<T>, Fault> {
    NonNull::new(p).ok_or_else(|| Fault { call, on: on.into(), source: io::Error::last_os_error() })
}

/// Int-returning calls return the errno itself; a few return -1 and set `errno`.
fn zero(call: &'static str, on: &str, rc: c_int) -> Result<(), Fault> {
    let source = match rc {
        0 => return Ok(()),
        -1 => io::Error::last_os_error(),
        // ibv_post_send of some providers returns a negative errno.
        e => io::Error::from_raw_os_error(e.saturating_abs()),
    };
    Err(Fault { call, on: on.to_owned(), source })
}

/// Drops cannot fail; they can say so.
fn gone(call: &'static str, on: &str, rc: c_int) {
    if let Err(fault) = zero(call, on, rc) {
        tracing::warn!("{fault} (while releasing it)");
    }
}
