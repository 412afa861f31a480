//! The connection to the agent's socket. One request is in flight at a time: agents need not accept
//! more. The first one brings the descriptor of the process's statistics page. Agents that do not read
//! descriptors never see it.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::agent::memory::Memory;
use nccl_net_mpib_agent_iface::agent::paths::Trust;
use nccl_net_mpib_agent_iface::agent::{
    self, IN_MEMORY, MESSAGE_MAX, Malformed, NoAgent, Request, Response, Status, TAKES_MEMORY, flags, passing,
};

use nccl_net_mpib_agent_iface::stats::StatsWriter;

use super::Options;
use super::table::{AnswerSlot, Table};

#[cfg(any(test, feature = "simulation"))]
#[path = "stream_tests.rs"]
mod stream_tests;

#[cfg(any(test, feature = "simulation"))]
pub use stream_tests::simulated;

/// Most steps at a time: an agent that answers at once must not keep the thread.
const STEPS: usize = 256;
/// Largest wait before a reconnect, in multiples of the first: with connections to register, and
/// without.
const LONGEST: [u32; 2] = [20, 300];

/// Why the agent cannot be used.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing listens, or the agent has closed.
    Away(String),
    /// The agent accepts connections, but does not answer.
    Silent(Duration, usize),
    /// The agent does not follow the protocol.
    Garbage(String),
    /// The agent's user, or the path of its socket, is not trusted.
    Unsafe(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) => write!(f, "{why} (MPIB_AGENT_SOCKET is the path where the agent listens)"),
            Self::Silent(time, 0) => write!(f, "no answer to a request within {time:?}"),
            Self::Silent(time, n) => write!(f, "only {n} bytes of an answer to a request within {time:?}"),
            Self::Garbage(what) => write!(f, "the process there does not speak the agent's protocol: {what}"),
            Self::Unsafe(why) => f.write_str(why),
        }
    }
}

/// State of the agent, as far as is known.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing yet.
    Unknown,
    /// Connected, and has answered.
    Good,
    /// Cannot be used, since then.
    Bad(Fault, Instant),
}

#[derive(Debug)]
pub(super) struct Link {
    trust: Trust,
    open: Option<Open>,
    state: State,
    retry_at: Option<Instant>,
    backoff: Duration,
    /// There was no connection to register when the last attempt failed.
    was_needless: bool,
    /// Connections in a row that failed before their first answer.
    unanswered: u32,
    /// Where something is that is not used, and why.
    skipped: Vec<(PathBuf, String)>,
    /// Where the agent listened when there last was a connection.
    path: Option<PathBuf>,
}

#[derive(Debug)]
struct Open {
    socket: UnixStream,
    out: ([u8; MESSAGE_MAX], usize),
    sent: usize,
    input: Vec<u8>,
    /// The request in flight, and the deadline of its answer.
    pending: Option<(Request, Instant)>,
    offer: bool,
    /// The agent has answered a request.
    answered: bool,
    /// The agent has the statistics page, or cannot have it.
    page_passed: bool,
    memory: Option<Arc<Memory>>,
    /// The memory file is new, or the agent reports a change in it.
    ports_changed: bool,
}

/// Result of one step of an open connection.
enum Step {
    Again,
    Idle,
    Answer,
}

impl Link {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            trust: options.trust(),
            open: None,
            state: State::Unknown,
            retry_at: None,
            backoff: options.reconnect,
            was_needless: false,
            unanswered: 0,
            skipped: Vec::new(),
            path: None,
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the open socket, and whether there is something to write.
    pub(super) fn socket(&self) -> Option<(&UnixStream, bool)> {
        self.open.as_ref().map(|open| (&open.socket, open.sent < open.out.1))
    }

    /// Returns the path of the agent's socket, if there was a connection.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the places that the last attempt to connect did not use because of what is there,
    /// with the reason.
    pub(super) fn skipped(&self) -> &[(PathBuf, String)] {
        &self.skipped
    }

    /// Returns the agent's memory file if the scales of ports in it have changed since the last
    /// call.
    pub(super) fn changed_ports(&mut self) -> Option<Arc<Memory>> {
        let open = self.open.as_mut()?;
        std::mem::take(&mut open.ports_changed).then(|| open.memory.clone()).flatten()
    }

    /// Returns when to step again even if no event comes.
    pub(super) fn deadline(&self, table: &Table) -> Option<Instant> {
        match &self.open {
            Some(Open { pending: Some((_, until)), .. }) => Some(*until),
            Some(_) => table.deadline(),
            None => self.retry_at.filter(|_| !table.is_idle()),
        }
    }

    /// Ends a long pause once there is a connection to register.
    fn shorten_pause(&mut self, table: &Table, options: &Options) {
        if self.was_needless && !table.is_empty() {
            (self.was_needless, self.retry_at, self.backoff) = (false, None, options.reconnect);
        }
    }

    /// Proceeds as far as possible without waiting. Returns `true` if the agent has answered.
    pub(super) fn step(&mut self, now: Instant, table: &mut Table, options: &Options) -> bool {
        let mut answered = false;
        if let Err(fault) = self.advance(now, table, options, &mut answered) {
            self.fail(fault, now, table, options);
        }
        answered
    }

    fn advance(
        &mut self,
        now: Instant,
        table: &mut Table,
        options: &Options,
        answered: &mut bool,
    ) -> Result<(), Fault> {
        self.shorten_pause(table, options);
        let open = match &mut self.open {
            Some(open) => open,
            None if table.is_idle() || self.retry_at.is_some_and(|at| at > now) => {
                return Ok(());
            }
            None => {
                let socket = self.connect(&options.sockets)?;
                // An agent that fails twice before its first answer may be one that does not ignore
                // flags: REGISTER of the next connection then has none.
                self.open.insert(Open::new(socket, self.unanswered % 3 != 2))
            }
        };
        for _ in 0..STEPS {
            match open.step(now, table, options)? {
                Step::Again => {}
                Step::Idle => break,
                Step::Answer => {
                    (self.state, self.backoff) = (State::Good, options.reconnect);
                    self.unanswered = 0;
                    *answered = true;
                }
            }
        }
        Ok(())
    }

    /// Connects to the first of the paths where a trusted agent listens. The fault is about a place
    /// that is not used because of what is there, if there is one, else about the first path.
    fn connect(&mut self, paths: &[PathBuf]) -> Result<UnixStream, Fault> {
        self.skipped.clear();
        let mut first = None;
        for path in paths {
            match agent::connect(path, &self.trust) {
                Ok(socket) => {
                    self.path = Some(path.clone());
                    return Ok(socket);
                }
                Err(NoAgent::Unsafe(why)) => self.skipped.push((path.clone(), why)),
                Err(other) => first = first.or(Some(other)),
            }
        }
        Err(match (self.skipped.first(), first) {
            (Some((_, why)), _) => Fault::Unsafe(why.clone()),
            (None, Some(first)) => Fault::Away(first.to_string()),
            (None, None) => Fault::Unsafe(String::from("no path of a socket")),
        })
    }

    /// Shuts the connection down: the agent sees the end even if a forked process holds the
    /// descriptor.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = open.socket.shutdown(Shutdown::Both);
        }
    }

    fn fail(&mut self, fault: Fault, now: Instant, table: &mut Table, options: &Options) {
        let first = self.open.as_ref().filter(|open| !open.answered).and_then(|open| open.pending);
        self.close();
        table.agent_lost();
        self.was_needless = table.is_empty();
        let longest = options.reconnect * LONGEST[usize::from(self.was_needless)];
        match first {
            Some((Request::Register(_) | Request::Deregister { .. }, _)) => self.unanswered += 1,
            // Agents of earlier releases close the connection: they know no ATTACH.
            Some((Request::Attach, _)) => self.backoff = longest,
            None => {}
        }
        self.retry_at = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(longest);
        self.state = State::Bad(fault, now);
    }
}

impl Open {
    fn new(socket: UnixStream, offer: bool) -> Self {
        Self {
            socket,
            out: ([0; MESSAGE_MAX], 0),
            sent: 0,
            input: Vec::new(),
            pending: None,
            offer,
            answered: false,
            page_passed: false,
            memory: None,
            ports_changed: false,
        }
    }

    fn step(&mut self, now: Instant, table: &mut Table, options: &Options) -> Result<Step, Fault> {
        if self.pending.is_none()
            && let Some(request) = table.next_request(now)
        {
            let takes_memory = self.offer && matches!(request, Request::Register(_));
            let flags = if takes_memory { TAKES_MEMORY } else { 0 };
            (self.out, self.sent) = (request.encode_with(flags), 0);
            self.pending = Some((request, now + options.answer_timeout));
        }
        self.send()?;
        let more = self.receive()?;
        match Response::decode(&self.input).map_err(|bad| Fault::Garbage(malformed(bad, &self.input)))? {
            Some((Response::PortsChanged, len)) if self.memory.is_some() => {
                self.input.drain(..len);
                self.ports_changed = true;
                Ok(Step::Again)
            }
            Some((response, len)) => {
                let flags = flags(&self.input);
                self.answer(response, flags, now, table, options)?;
                self.input.drain(..len);
                Ok(Step::Answer)
            }
            None if more => Ok(Step::Again),
            None => match self.pending {
                Some((_, until)) if until <= now => {
                    Err(Fault::Silent(options.answer_timeout, self.input.len()))
                }
                _ => Ok(Step::Idle),
            },
        }
    }

    fn answer(
        &mut self,
        response: Response,
        flags: u8,
        now: Instant,
        table: &mut Table,
        options: &Options,
    ) -> Result<(), Fault> {
        let Some((request, _)) = self.pending.take() else {
            return Err(Fault::Garbage(format!("{response:?}, which no request was sent for")));
        };
        if self.sent < self.out.1 {
            return Err(Fault::Garbage(format!("{response:?} before it had the whole request")));
        }
        let place = match &self.memory {
            _ if flags & IN_MEMORY == 0 => AnswerSlot::File,
            Some(memory) => AnswerSlot::Memory(memory),
            None => {
                return Err(Fault::Garbage(format!(
                    "{response:?} for a memory file that has not come (SCM_RIGHTS); is this process out of \
                     file descriptors?"
                )));
            }
        };
        let refused = matches!(
            response,
            Response::Registered { status: Status::INVALID_REQUEST, .. }
                | Response::Deregistered { status: Status::INVALID_REQUEST }
        );
        if refused && self.offer && !self.answered && matches!(request, Request::Register(_)) {
            // Perhaps because of the flags.
            self.offer = false;
            table.register_again(&request);
        } else {
            table.answered(&request, response, place, now, options).map_err(Fault::Garbage)?;
        }
        self.answered = true;
        Ok(())
    }

    /// Sends what fits now.
    fn send(&mut self) -> Result<(), Fault> {
        while self.sent < self.out.1 {
            let page = StatsWriter::descriptor().filter(|_| !self.page_passed && self.sent == 0);
            match passing::send(&self.socket, &self.out.0[self.sent..self.out.1], page) {
                Ok(0) => break,
                Ok(n) => {
                    self.page_passed |= page.is_some();
                    self.sent += n;
                }
                Err(e) if again(&e) => break,
                // The host lets this process pass no descriptors. It does without.
                Err(_) if page.is_some() => self.page_passed = true,
                Err(e) => return Err(broken(&e)),
            }
        }
        Ok(())
    }

    /// Reads what there is. Returns `true` if something came.
    fn receive(&mut self) -> Result<bool, Fault> {
        let mut bytes = [0; MESSAGE_MAX];
        match passing::receive(&self.socket, &mut bytes) {
            Ok((0, _)) => Err(Fault::Away("the agent has closed the connection".into())),
            Ok((n, file)) => {
                self.input.extend_from_slice(&bytes[..n]);
                if let Some(file) = file.into_iter().next() {
                    let memory = Memory::open(file).map_err(|bad| Fault::Garbage(bad.to_string()))?;
                    (self.memory, self.ports_changed) = (Some(Arc::new(memory)), true);
                }
                Ok(true)
            }
            Err(e) if again(&e) => Ok(false),
            Err(e) => Err(broken(&e)),
        }
    }
}

fn again(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn broken(e: &io::Error) -> Fault {
    Fault::Away(format!("the connection to the agent broke: {e}"))
}

/// Describes bytes that are no message. An agent that follows only the list of fields sends an
/// answer of 8 bytes, which begins with a status.
fn malformed(bad: Malformed, input: &[u8]) -> String {
    match (bad, input) {
        (Malformed::Magic(_), [status, 0, 0, 0, ..]) if *status <= Status::INVALID_REQUEST.0 => format!(
            "{bad}: its answer has no header. REGISTER has 28 bytes, a header of 8 and 20 of fields. Answer 16 bytes: \
             u32 0x4d504952, u16 16 (the length of the message), u8 128, u8 0, then u8 status, 3 zeros, u32 slot, all \
             little-endian"
        ),
        _ => bad.to_string(),
    }
}
