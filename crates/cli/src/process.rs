//! Child processes: their end with this process, and the words for how they ended.

use std::{
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
};

/// Makes the kernel kill the child when this process ends.
pub(crate) fn ends_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl and getppid run, which are async-signal-safe.
    // Nothing is allocated; the error values hold numbers.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the signal was requested.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    };
}

/// Describes how a process ended.
pub(crate) fn ending(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("exited with status {}", status.code().unwrap_or(-1));
    };
    let name = match signal {
        libc::SIGABRT => " (SIGABRT: abort or a failed assertion)",
        libc::SIGBUS => " (SIGBUS: a mapped file or memory was cut off)",
        libc::SIGFPE => " (SIGFPE: a division by zero)",
        libc::SIGILL => " (SIGILL: an instruction this processor does not have)",
        libc::SIGKILL => " (SIGKILL: by hand, or for lack of memory; see dmesg)",
        libc::SIGSEGV => " (SIGSEGV: a bad memory access)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    };
    let core = if status.core_dumped() { ", core dumped" } else { "" };
    format!("died of signal {signal}{name}{core}")
}
