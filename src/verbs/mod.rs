//! Owners of verbs objects. Each keeps its parents alive, so objects are destroyed in the order
//! that libibverbs requires.
//!
//! Nothing here knows of connections or messages. `library` finds libibverbs' functions.

mod context;
mod cq;
mod event;
mod library;
mod memory;
mod mlx5dv;
mod port;
mod qp;
mod receives;
mod region;
mod sends;
mod shim;

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use nix::errno::Errno;

use crate::error::{Error, Result};

pub(crate) use context::{Context, DeviceLimits, can_relax_ordering, open_all, survive_forks};
pub(crate) use cq::Kind;
pub use cq::{Batch, Completion, Cq};
pub(crate) use event::{About, AsyncEvent};
pub(crate) use memory::{Keys, Mr, MrOptions, Pd, keep_dmabuf};
pub(crate) use port::{Gid, Port};
pub use qp::{Access, Fresh, Path, Qp, QpOptions, Ready, Timing};
pub use receives::Blanks;
pub(crate) use receives::Srq;
pub use region::Region;
pub(crate) use region::{Pages, Words, page_size};
pub use sends::{Chain, Local, Remote};
pub(crate) use sends::{ImmWrite, WRITE, WRITE_WITH_IMM, WordsWrite};

/// Makes an object by a call that returns a pointer, and sets `errno` if that is NULL. bnxt_re does not
/// where its library finds a limit, so an earlier errno must not be taken for the reason.
fn make<T>(
    call: &'static str,
    on: impl FnOnce() -> String,
    make: impl FnOnce() -> *mut T,
) -> Result<NonNull<T>> {
    make_by(on, || (call, make()))
}

/// As [`make`], by a call that names itself.
fn make_by<T>(
    on: impl FnOnce() -> String,
    make: impl FnOnce() -> (&'static str, *mut T),
) -> Result<NonNull<T>> {
    Errno::clear();
    let (call, made) = make();
    NonNull::new(made).ok_or_else(|| {
        let source = io::Error::last_os_error();
        Error::verbs(call, source, on())
    })
}

/// Int-returning calls return the errno itself; a few return -1 and set `errno`.
#[inline]
fn zero(call: &'static str, rc: c_int, on: impl FnOnce() -> String) -> Result<()> {
    if rc == 0 { Ok(()) } else { Err(failed(call, rc, on)) }
}

#[cold]
fn failed(call: &'static str, rc: c_int, on: impl FnOnce() -> String) -> Error {
    let source = match rc {
        -1 => io::Error::last_os_error(),
        // ibv_post_send of some providers returns a negative errno.
        e => io::Error::from_raw_os_error(e.saturating_abs()),
    };
    Error::verbs(call, source, on())
}

/// Returns whether a post with this result is to be tried again soon (EAGAIN). Some providers return
/// a negative errno.
fn is_put_off(rc: c_int) -> bool {
    rc.saturating_abs() == libc::EAGAIN
}

/// Returns whether the error is that of every call after a device was removed.
fn is_removal(source: &io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::EIO | libc::ENODEV))
}

/// Drops cannot return errors, so they log them.
fn log_failure(call: &'static str, on: &str, rc: c_int) {
    match zero(call, rc, || format!("while releasing it on {on}")) {
        Ok(()) => {}
        // The kernel has released the objects of a removed device.
        Err(Error::Verbs { source, .. }) if is_removal(&source) => {}
        Err(e) => tracing::warn!(target: "net", "{e}"),
    }
}
