//! The connection to the agent's socket. One request is in flight at a time: agents need not accept
//! more.

use std::fmt;
use std::io::{self, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::agent::{MESSAGE_MAX, Response};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::Options;
use super::table::Table;

/// Most steps at a time: an agent that answers at once must not keep the thread.
const STEPS: usize = 256;

/// Why the agent cannot be used.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing listens, or the agent has closed.
    Away(String),
    /// The agent accepts connections, but does not answer.
    Silent(Duration, usize),
    /// The agent does not follow the protocol.
    Garbage(String),
    /// The agent's user is not trusted.
    Stranger(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) => write!(f, "{why} (MPIB_AGENT_SOCKET is the path where the agent listens)"),
            Self::Silent(time, 0) => write!(f, "no answer to a request within {time:?}"),
            Self::Silent(time, n) => write!(f, "only {n} bytes of an answer to a request within {time:?}"),
            Self::Garbage(what) => write!(f, "the process there does not speak the agent's protocol: {what}"),
            Self::Stranger(why) => f.write_str(why),
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
    open: Option<Open>,
    state: State,
    retry_at: Option<Instant>,
    backoff: Duration,
}

#[derive(Debug)]
struct Open {
    socket: Socket,
    out: ([u8; MESSAGE_MAX], usize),
    sent: usize,
    input: Vec<u8>,
    /// The connection of the request in flight, and the deadline of its answer.
    pending: Option<(u32, Instant)>,
}

/// Result of one step of an open connection.
enum Step {
    Again,
    Idle,
    Answer,
}

impl Link {
    pub(super) fn new(options: &Options) -> Self {
        Self { open: None, state: State::Unknown, retry_at: None, backoff: options.reconnect }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the open socket, and whether there is something to write.
    pub(super) fn socket(&self) -> Option<(&Socket, bool)> {
        self.open.as_ref().map(|open| (&open.socket, open.sent < open.out.1))
    }

    /// Returns when to step again even if no event comes.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.open {
            Some(open) => open.pending.map(|(_, until)| until),
            None => self.retry_at,
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
        let open = match &mut self.open {
            Some(open) => open,
            None if table.is_empty() || self.retry_at.is_some_and(|at| at > now) => return Ok(()),
            None => self.open.insert(Open::new(connect(options)?)),
        };
        for _ in 0..STEPS {
            match open.step(now, table, options)? {
                Step::Again => {}
                Step::Idle => break,
                Step::Answer => {
                    (self.state, self.backoff) = (State::Good, options.reconnect);
                    *answered = true;
                }
            }
        }
        Ok(())
    }

    /// Shuts the connection down: the agent sees the end even if a forked process holds the
    /// descriptor.
    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = open.socket.shutdown(Shutdown::Both);
        }
    }

    fn fail(&mut self, fault: Fault, now: Instant, table: &mut Table, options: &Options) {
        self.close();
        table.agent_lost();
        self.retry_at = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(options.reconnect * 20);
        self.state = State::Bad(fault, now);
    }
}

impl Open {
    fn new(socket: Socket) -> Self {
        Self { socket, out: ([0; MESSAGE_MAX], 0), sent: 0, input: Vec::new(), pending: None }
    }

    fn step(&mut self, now: Instant, table: &mut Table, options: &Options) -> Result<Step, Fault> {
        if self.pending.is_none()
            && let Some((id, request)) = table.next_request(now)
        {
            (self.out, self.sent) = (request.encode(), 0);
            self.pending = Some((id, now + options.answer_timeout));
        }
        self.send()?;
        let more = self.receive()?;
        match Response::decode(&self.input).map_err(|bad| Fault::Garbage(bad.to_string()))? {
            Some((response, len)) => {
                let Some((id, _)) = self.pending.take() else {
                    return Err(Fault::Garbage(format!("{response:?}, which no request was sent for")));
                };
                if self.sent < self.out.1 {
                    return Err(Fault::Garbage(format!("{response:?} before it had the whole request")));
                }
                self.input.drain(..len);
                table.answered(id, response, now, options).map_err(Fault::Garbage)?;
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

    /// Sends with `MSG_NOSIGNAL`: an agent that has closed must not kill the host program.
    fn send(&mut self) -> Result<(), Fault> {
        while self.sent < self.out.1 {
            match self.socket.send_with_flags(&self.out.0[self.sent..self.out.1], libc::MSG_NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(Fault::Away(format!("the connection to the agent broke: {e}"))),
            }
        }
        Ok(())
    }

    /// Returns `true` if something came.
    fn receive(&mut self) -> Result<bool, Fault> {
        let mut bytes = [0; MESSAGE_MAX];
        match (&self.socket).read(&mut bytes) {
            Ok(0) => Err(Fault::Away("the agent has closed the connection".into())),
            Ok(n) => {
                self.input.extend_from_slice(&bytes[..n]);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(Fault::Away(format!("the connection to the agent broke: {e}"))),
        }
    }
}

/// Connects to the agent's socket. On one host that succeeds or fails at once.
fn connect(options: &Options) -> Result<Socket, Fault> {
    let away = |what: &'static str| move |e: io::Error| Fault::Away(format!("{what}: {e}"));
    let address = SockAddr::unix(&options.socket).map_err(away("no name for a Unix socket"))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(away("socket"))?;
    socket.set_nonblocking(true).map_err(away("socket"))?;
    socket.connect(&address).map_err(away("nobody listens there"))?;
    let uid = getsockopt(&socket, PeerCredentials).map_err(|e| Fault::Away(format!("its user: {e}")))?.uid();
    if options.trusts(uid) { Ok(socket) } else { Err(Fault::Stranger(options.distrust(uid))) }
}
