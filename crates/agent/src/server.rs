//! The socket, the signals, and the loop that serves them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::HintsWriter;
use nccl_net_mpib_agent_iface::agent::paths::{HINTS_NAME, SOCKET_NAME};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::sockopt::{OobInline, PeerCredentials, SndBuf};
use nix::sys::socket::{getsockopt, setsockopt};
use nix::unistd::geteuid;
use parking_lot::MutexGuard;

use crate::closer::Closer;
use crate::config::Config;
use crate::events::coded;
use crate::handle::Handle;
use crate::kept::{self, Kept};
use crate::notify::Notify;
use crate::observe::Observer;
use crate::page::Page;
use crate::peer::PeerProcess;
use crate::per_minute::PerMinute;
use crate::plugin::{End, Plugin};
use crate::socket_file::SocketFile;
use crate::state::{Agent, Peer, ProcessId};

/// How often processes are observed if no policy needs more.
const SELDOM: Duration = Duration::from_secs(1);
/// How often, at least, their rails are checked for changes.
const NEWS: Duration = Duration::from_millis(100);
/// Most lines of the log that one process can cause in a minute.
const LINES: usize = 10;
/// How long pages are read at a time. Those that are left come in the next pass: pages can be made that
/// take long.
const READING: Duration = Duration::from_millis(2);
/// How long those who connect wait at a time for room.
const HOLD: Duration = Duration::from_millis(10);
/// Most bytes of the kernel's memory for answers that a process has not read: they are the agent's.
const UNREAD: usize = 4096;
/// Most events of one wait.
const EVENTS: usize = 64;

const LISTENER: u64 = u64::MAX;
const SIGNALS: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;
/// Added to the number of a connection: its process has ended.
const ENDED: u64 = 1 << 63;

/// The server.
#[derive(Debug)]
pub struct Server {
    /// Where it keeps what outlives a restart.
    state: PathBuf,
    /// It serves all users.
    serves_all: bool,
    /// Before the listener: while somebody listens no other agent replaces the file.
    _file: Option<SocketFile>,
    /// The configuration file, which is read again on SIGHUP.
    file: Option<PathBuf>,
    handle: Handle,
    listener: UnixListener,
    signals: Option<SignalFd>,
    notify: Option<Notify>,
    epoll: Epoll,
    plugins: BTreeMap<ProcessId, Plugin>,
    /// The pages that processes have passed, with what is known of earlier readings.
    observers: BTreeMap<ProcessId, (Arc<Page>, Observer)>,
    /// The last page that was read.
    observed: ProcessId,
    /// The last page that was asked for changes.
    checked: ProcessId,
    /// When processes are observed.
    observe_at: Instant,
    /// When their rails are checked for changes.
    check_at: Instant,
    /// A descriptor to free when there are none left: refusing a connection takes one.
    spare: Option<File>,
    /// Bounds the lines about processes.
    complaints: PerMinute,
    closer: Closer,
    /// The epoll instance reports who connects.
    accepts: bool,
}

impl Server {
    /// Makes the hint file, restores what an earlier agent has left, and listens in `folder`, which
    /// must be [prepared](crate::folder::prepare). `file` is where `config` was read. Root's agent serves
    /// all users, another one its own user and root.
    ///
    /// # Errors
    /// The system's error with the path, or another agent serves this folder.
    pub fn bind(folder: &Path, config: Config, file: Option<PathBuf>) -> io::Result<Self> {
        let socket = folder.join(SOCKET_NAME);
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            let in_use = io::ErrorKind::AddrInUse;
            let text = format!("{}: {}", socket.display(), io::Error::from(in_use));
            return Err(io::Error::new(in_use, text));
        }
        Self::with(None, folder, config, file)
    }

    /// Does the same with a listener that root has made there, and serves all users.
    ///
    /// # Errors
    /// As there.
    pub fn on(
        listener: UnixListener,
        folder: &Path,
        config: Config,
        file: Option<PathBuf>,
    ) -> io::Result<Self> {
        Self::with(Some(listener), folder, config, file)
    }

    /// Serves the processes of all users. They find an agent of another user than root by
    /// `MPIB_AGENT_UID`.
    ///
    /// # Errors
    /// The system's, with the path of the socket.
    pub fn serve_all_users(&mut self, folder: &Path) -> io::Result<()> {
        let socket = folder.join(SOCKET_NAME);
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", socket.display())))?;
        self.serves_all = true;
        Ok(())
    }

    fn with(
        passed: Option<UnixListener>,
        folder: &Path,
        config: Config,
        file: Option<PathBuf>,
    ) -> io::Result<Self> {
        let hints = config.hint_file.then(|| HintsWriter::create(folder.join(HINTS_NAME))).transpose()?;
        let state = kept::path(folder);
        let (kept, damaged) = match Kept::read(&state) {
            Ok(kept) => (kept, None),
            Err(e) => (Kept::default(), Some(format!("{}: {e}; nothing of it is used", state.display()))),
        };
        let mut agent = Agent::new(config, hints, kept);
        damaged.into_iter().for_each(|text| agent.log(text));
        let socket = folder.join(SOCKET_NAME);
        // Who may connect is decided by SO_PEERCRED. A user's own agent serves that user.
        let serves_all = passed.is_some() || geteuid().is_root();
        let (listener, file_of_socket) = match passed {
            Some(listener) => (listener, None),
            None => {
                let (listener, file) = SocketFile::listen(&socket, if serves_all { 0o666 } else { 0o600 })?;
                (listener, Some(file))
            }
        };
        listener.set_nonblocking(true)?;
        agent.log(format!("listens on {}", socket.display()));
        let handle = Handle::new(agent)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        epoll.add(handle.waker(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        Ok(Self {
            state,
            serves_all,
            _file: file_of_socket,
            file,
            handle,
            listener,
            signals: None,
            notify: None,
            epoll,
            plugins: BTreeMap::new(),
            observers: BTreeMap::new(),
            observed: 0,
            checked: 0,
            observe_at: Instant::now(),
            check_at: Instant::now(),
            spare: File::open("/dev/null").ok(),
            complaints: PerMinute::new(LINES),
            closer: Closer::start()?,
            accepts: true,
        })
    }

    /// Returns the door for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves SIGHUP, SIGTERM and SIGINT from now on. Call it before another thread starts: the
    /// signals must be blocked in all threads.
    ///
    /// # Errors
    /// The system's error.
    pub fn take_signals(&mut self) -> io::Result<()> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
            set.add(signal);
        }
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        self.epoll.add(&signals, EpollEvent::new(EpollFlags::EPOLLIN, SIGNALS))?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Has the service manager know that it serves, and that its loop runs.
    pub fn notify(&mut self, notify: Notify) {
        self.notify = Some(notify);
    }

    /// Allows as many descriptors as the system does: each process takes five. Call it before another
    /// thread starts.
    pub fn raise_limits() {
        // All threads use again what one of them has given back, and the system gets what large texts had:
        // the agent stays small.
        #[cfg(target_env = "gnu")]
        for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 << 10)] {
            // SAFETY: the call takes numbers only.
            unsafe { libc::mallopt(option, value) };
        }
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            // What is there already serves most hosts.
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
    }

    /// Serves until a signal or [`Handle::stop`] ends it. The socket's file is then removed; the hint
    /// file stays for the plugins.
    ///
    /// # Errors
    /// Waiting for events has failed.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        self.notify.iter().for_each(Notify::ready);
        loop {
            self.pass_on();
            if self.handle.pass() {
                return Ok(());
            }
            let timeout = self.timeout();
            let n = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(Errno::EINTR) => 0,
                Err(e) => return Err(e.into()),
            };
            for event in &events[..n] {
                match event.data() {
                    LISTENER => self.accept(),
                    SIGNALS => self.signalled(),
                    // An error means that the counter is 0 already.
                    WAKE => drop(self.handle.waker().read()),
                    // Another process may have the socket, too.
                    id if id & ENDED != 0 => self.served(id & !ENDED, Err(End::Closed)),
                    id => self.serve(id),
                }
            }
            let now = Instant::now();
            if self.observe_at <= now {
                self.observe(now);
            }
            if self.check_at <= now {
                self.check_rails(now);
            }
        }
    }

    /// Notes a pass of the loop. Returns how long it may wait for events.
    fn timeout(&mut self) -> EpollTimeout {
        let now = Instant::now();
        let held = self.holds_back().then_some(now + HOLD);
        let served = (!self.plugins.is_empty()).then_some(self.observe_at.min(self.check_at));
        let notified = self.notify.as_mut().and_then(|notify| notify.pass(now));
        let Some(next) = [held, served, notified].into_iter().flatten().min() else {
            return EpollTimeout::NONE;
        };
        // Rounded up: a wait that is too short would be repeated.
        let ms = next.saturating_duration_since(now).as_micros().div_ceil(1000);
        u16::try_from(ms).unwrap_or(u16::MAX).into()
    }

    fn agent(&self) -> MutexGuard<'_, Agent> {
        self.handle.agent()
    }

    /// Lets those who connect wait while the sockets of refused ones have no room, and returns whether it
    /// does.
    fn holds_back(&mut self) -> bool {
        let accepts = self.closer.has_room();
        if std::mem::replace(&mut self.accepts, accepts) != accepts {
            let events = if accepts { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            // Of a descriptor that was added: it cannot fail.
            let _ = self.epoll.modify(&self.listener, &mut EpollEvent::new(events, LISTENER));
            if !accepts {
                self.complain(String::from(
                    "processes that connect wait: too many descriptors that others have passed are not closed",
                ));
            }
        }
        !accepts
    }

    /// Accepts those who wait, as long as there is room for the sockets of refused ones.
    fn accept(&mut self) {
        for _ in 0..EVENTS {
            let socket = match self.next_connection() {
                Ok(socket) => socket,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    return self.refuse_for_lack();
                }
                // Nobody, or a process that has closed already.
                Err(_) => return,
            };
            let known = PeerProcess::of(&socket);
            let owner = known.as_ref().map_or(Owner::User(0), |peer| peer.owner.clone());
            if let Err((socket, why)) = self.admit(socket, known) {
                self.closer.end(&owner, socket);
                self.complain(why);
            }
        }
    }

    /// Accepts a connection. An urgent byte stays among the others: to read past it would close the
    /// descriptors that came with it, at once.
    fn next_connection(&self) -> io::Result<OwnedFd> {
        let (socket, _) = self.listener.accept()?;
        setsockopt(&socket, OobInline, &true)?;
        setsockopt(&socket, SndBuf, &UNREAD)?;
        Ok(socket.into())
    }

    /// Serves a process that has connected. The error has the reason why not.
    fn admit(&mut self, socket: OwnedFd, known: nix::Result<PeerProcess>) -> Result<(), (OwnedFd, String)> {
        let peer = match known {
            Ok(peer) => peer,
            Err(e) => return Err((socket, format!("a process is refused: its user is not known: {e}"))),
        };
        let (pid, uid, own) = (peer.pid, peer.uid, geteuid());
        if !self.serves_all && uid != 0 && uid != own.as_raw() {
            return Err((socket, format!("process {pid} is refused: it is of user {uid}")));
        }
        let owner = peer.owner.clone();
        if let Some(count) = self.closer.too_many(&owner) {
            let why = format!("{count} descriptors that {owner} has passed are not closed");
            return Err((socket, format!("process {pid} is refused: {why}")));
        }
        let connected = self.agent().connect(Peer { pid, uid, owner });
        let id = match connected {
            Ok(id) => id,
            Err(e) => return Err((socket, format!("process {pid} is refused: {e}"))),
        };
        let plugin = Plugin::new(socket, id, peer);
        let readable = |data| EpollEvent::new(EpollFlags::EPOLLIN, data);
        let added = self.epoll.add(&plugin, readable(id)).and_then(|()| match &plugin.peer.end {
            Some(end) => self.epoll.add(end, readable(id | ENDED)),
            None => Ok(()),
        });
        if let Err(e) = added {
            self.agent().disconnect(id);
            // The closer may keep it for a while.
            let _ = self.epoll.delete(&plugin);
            return Err((plugin.into_socket(), format!("process {pid} is refused: epoll: {e}")));
        }
        if self.plugins.is_empty() {
            self.observe_at = Instant::now();
        }
        self.plugins.insert(id, plugin);
        self.end_displaced();
        Ok(())
    }

    /// Accepts and closes a connection that cannot be served: it would be reported again and again.
    fn refuse_for_lack(&mut self) {
        self.spare = None;
        if let Ok(socket) = self.next_connection() {
            let uid = getsockopt(&socket, PeerCredentials).map_or(0, |peer| peer.uid());
            self.closer.end(&Owner::User(uid), socket);
        }
        self.spare = File::open("/dev/null").ok();
        self.complain(String::from("a process is refused: this agent has no file descriptors left"));
    }

    fn serve(&mut self, id: ProcessId) {
        let Some(plugin) = self.plugins.get_mut(&id) else { return };
        let written = match plugin.waits() {
            true => plugin.write(),
            false => Ok(()),
        };
        // Its next message may bring more of them.
        let may_pass =
            self.closer.too_many(&plugin.peer.owner).map_or(Ok(()), |count| Err(End::Hoards(count)));
        let mut served = written.and(may_pass).and_then(|()| plugin.read());
        let descriptors = plugin.take_descriptors();
        self.take_page(id, descriptors);
        // Before the first answer: what the process does now decides its share.
        self.observe_new(id);
        if let (Ok(()), Some(plugin)) = (&served, self.plugins.get_mut(&id)) {
            served = plugin.answer_all(&mut self.handle.agent());
        }
        self.served(id, served);
        self.end_displaced();
    }

    /// Ends the connections of processes that have made room for others.
    fn end_displaced(&mut self) {
        let displaced = self.agent().take_displaced();
        for (id, owner) in displaced {
            self.served(id, Err(End::Displaced(owner)));
        }
    }

    /// Takes the page of a process: the first descriptor that it passes. Others are of no use.
    fn take_page(&mut self, id: ProcessId, mut descriptors: Vec<OwnedFd>) {
        let Some(plugin) = self.plugins.get_mut(&id).filter(|_| !descriptors.is_empty()) else { return };
        let (pid, uid, owner) = (plugin.peer.pid, plugin.peer.uid, plugin.peer.owner.clone());
        if !std::mem::replace(&mut plugin.has_tried, true) {
            let file = File::from(descriptors.remove(0));
            match Page::of(&plugin.peer, &file) {
                Ok(page) => {
                    let page = Arc::new(page);
                    self.handle.set_page(id, Some(Arc::clone(&page)));
                    self.observers.insert(id, (page, Observer::default()));
                }
                Err(why) => {
                    descriptors.push(file.into());
                    self.complain(coded(format!(
                        "process {pid} of user {uid} has passed no statistics page that can be used: {why}"
                    )));
                }
            }
        }
        self.closer.close(&owner, descriptors);
    }

    /// Ends a connection that has failed, or waits for room for its answers.
    fn served(&mut self, id: ProcessId, served: Result<(), End>) {
        let Some(plugin) = self.plugins.get_mut(&id) else { return };
        let Err(end) = served else {
            let more = if plugin.waits() { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | more, id);
            // Of a descriptor that was added: it cannot fail.
            let _ = self.epoll.modify(&*plugin, &mut event);
            return;
        };
        let Some(plugin) = self.plugins.remove(&id) else { return };
        self.observers.remove(&id);
        self.handle.set_page(id, None);
        self.agent().disconnect(id);
        let (pid, owner) = (plugin.peer.pid, plugin.peer.owner.clone());
        // The closer may keep it for a while.
        let _ = self.epoll.delete(&plugin);
        self.closer.end(&owner, plugin.into_socket());
        if !matches!(end, End::Closed) {
            self.complain(format!("process {pid} is disconnected: it {end}"));
        }
    }

    /// Logs what a process has done, but not as often as it does it.
    fn complain(&mut self, text: String) {
        if self.complaints.allows(Instant::now()) {
            self.agent().log(text);
        }
    }

    fn signalled(&mut self) {
        while let Some(Ok(Some(signal))) = self.signals.as_ref().map(SignalFd::read_signal) {
            if signal.ssi_signo == libc::SIGHUP as u32 {
                self.reload();
            } else {
                self.agent().log(format!("ends by signal {}", signal.ssi_signo));
                self.handle.stop();
            }
        }
    }

    fn reload(&self) {
        self.handle.reload();
        let read = self.file.as_deref().map(Config::read);
        let mut agent = self.agent();
        match read {
            Some(Ok(config)) => agent.reload(config),
            Some(Err(bad)) => agent.log(format!("{bad}; the configuration before stays in use")),
            None => agent.log(String::from("SIGHUP: there is no configuration file to read")),
        }
    }

    fn observe_new(&mut self, id: ProcessId) {
        if let Some((page, observer)) = self.observers.get_mut(&id)
            && observer.is_new()
        {
            let (seen, elapsed) = observer.read(&page.stats, Instant::now());
            self.handle.agent().observe(id, &seen, elapsed);
        }
    }

    fn observe(&mut self, now: Instant) {
        // Without the lock: those who ask by HTTP do not wait for the pages of others.
        let mut read = Vec::new();
        take_turns(&mut self.observers, &mut self.observed, |id, page, one| {
            read.push((id, one.read(&page.stats, now)));
        });
        let mut agent = self.handle.agent();
        for (id, (seen, elapsed)) in read {
            agent.observe(id, &seen, elapsed);
        }
        let config = agent.config();
        self.observe_at = now + if config.measures() { config.interval() } else { SELDOM };
    }

    /// Has the statistics of all processes read if a rail has changed.
    fn check_rails(&mut self, now: Instant) {
        let mut changed = false;
        take_turns(&mut self.observers, &mut self.checked, |_, page, one| {
            changed |= one.has_news(&page.stats);
        });
        if changed {
            self.handle.rail_changed();
        }
        self.check_at = now + NEWS;
    }

    /// Sends what processes must know, logs what has happened, and keeps what must outlive the agent.
    fn pass_on(&mut self) {
        let (changed, kept, lines) = {
            let mut agent = self.agent();
            (agent.ports_changed(), agent.changed_kept(), agent.log_lines())
        };
        for line in lines {
            eprintln!("mpib agent: {line}");
        }
        for id in changed {
            if let Some(plugin) = self.plugins.get_mut(&id) {
                let sent = plugin.ports_changed();
                self.served(id, sent);
            }
        }
        if let Some(kept) = kept {
            let path = &self.state;
            if let Err(e) = kept.write(path) {
                eprintln!(
                    "mpib agent: {}: {e}; drains and shares would not outlive a restart",
                    path.display()
                );
            }
        }
    }
}

/// Reads pages for a while, beginning with the one after the `last` that was read.
fn take_turns(
    observers: &mut BTreeMap<ProcessId, (Arc<Page>, Observer)>,
    last: &mut ProcessId,
    mut read: impl FnMut(ProcessId, &Page, &mut Observer),
) {
    let begun = Instant::now();
    let after: Vec<ProcessId> = observers.range(*last + 1..).map(|(id, _)| *id).collect();
    let before: Vec<ProcessId> = observers.range(..=*last).map(|(id, _)| *id).collect();
    for id in after.into_iter().chain(before) {
        if let Some((page, observer)) = observers.get_mut(&id) {
            read(id, page, observer);
            *last = id;
        }
        if begun.elapsed() >= READING {
            return;
        }
    }
}
