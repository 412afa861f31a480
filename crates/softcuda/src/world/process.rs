//! The process of a rank.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::rank::Job;

/// Lines of stderr that a report has.
const LAST_LINES: usize = 3;

/// Makes the kernel kill the child when this process ends.
pub fn ends_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl and getppid are called, which are
    // async-signal-safe. No memory is allocated; the error values hold numbers.
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

/// Makes the child see another name of its host. Needs CAP_SYS_ADMIN.
pub fn on_host(command: &mut Command, name: &str) {
    let name = name.as_bytes().to_owned();
    // SAFETY: between fork and exec only unshare and sethostname are called, which are
    // async-signal-safe. The name was made before.
    unsafe {
        command.pre_exec(move || {
            let done = libc::unshare(libc::CLONE_NEWUTS) == 0
                && libc::sethostname(name.as_ptr().cast(), name.len()) == 0;
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    };
}

/// A process, which is killed when it is dropped.
pub(super) struct Process {
    child: Child,
    stderr: PathBuf,
    may_die: bool,
}

impl Process {
    /// Starts a rank.
    pub(super) fn start(
        program: &Path,
        job: &Job,
        environment: &BTreeMap<String, String>,
        host_name: Option<&str>,
        scratch: &Path,
    ) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let input = scratch.join(format!("job-{number}"));
        fs::write(&input, serde_json::to_vec(job)?)?;
        let stderr = scratch.join(format!("stderr-{number}"));
        let file = fs::File::create(&stderr)?;
        let mut command = Command::new(program);
        command.arg(&input).env_clear().envs(environment);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        if let Some(name) = host_name {
            on_host(&mut command, name);
        }
        ends_with_us(&mut command);
        Ok(Self { child: command.spawn()?, stderr, may_die: job.killed == Some(job.rank) })
    }

    /// Returns whether the job makes the process kill itself.
    pub(super) fn may_die(&self) -> bool {
        self.may_die
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the status of a process that has ended.
    pub(super) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Returns the last lines that the process has written.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read(&self.stderr).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
    }

    /// Kills the process if it runs.
    pub(super) fn kill(&mut self) {
        // Both calls fail only if the process has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
