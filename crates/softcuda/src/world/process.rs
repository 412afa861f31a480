//! The process of a rank.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::rank::Job;

/// Lines of stderr that a report has.
const LAST_LINES: usize = 3;

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

    /// Kills the process if it runs, and removes its files in shared memory: NCCL keeps the name of
    /// a file there until its users have attached, and the name outlives a killed process.
    pub(super) fn kill(&mut self) {
        // A process that has been waited for has no number any more.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap_or_default();
        // Both calls fail only if the process has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in shared_files(&maps) {
            // Another rank may have removed the file.
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns NCCL's files in shared memory that a process has mapped and that still have a name.
fn shared_files(maps: &str) -> BTreeSet<&str> {
    let paths = maps.lines().filter_map(|line| line.find("/dev/shm/nccl-").map(|at| &line[at..]));
    paths.filter(|path| !path.ends_with(" (deleted)")).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_nccl_that_have_a_name_are_left_over() {
        let maps = "\
            7f00-7f10 rw-s 00000000 00:19 11  /dev/shm/nccl-abc123\n\
            7f20-7f30 rw-s 00001000 00:19 11  /dev/shm/nccl-abc123\n\
            7f40-7f50 rw-s 00000000 00:19 12  /dev/shm/nccl-def456 (deleted)\n\
            7f60-7f70 rw-s 00000000 00:19 13  /dev/shm/softverbs-0/fabric\n\
            7f80-7f90 rw-p 00000000 00:00 0\n";
        assert_eq!(shared_files(maps), BTreeSet::from(["/dev/shm/nccl-abc123"]));
    }
}
