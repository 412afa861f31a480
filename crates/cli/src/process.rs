//! Child processes: their environment, their end with this process, and the words for how they ended.

use std::{
    env,
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use nccl_net_mpib_agent_iface::environment::{WITHOUT_HOST, is_setting};

/// How much of a child's output is kept.
const KEPT: usize = 64 << 10;
/// How long to read its output after its end.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest wait for a killed child: one in a driver's call that hangs does not end.
const KILLED: Duration = Duration::from_secs(5);

/// Makes the kernel kill the child when this process ends.
pub fn ends_with_us(command: &mut Command) {
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

/// Makes the libibverbs of the child the one in this folder. The child has none of this shell's
/// settings but those in `kept`, and uses nothing of this host.
pub fn on_softverbs(command: &mut Command, folder: &Path, kept: &[&str]) {
    let is_removed = |name: &str| is_setting(name) && !kept.contains(&name);
    for (name, _) in env::vars_os().filter(|(name, _)| is_removed(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.envs(WITHOUT_HOST);
    let mut path = folder.as_os_str().to_owned();
    if let Some(more) = env::var_os("LD_LIBRARY_PATH").filter(|more| !more.is_empty()) {
        path.push(":");
        path.push(more);
    }
    command.env("LD_LIBRARY_PATH", path);
}

/// Waits for a child; `None`: the limit passed, and the child was killed.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let ended = poll(child, limit)?;
    if ended.is_none() {
        kill(child);
    }
    Ok(ended)
}

/// Kills a child, and waits a moment for its end.
pub fn kill(child: &mut Child) {
    // Both calls fail only if the child has been waited for already.
    let _ = child.kill();
    let _ = poll(child, KILLED);
}

fn poll(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Describes how a process ended.
pub fn ending(status: ExitStatus) -> String {
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

/// The last output of a child. A thread reads it to its end: a child may print more than a pipe holds,
/// or without end.
#[derive(Debug)]
pub struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

impl Tail {
    /// Reads from a pipe until no process can write to it any more.
    pub fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (sender, end) = channel();
        let shared = Arc::clone(&kept);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut piece) {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..n]);
                if kept.len() > 2 * KEPT {
                    let old = kept.len() - KEPT;
                    kept.drain(..old);
                }
            }
            // The receiver may have stopped waiting.
            let _ = sender.send(());
        });
        Self { kept, end }
    }

    /// Returns it after the child's end. A process that the child started may hold the pipe open.
    pub fn text(&self) -> String {
        let _ = self.end.recv_timeout(DRAIN);
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}
