//! Refuses calls in a process that was forked from one in which the plugin was initialised.
//!
//! A child has its parent's devices, sockets and queue pairs, and none of its threads. Closing them
//! would break the parent, and a wait for a thread would never end.
//!
//! The marks are statics: `pthread_atfork` passes no argument to its handler, and a fork concerns
//! the process, not one instance of the plugin.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Id of the process that called [`watch`]; 0 if none has.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// In a child of that process its parent's id; 0 in any other process.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Marks the children of this process from now on.
pub(crate) fn watch() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut failed = 0;
    ONCE.call_once(|| {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler takes nothing, touches two atomics only, and is in a file that is
        // never unloaded.
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

/// Returns whether this process is a child of one that has called [`watch`]: one load.
#[inline(always)]
pub(crate) fn is_child() -> bool {
    PARENT.load(Ordering::Relaxed) != 0
}

/// Returns an error in a child of a process that has called [`watch`].
#[inline(always)]
pub(crate) fn check() -> Result<()> {
    if is_child() { Err(refusal(PARENT.load(Ordering::Relaxed))) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn refusal(parent: u32) -> Error {
    Error::Usage(format!(
        "this process was forked from process {parent} after NCCL was initialised there, and has neither the plugin's threads nor \
         a right to its parent's adapters: initialise NCCL after the fork, or start worker processes by spawn"
    ))
}
