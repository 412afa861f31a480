//! Starts worker processes, and ends them with this process.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

use super::{
    control::Channel,
    worker::{COMMAND, Event, Job},
};
use crate::{
    failure::{Context, Failure},
    process,
};
use nccl_net_host::{Call, Watch};

/// A worker process. Dropping it kills the process.
pub(super) struct Worker {
    child: Child,
    pub(super) watch: Watch,
    /// The worker's beat when it last changed, and the time of that change.
    seen: (u64, Instant),
}

impl Worker {
    /// Starts a worker on a connection to its peer. Its events arrive in `events` with `index`;
    /// `None` is the last one.
    pub(super) fn start(
        index: usize,
        job: &Job,
        peer: OwnedFd,
        events: Sender<(usize, Option<Event>)>,
    ) -> Result<Self, Failure> {
        let (ours, theirs) = Channel::pair().tool("make a socket pair")?;
        let mut control = Channel::new(ours, "the worker")?;
        let watch = Watch::new().tool("make a memory file for the current call")?;
        let child = spawn(&job.env, &theirs, &peer, watch.fd()).tool("start a worker process")?;
        drop((theirs, peer)); // else the worker's end would never be seen to close
        let worker = Self { child, watch, seen: (0, Instant::now()) };
        control.send(job)?;
        thread::spawn(move || {
            // A worker that died within a message ends the events like one that closed the
            // connection.
            while let Ok(Some(event)) = control.next::<Event>(None, || Ok(())) {
                if events.send((index, Some(event))).is_err() {
                    return;
                }
            }
            // The receiver ends only after the run.
            let _ = events.send((index, None));
        });
        Ok(worker)
    }

    /// Returns the exit status, once there is one.
    pub(super) fn exited(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().tool("wait for a worker process")
    }

    pub(super) fn kill(&mut self) {
        process::kill(&mut self.child);
    }

    /// Returns the worker's current call, and for how long the beat has not changed.
    pub(super) fn stuck(&mut self) -> (Call, Duration) {
        let (call, beat) = self.watch.read();
        if beat != self.seen.0 {
            self.seen = (beat, Instant::now());
        }
        (call, self.seen.1.elapsed())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    env: &[(String, Option<String>)],
    control: &OwnedFd,
    peer: &OwnedFd,
    watch: &OwnedFd,
) -> io::Result<Child> {
    let fds = [control.as_raw_fd(), peer.as_raw_fd(), watch.as_raw_fd()];
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND);
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for (name, fd) in ["--control", "--peer", "--watch"].iter().zip(fds) {
        command.arg(name).arg(fd.to_string());
    }
    // A plugin's own output must not mix with the table or the JSON.
    command.stdin(Stdio::null()).stdout(io::stderr());
    // SAFETY: between fork and exec only fcntl runs, which is async-signal-safe. Nothing is
    // allocated; the error values hold numbers.
    unsafe {
        command.pre_exec(move || {
            for fd in fds {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        })
    };
    process::ends_with_us(&mut command);
    command.spawn()
}
