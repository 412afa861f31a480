//! Calls of libibverbs that fail, take time or hang on command.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::names;
use crate::config::call::{Call, nanoseconds, time};
use crate::shm::layout::CallShared;

impl Call {
    /// Fails the next call of a process with this errno. 0 is success: the call can still
    /// [take time](Failure::takes).
    pub const fn fails(self, errno: c_int) -> Failure {
        Failure { call: self, errno, times: 1, after: 0, takes_ns: 0 }
    }
}

/// How the next calls of a process fail, or how long they take, for [`fail`](crate::fail).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub(crate) call: Call,
    errno: c_int,
    times: u32,
    after: u64,
    takes_ns: u64,
}

impl Failure {
    /// Fails so many calls; `u32::MAX` all of them, 0 none any more.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Lets so many calls pass before.
    #[must_use]
    pub const fn after(mut self, calls: u64) -> Self {
        self.after = calls;
        self
    }

    /// Lets each failing call take this long. [`Duration::MAX`]: it hangs until
    /// [`heal`](crate::heal). Posts and polls take no time.
    #[must_use]
    pub fn takes(mut self, time: Duration) -> Self {
        self.takes_ns = nanoseconds(time);
        self
    }

    /// Stores it for one process of the device, in place of the one before. The fabric is locked.
    pub(super) fn arm(&self, calls: &[CallShared]) {
        let Some(slot) = calls.get(self.call as usize) else { return };
        slot.errno.store(self.errno.cast_unsigned(), Relaxed);
        slot.after.store(self.after, Relaxed);
        slot.takes_ns.store(if self.call.is_command() { self.takes_ns } else { 0 }, Relaxed);
        slot.times.store(self.times, Relaxed);
    }
}

/// Counts a call. Returns its errno, which may be 0, and its time if it is to fail. The fabric is
/// locked.
pub(crate) fn next(slot: &CallShared) -> Option<(c_int, u64)> {
    let (times, after) = (slot.times.load(Relaxed), slot.after.load(Relaxed));
    if times == 0 {
        return None;
    }
    if after > 0 {
        slot.after.store(after - 1, Relaxed);
        return None;
    }
    if times < u32::MAX {
        slot.times.store(times - 1, Relaxed);
    }
    Some((slot.errno.load(Relaxed).cast_signed(), slot.takes_ns.load(Relaxed)))
}

/// Returns how many kinds of calls are to fail.
pub(crate) fn armed(calls: &[CallShared]) -> u32 {
    calls.iter().map(|slot| u32::from(slot.times.load(Relaxed) > 0)).sum()
}

/// Parses `errno=CALL:NAME[:COUNT]` and `slow=CALL:TIME[:COUNT]` of a script. COUNT 0 ends what was
/// set for the call.
pub(super) fn failures(
    fault: &str,
    text: &str,
    at: Option<u64>,
    takes: Option<&str>,
) -> Result<Vec<Failure>, String> {
    let mut words = text.split(':').map(str::trim);
    let (Some(call), Some(how)) = (words.next(), words.next()) else {
        return Err(format!(
            "expected CALL:{}, or CALL:…:COUNT",
            if fault == "slow" { "TIME" } else { "ERRNO" }
        ));
    };
    let times = match (words.next(), words.next()) {
        (None, _) => 1,
        (Some("always"), None) => u32::MAX,
        (Some(count), None) => count.parse().map_err(|_| "expected a number of calls, or always")?,
        (Some(_), Some(_)) => return Err(String::from("expected no more than CALL:…:COUNT")),
    };
    let (errno, takes_ns) = match (fault, takes) {
        ("slow", None) => (0, time(how)?),
        ("slow", Some(_)) => return Err(String::from("takes= does not apply to slow")),
        (_, takes) => (names::errno(how)?, takes.map_or(Ok(0), time)?),
    };
    let calls = Call::parse(call)?;
    if takes_ns > 0 && !calls.iter().all(|call| call.is_command()) {
        return Err(String::from("posts and polls take no time"));
    }
    let after = at.map_or(0, |at| at - 1);
    Ok(calls.into_iter().map(|call| Failure { call, errno, times, after, takes_ns }).collect())
}
