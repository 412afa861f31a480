//! Rails whose adapter does not reach itself.
//!
//! A flush reads over a queue pair that is connected to itself. Some virtual functions and ports
//! loop nothing back. Data does not need that, and most GPUs need no flush, so such a rail is kept
//! without one. An iflush that needs the rail is an error.

use std::time::Instant;

use crate::device::Nic;
use crate::error::Result;
use crate::transport::Settings;
use crate::warned::Subject;

/// Reports that a rail is kept without flushes. Connections of the next minute do not try them on
/// this port, unless an event of a port comes, or a fault of the port may be the cause.
///
/// # Errors
/// `MPIB_STRICT=1`: the rail must not be kept.
pub(crate) fn keep_without_flush(settings: &Settings, nic: &Nic, why: &str) -> Result<()> {
    let name = nic.name();
    let what = format!(
        "{name} does not reach itself, so it cannot flush: {why}; connections use it, and iflush of GPU memory that it \
         has written is an error. If no GPU needs flushes (NVIDIA from Hopper on), set MPIB_FLUSH=0; otherwise allow \
         loopback (hairpin) on the adapter and its switch port, or use another adapter"
    );
    let what = settings.config.degraded(what)?;
    nic.health().loopback_failed(Instant::now(), why);
    if settings.process.warned.once(Subject::NoLoopback(name.to_owned())) {
        tracing::warn!(target: "net", "{what}");
    }
    Ok(())
}

/// Returns why earlier connections could not flush on a port. With `MPIB_STRICT=1` every connection
/// tries, because none goes without.
pub(crate) fn known_failure(settings: &Settings, nic: &Nic) -> Option<String> {
    nic.health().no_loopback(Instant::now()).filter(|_| !settings.config.strict)
}
