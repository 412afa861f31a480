//! Whether this process was forked from one in which the plugin was initialised.
//!
//! A child has its parent's devices, sockets and queue pairs, and none of its threads. What it closed would end under the parent's
//! hands, and what it waited for would never come.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// The process that [`watch`] was called in; 0 if none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The same in a child of it; 0 elsewhere.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// From now on children of this process know that they are.
pub(crate) fn watch() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut failed = 0;
    ONCE.call_once(|| {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler takes nothing, touches two atomics only, and is in a file that is never unloaded.
        failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    match failed {
        0 => Ok(()),
        errno => Err(Error::io("pthread_atfork", std::io::Error::from_raw_os_error(errno))),
    }
}

extern "C" fn in_child() {
    PARENT.store(OWNER.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// An error in a child of a process that has called [`watch`]: one load elsewhere.
#[inline]
pub(crate) fn check() -> Result<()> {
    match PARENT.load(Ordering::Relaxed) {
        0 => Ok(()),
        parent => Err(refusal(parent)),
    }
}

#[cold]
fn refusal(parent: u32) -> Error {
    Error::Usage(format!(
        "this process was forked from process {parent} after NCCL was initialised there, and has neither the plugin's threads nor \
         a right to its parent's adapters: initialise NCCL after the fork, or start worker processes by spawn"
    ))
}
