//! The clock of the fabric: CLOCK_MONOTONIC, which all processes of a machine share.

/// Returns the time in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (sec, nsec) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    sec.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nsec.unwrap_or(0))
}
