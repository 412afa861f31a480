//! The client's background thread, and the handle of its users.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, MutexGuard};

use super::Options;
use super::fault_log::{Change, FaultLog, Human};
use super::file::{self, HintFile};
use super::hint::{Addresses, LatestHint};
use super::link::{self, Link, State};
use super::ports::{PortScales, Scales};
use super::table::{ConnId, Sum, TROUBLES, Table};
use crate::background;
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
    /// Whether the thread has ended.
    ended: AtomicBool,
}

#[derive(Debug)]
enum Command {
    Open(Arc<ConnId>, Addresses, Arc<LatestHint>),
    Close(u32),
    Attach,
    Stop,
}

impl Client {
    pub(super) fn start(options: Options, scales: Arc<dyn PortScales>) -> Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake =
            EventFd::from_flags(flags).map_err(|e| Error::io("eventfd of the agent's client", e.into()))?;
        let queue = Arc::new(ClientQueue {
            commands: Mutex::default(),
            fault: Mutex::default(),
            wake,
            ended: AtomicBool::new(false),
        });
        let worker = Worker::new(Arc::clone(&queue), options, scales);
        let woken = Arc::clone(&queue);
        let end = End(Arc::clone(&queue));
        let body = move || {
            let _end = end;
            worker.run();
        };
        background::spawn("mpib-hints", move || woken.wake(), body)
            .map_err(|e| Error::io("starting the thread of the agent's client", e))?;
        Ok(Self { queue })
    }

    pub(super) fn open(&self, id: Arc<ConnId>, addresses: Addresses, hint: Arc<LatestHint>) {
        self.queue.submit(Command::Open(id, addresses, hint));
    }

    /// Connects even without a connection to register, for the scales of ports.
    pub(super) fn attach(&self) {
        self.queue.submit(Command::Attach);
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.queue.fault().clone()
    }

    /// Returns whether the thread has not ended by itself.
    pub(super) fn is_alive(&self) -> bool {
        !self.queue.ended.load(Ordering::Acquire)
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
        self.wake();
    }

    fn wake(&self) {
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

/// Marks the end of the thread. After a panic its connections keep their last hint, and new ones get
/// another thread.
struct End(Arc<ClientQueue>);

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            let what =
                "its thread in this process has ended by a panic; connections keep their last good hint";
            *self.0.fault() = Some(format!("agent: {what}"));
        }
        self.0.ended.store(true, Ordering::Release);
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
    scales: Scales,
    /// What applies the scales.
    target: Arc<dyn PortScales>,
    link_log: FaultLog<link::Fault>,
    file_log: FaultLog<file::Fault>,
    trouble_logs: [FaultLog<Sum>; TROUBLES],
    /// The places that were last logged as not used.
    skipped: Vec<(PathBuf, String)>,
    /// Whether the log has said that hints come from a memory file.
    in_memory: bool,
}

impl Worker {
    fn new(queue: Arc<ClientQueue>, options: Options, target: Arc<dyn PortScales>) -> Self {
        let gap = options.report_gap;
        Self {
            queue,
            table: Table::default(),
            link: Link::new(&options),
            file: HintFile::new(options.trust()),
            read_at: Instant::now(),
            until: None,
            scales: Scales::new(),
            target,
            skipped: Vec::new(),
            in_memory: false,
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
                    Command::Attach => self.table.attach(),
                    Command::Stop => self.until = Some(Instant::now() + LINGER),
                }
            }
            if background::is_exiting() {
                return;
            }
            let now = Instant::now();
            if self.link.step(now, &mut self.table, &self.options) {
                // A new slot is read at once.
                self.read_at = now;
            }
            self.apply_scales();
            self.table.sweep();
            if let Some(until) = self.until {
                if self.table.is_empty() || self.link.socket().is_none() || until <= now {
                    return self.link.close();
                }
            } else {
                self.report_link(now);
                self.read_hints(now);
            }
            if let Err(e) = self.wait() {
                return tracing::warn!(
                    target: "net",
                    "the agent's client stops: poll: {e}; connections keep their last good hint"
                );
            }
        }
    }

    /// Returns when to go on even if no event comes. With a memory file that is never.
    fn deadline(&self) -> Option<Instant> {
        let read = self.table.reads_file().then_some(self.read_at);
        let work = if self.until.is_some() { self.until } else { read };
        let logs = [self.link_log.due(), self.file_log.due()];
        let logs = logs.into_iter().chain(self.trouble_logs.iter().map(FaultLog::due));
        // Lines that nothing is left to say of are not due.
        let now = Instant::now();
        let logs = logs.flatten().filter(|due| self.until.is_none() && *due > now);
        [work, self.link.deadline(&self.table)].into_iter().flatten().chain(logs).min()
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Result<(), Errno> {
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
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
        match ppoll(&mut fds[..used], timeout.map(Into::into), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        if fds[0].any() == Some(true) {
            // An error means that the counter is 0 already.
            let _ = self.queue.wake.read();
        }
        Ok(())
    }

    /// Applies the scales of ports, if the agent has changed them.
    fn apply_scales(&mut self) {
        if let Some(memory) = self.link.changed_ports() {
            self.scales.update(&memory, &self.agent_name(), &*self.target);
        }
    }

    /// Reads the hint file if a connection's slot is in it and the time has come, and reports what
    /// is wrong with slots.
    fn read_hints(&mut self, now: Instant) {
        let mut readable = true;
        if self.table.reads_file() {
            if now < self.read_at {
                return;
            }
            self.read_at = now + self.options.poll;
            readable = self.read_file(now);
        }
        self.report_memory();
        // Without an agent only that is reported, not its file and slots.
        if readable && matches!(self.link.state(), State::Good) && self.table.all_answered() {
            self.report_troubles(now);
        }
    }

    /// Reads the hint file. Returns whether that was possible.
    fn read_file(&mut self, now: Instant) -> bool {
        self.file.set_paths(self.options.files_of(self.link.path()));
        let fault = match self.file.read() {
            Ok(slots) => {
                self.table.publish(slots, now);
                None
            }
            Err(fault) => {
                self.table.unreadable(now);
                Some(fault)
            }
        };
        let readable = fault.is_none();
        if matches!(self.link.state(), State::Good) {
            self.report_file(now, fault);
        }
        readable
    }

    /// Names the agent: by its socket, or by all places of the socket if it was never found.
    fn agent_name(&self) -> String {
        self.link.path().map_or_else(|| self.options.sockets_text(), |path| path.display().to_string())
    }

    /// Logs once that hints come from a memory file.
    fn report_memory(&mut self) {
        let in_memory = self.table.reads_memory();
        if in_memory && !self.in_memory {
            tracing::info!(
                target: "net",
                "agent {}: has passed a memory file; a hint takes effect at the next message",
                self.agent_name()
            );
        }
        self.in_memory = in_memory;
    }

    /// Logs the places that are not used because of what is there, once each.
    fn report_skipped(&mut self) {
        let skipped = self.link.skipped();
        if self.options.sockets.len() > 1 {
            for (path, why) in skipped.iter().filter(|place| !self.skipped.contains(place)) {
                tracing::warn!(target: "net", "agent {}: not used: {why}", path.display());
            }
        }
        self.skipped = skipped.to_vec();
    }

    fn report_link(&mut self, now: Instant) {
        self.report_skipped();
        if self.table.is_empty() && !matches!(self.link.state(), State::Good) {
            // No connection misses the agent.
            return;
        }
        let fault = match self.link.state() {
            State::Unknown => return,
            State::Good => None,
            State::Bad(fault, since) => Some((fault, *since)),
        };
        let Some(change) = self.link_log.update(now, fault) else { return };
        let what = fault.map(|(fault, _)| fault.to_string()).unwrap_or_default();
        self.log_change("agent", &self.agent_name(), &what, "the agent answers", change);
    }

    fn report_file(&mut self, now: Instant, fault: Option<file::Fault>) {
        let Some(change) = self.file_log.update(now, fault.as_ref().map(|f| (f, now))) else { return };
        let what = fault.map(|fault| fault.to_string()).unwrap_or_default();
        self.log_change("hint file", &self.file.name(), &what, "the hint file is good", change);
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
                0 => ("agent", self.agent_name()),
                _ => ("hint file", self.file.name()),
            };
            self.log_change(name, &path, &what, GOOD[kind], change);
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
