//! The client's background thread, and the handle of its users.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, MutexGuard};

use super::conn_id::ConnId;
use super::fault_log::{Change, FaultLog, Human};
use super::file::{self, HintFile};
use super::hint::{Addresses, LatestHint};
use super::link::{self, Link, State};
use super::options::Options;
use super::table::{Sum, TROUBLES, Table};
use crate::error::{Error, Result};

/// How long the thread waits for the agent's answers to the last DEREGISTERs.
const LINGER: Duration = Duration::from_secs(1);

/// The thread as its users hold it. It ends when the last one is dropped.
#[derive(Debug)]
pub(super) struct Client {
    queue: Arc<ClientQueue>,
}

/// What the thread and its users share.
#[derive(Debug)]
struct ClientQueue {
    commands: Mutex<Vec<Command>>,
    /// The present fault, as it was logged.
    fault: Mutex<Option<String>>,
    wake: EventFd,
}

#[derive(Debug)]
enum Command {
    Open(Arc<ConnId>, Addresses, Arc<LatestHint>),
    Close(u32),
    Stop,
}

impl Client {
    pub(super) fn start(options: Options) -> Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake =
            EventFd::from_flags(flags).map_err(|e| Error::io("eventfd of the agent's client", e.into()))?;
        let queue = Arc::new(ClientQueue { commands: Mutex::default(), fault: Mutex::default(), wake });
        let worker = Worker::new(Arc::clone(&queue), options);
        thread::Builder::new()
            .name("mpib-hints".into())
            .spawn(move || worker.run())
            .map_err(|e| Error::io("starting the thread of the agent's client", e))?;
        Ok(Self { queue })
    }

    pub(super) fn open(&self, id: Arc<ConnId>, addresses: Addresses, hint: Arc<LatestHint>) {
        self.queue.submit(Command::Open(id, addresses, hint));
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.queue.fault().clone()
    }

    pub(super) fn close(&self, id: u32) {
        self.queue.submit(Command::Close(id));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Not joined: the agent may be slow, and the file is never unmapped.
        self.queue.submit(Command::Stop);
    }
}

impl ClientQueue {
    fn submit(&self, command: Command) {
        self.commands.lock().push(command);
        // Fails only if so many are pending that the thread wakes anyway.
        let _ = self.wake.write(1);
    }

    fn commands(&self) -> Vec<Command> {
        std::mem::take(&mut *self.commands.lock())
    }

    fn fault(&self) -> MutexGuard<'_, Option<String>> {
        self.fault.lock()
    }
}

/// The thread's own state.
struct Worker {
    queue: Arc<ClientQueue>,
    options: Options,
    table: Table,
    link: Link,
    file: HintFile,
    read_at: Instant,
    /// Set when the last user is dropped: until when the thread lingers.
    until: Option<Instant>,
    link_log: FaultLog<link::Fault>,
    file_log: FaultLog<file::Fault>,
    trouble_logs: [FaultLog<Sum>; TROUBLES],
}

impl Worker {
    fn new(queue: Arc<ClientQueue>, options: Options) -> Self {
        let gap = options.report_gap;
        Self {
            queue,
            table: Table::default(),
            link: Link::new(&options),
            file: HintFile::new(),
            read_at: Instant::now(),
            until: None,
            link_log: FaultLog::new(gap),
            file_log: FaultLog::new(gap),
            trouble_logs: std::array::from_fn(|_| FaultLog::new(gap)),
            options,
        }
    }

    fn run(mut self) {
        loop {
            for command in self.queue.commands() {
                match command {
                    Command::Open(id, addresses, hint) => self.table.open(id, addresses, hint),
                    Command::Close(id) => self.table.close(id),
                    Command::Stop => self.until = Some(Instant::now() + LINGER),
                }
            }
            let now = Instant::now();
            if self.link.step(now, &mut self.table, &self.options) {
                // A new slot is read at once.
                self.read_at = now;
            }
            if let Some(until) = self.until {
                if self.table.is_empty() || self.link.socket().is_none() || until <= now {
                    return self.link.close();
                }
            } else {
                self.report_link(now);
                if self.read_at <= now {
                    self.read_hints(now);
                    self.read_at = now + self.options.poll;
                }
            }
            if let Err(e) = self.wait() {
                return tracing::warn!(
                    target: "net",
                    "the agent's client stops: poll: {e}; connections keep their last good hint"
                );
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Result<(), Errno> {
        let at = self.until.unwrap_or(self.read_at);
        let at = self.link.deadline().map_or(at, |d| d.min(at));
        let timeout = at.saturating_duration_since(Instant::now());
        let wake = || PollFd::new(self.queue.wake.as_fd(), PollFlags::POLLIN);
        let mut fds = [wake(), wake()];
        let used = match self.link.socket() {
            Some((socket, more)) => {
                let flags = if more { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
                fds[1] = PollFd::new(socket.as_fd(), flags);
                2
            }
            None => 1,
        };
        match ppoll(&mut fds[..used], Some(timeout.into()), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        if fds[0].any() == Some(true) {
            // An error means that the counter is 0 already.
            let _ = self.queue.wake.read();
        }
        Ok(())
    }

    fn read_hints(&mut self, now: Instant) {
        let fault = match self.file.read(&self.options) {
            Ok(slots) => {
                self.table.publish(slots, now);
                None
            }
            Err(fault) => {
                self.table.unreadable(now);
                Some(fault)
            }
        };
        // Without an agent only that is reported, not its file and slots.
        if !matches!(self.link.state(), State::Good) {
            return;
        }
        let readable = fault.is_none();
        self.report_file(now, fault);
        if readable && self.table.all_answered() {
            self.report_troubles(now);
        }
    }

    fn report_link(&mut self, now: Instant) {
        let fault = match self.link.state() {
            State::Unknown => return,
            State::Good => None,
            State::Bad(fault, since) => Some((fault, *since)),
        };
        let Some(change) = self.link_log.update(now, fault) else { return };
        let what = fault.map(|(fault, _)| fault.to_string()).unwrap_or_default();
        let socket = self.options.socket.display().to_string();
        self.log_change("agent", &socket, &what, "the agent answers", change);
    }

    fn report_file(&mut self, now: Instant, fault: Option<file::Fault>) {
        let Some(change) = self.file_log.update(now, fault.as_ref().map(|f| (f, now))) else { return };
        let what = fault.map(|fault| fault.to_string()).unwrap_or_default();
        let path = self.options.file.display().to_string();
        self.log_change("hint file", &path, &what, "the hint file is good", change);
    }

    fn report_troubles(&mut self, now: Instant) {
        const GOOD: [&str; TROUBLES] = [
            "every connection has a slot",
            "no slot stays half-written",
            "every slot has its connection's addresses",
        ];
        for (kind, sum) in self.table.troubles(now, &self.options).into_iter().enumerate() {
            let change = self.trouble_logs[kind].update(now, sum.as_ref().map(|sum| (sum, sum.since)));
            let Some(change) = change else { continue };
            // The end of a fault is reported only after a fault.
            if matches!(change, Change::Good { after: None }) {
                continue;
            }
            let what = sum.map(|sum| sum.to_string()).unwrap_or_default();
            let (name, path) = match kind {
                0 => ("agent", &self.options.socket),
                _ => ("hint file", &self.options.file),
            };
            self.log_change(name, &path.display().to_string(), &what, GOOD[kind], change);
        }
    }

    fn log_change(&self, name: &str, path: &str, what: &str, good: &str, change: Change) {
        let (all, hinted) = self.table.hinted();
        let fault = matches!(change, Change::Fault { .. });
        *self.queue.fault() = fault.then(|| format!("{name} {path}: {what}"));
        match change {
            Change::Fault { lasting, instead } => {
                let time = Human(lasting);
                let time = match (instead, lasting.as_millis()) {
                    (true, _) => format!("something has been wrong for {time}, now this: "),
                    (false, 0..100) => String::new(),
                    (false, _) => format!("for {time}: "),
                };
                tracing::warn!(
                    target: "net",
                    "{name} {path}: {time}{what}. Transfers go on: {hinted} of {all} connections with their last good hint, \
                     the others by MPIB_SPLIT; this is tried again until it is good"
                );
            }
            Change::Good { after: Some(time) } => {
                tracing::info!(target: "net", "{name} {path}: {good} again, after {}", Human(time));
            }
            Change::Good { after: None } => tracing::info!(target: "net", "{name} {path}: {good}"),
        }
    }
}
