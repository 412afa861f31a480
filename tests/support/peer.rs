//! A second process of a test, which gets commands on its standard input, a line at a time, and
//! answers on its standard output. It inherits settings, devices and fabric from the test's
//! process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};

use crate::code::{Code, Success, known};
use crate::pair::{Buffer, LIMIT, until};
use crate::process::Role;
use crate::table::{Ptr, Table};

/// Marks answers among the lines of the test harness.
const MARK: &str = "@@";

/// Answers the first process.
pub fn answer(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").and_then(|()| out.flush()).expect("the first process reads");
}

/// The commands of the first process, until it closes the standard input of this one.
pub fn commands() -> impl Iterator<Item = String> {
    answer("ready");
    std::io::stdin().lines().map(Result::unwrap)
}

/// A handle as a word.
pub fn word(handle: &[u8; 128]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The handle of such a word.
pub fn handle_of(word: &str) -> [u8; 128] {
    std::array::from_fn(|i| u8::from_str_radix(&word[2 * i..2 * i + 2], 16).unwrap())
}

/// The second process, seen from the first. Killed when dropped.
pub struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    /// Starts a peer from a thread that lives as long as the peer.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a peer with the variables of this process and those of `env`.
    pub fn start_with(env: &[(&str, &str)]) -> Self {
        Self::start_as(Role::Peer, env)
    }

    /// As [`start_with`](Self::start_with), in another role.
    pub fn start_as(role: Role, env: &[(&str, &str)]) -> Self {
        Self::start_by(role.command(), env)
    }

    /// By a command of [`Role`].
    pub fn start_by(mut command: Command, env: &[(&str, &str)]) -> Self {
        let mut child =
            command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, answers) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, answer)) = line.split_once(MARK) {
                    let _ = tell.send(answer.to_owned());
                }
            }
        });
        let to = child.stdin.take();
        let peer = Self { child, to, answers };
        assert_eq!(peer.answer(), "ready");
        peer
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As the plugin names it.
    pub fn name(&self) -> String {
        format!("pid {})", self.pid())
    }

    pub fn say(&mut self, line: &str) {
        let to = self.to.as_mut().unwrap();
        writeln!(to, "{line}").and_then(|()| to.flush()).expect("the peer listens");
    }

    pub fn answer(&self) -> String {
        match self.answers.recv_timeout(LIMIT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("the peer says nothing within {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the peer has ended"),
        }
    }

    /// The answer, if it has come.
    pub fn answered(&self) -> Option<String> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the peer has ended"),
        }
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer()
    }

    /// The code that a command answers which must fail.
    pub fn code(&mut self, line: &str) -> Code {
        known(nccl_net_abi::ncclResult_t(self.ask(line).parse().unwrap()).into())
    }

    /// A command whose answer is "ok".
    pub fn must(&mut self, line: &str) {
        assert_eq!(self.ask(line), "ok", "{line}");
    }

    pub fn process(&self) -> Process {
        Process(self.pid())
    }

    /// SIGKILL, and no trace of the process is left when this is over.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its input ends, and so does it.
    pub fn finish(mut self) {
        self.to = None;
        assert!(self.child.wait().unwrap().success());
    }
}

/// Forks a child that inherits all that a child does, and lives until it is killed, or twice as long
/// as a test may wait. Returns its number.
pub fn fork_idle_child() -> libc::pid_t {
    // SAFETY: the child calls nothing but `alarm`, `pause` and `_exit`, which may be called after a
    // fork in any process.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(2 * LIMIT.as_secs() as u32);
                libc::pause();
                libc::_exit(0)
            }
            child => child,
        }
    }
}

/// The child of a peer that may have ended. Killed when dropped.
pub struct Grandchild(pub libc::pid_t);

impl Drop for Grandchild {
    fn drop(&mut self) {
        // SAFETY: nobody waits for it, and it lives until this call: the number is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// A child that was not waited for.
#[derive(Clone, Copy)]
pub struct Process(u32);

impl Process {
    pub fn signal(self, signal: i32) {
        // SAFETY: a child of ours.
        assert_eq!(unsafe { libc::kill(self.0 as i32, signal) }, 0);
    }

    /// Stops it; it stands still when this is over.
    pub fn stop(self) {
        self.signal(libc::SIGSTOP);
        until("the process to stand still", || self.stopped().then_some(()));
    }

    /// Lets it go on.
    pub fn go_on(self) {
        self.signal(libc::SIGCONT);
        until("the process to go on", || (!self.stopped()).then_some(()));
    }

    fn stopped(self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A comm of this process that receives from a new sending comm of the peer.
pub fn from_peer(table: &Table, ctx: Ptr, peer: &mut Peer) -> Ptr {
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, 0, &mut handle);
    assert_eq!(rc, Success, "listen");
    peer.say(&format!("connect {}", word(&handle)));
    let comm = accepted(table, listen);
    assert_eq!(peer.answer(), "ok");
    assert_eq!(table.close_listen(listen), Success);
    comm
}

/// The next comm of a listener.
pub fn accepted(table: &Table, listen: Ptr) -> Ptr {
    until("accept", || {
        let (rc, comm) = table.accept(listen);
        assert_eq!(rc, Success, "accept");
        (!comm.is_null()).then_some(comm)
    })
}

/// A comm of this process that sends to a new receiving comm of the peer.
pub fn to_peer(table: &Table, ctx: Ptr, peer: &mut Peer) -> Ptr {
    let mut handle = handle_of(&peer.ask("listen"));
    peer.say("accept");
    let comm = connected(table, ctx, &mut handle);
    assert_eq!(peer.answer(), "ok");
    comm
}

/// `connect`, tried until it is done.
pub fn connected(table: &Table, ctx: Ptr, handle: &mut [u8; 128]) -> Ptr {
    connected_by(table, ctx, 0, handle)
}

/// As [`connected`], from this device.
pub fn connected_by(table: &Table, ctx: Ptr, dev: i32, handle: &mut [u8; 128]) -> Ptr {
    until("connect", || {
        let (rc, comm) = table.connect(ctx, dev, handle);
        assert_eq!(rc, Success, "connect");
        (!comm.is_null()).then_some(comm)
    })
}

/// Starts a send of the first `len` bytes, tried until it is taken.
pub fn send(table: &Table, comm: Ptr, from: &Buffer, len: usize) -> Ptr {
    until("isend", || {
        let (rc, request) = table.isend(comm, from.addr(), len, 1, from.mr);
        assert_eq!(rc, Success, "isend");
        (!request.is_null()).then_some(request)
    })
}

/// Starts a receive that must be taken.
pub fn recv(table: &Table, comm: Ptr, to: &Buffer, room: usize) -> Ptr {
    let (rc, request) = table.irecv(comm, &[(to.addr(), room, 1, to.mr)]);
    assert_eq!((rc, request.is_null()), (Success, false), "irecv");
    request
}

/// Tests until done; the size.
pub fn wait(table: &Table, request: Ptr) -> usize {
    until("test", || {
        let (rc, done, sizes) = table.test(request);
        assert_eq!(rc, Success, "test");
        done.then_some(sizes[0] as usize)
    })
}
