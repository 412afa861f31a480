//! A second process: the test program once more, told over its standard input what to do, a line at a time.
//!
//! Each test file that uses it has an ignored test that is `other_process` here; settings, devices and fabric are
//! inherited from the test's own process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use nccl_net_mpib::bootstrap::{Channel, Listener, Options};
use nccl_net_mpib::proto::{Handle, Message};

use super::evil;
use super::pair::{Buffer, LIMIT, init, pattern, until};
use super::table::{Ptr, Table, newest};

/// Set in the second process.
const PEER: &str = "MPIB_TEST_PEER";
/// Marks lines of the conversation among those of the test harness.
const MARK: &str = "@@";

/// Ends this process if the test has not ended in time: a call that hangs can be told in no other way.
pub fn watchdog() {
    watchdog_after(5 * LIMIT);
}

pub fn watchdog_after(limit: Duration) {
    // SAFETY: nothing here handles SIGALRM, whose default is to end the process.
    unsafe { libc::alarm(limit.as_secs() as u32) };
}

/// A handle as a word.
pub fn word(handle: &[u8; 128]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle(word: &str) -> [u8; 128] {
    std::array::from_fn(|i| u8::from_str_radix(&word[2 * i..2 * i + 2], 16).unwrap())
}

/// The second process, seen from the first. Killed when dropped.
pub struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    /// Started by a thread that lives as long as it.
    pub fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["other_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(PEER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
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

    /// It was told to do something that it does not answer with more than "ok".
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
pub fn from_peer(table: &dyn Table, ctx: Ptr, peer: &mut Peer) -> Ptr {
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, 0, &mut handle);
    assert_eq!(rc, 0, "listen");
    peer.say(&format!("connect {}", word(&handle)));
    let comm = accepted(table, listen);
    assert_eq!(peer.answer(), "ok");
    assert_eq!(table.close_listen(listen), 0);
    comm
}

/// The next comm of a listener.
pub fn accepted(table: &dyn Table, listen: Ptr) -> Ptr {
    until("accept", || {
        let (rc, comm) = table.accept(listen);
        assert_eq!(rc, 0, "accept");
        (!comm.is_null()).then_some(comm)
    })
}

/// A comm of this process that sends to a new receiving comm of the peer.
pub fn to_peer(table: &dyn Table, ctx: Ptr, peer: &mut Peer) -> Ptr {
    let mut handle = handle(&peer.ask("listen"));
    peer.say("accept");
    let comm = connected(table, ctx, &mut handle);
    assert_eq!(peer.answer(), "ok");
    comm
}

/// `connect`, tried until it is done.
pub fn connected(table: &dyn Table, ctx: Ptr, handle: &mut [u8; 128]) -> Ptr {
    until("connect", || {
        let (rc, comm) = table.connect(ctx, 0, handle);
        assert_eq!(rc, 0, "connect");
        (!comm.is_null()).then_some(comm)
    })
}

/// A handle that the peer gave.
pub fn handle_of(answer: &str) -> [u8; 128] {
    handle(answer)
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").and_then(|()| out.flush()).expect("the first process listens");
}

/// What the second process has made.
struct Ends {
    table: &'static dyn Table,
    ctx: Ptr,
    listen: Ptr,
    send: Vec<Ptr>,
    recv: Vec<Ptr>,
    channels: Vec<Channel>,
}

/// The second process: does what it is told until its input ends.
pub fn obey() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    // SAFETY: only sets which signal comes when the thread that started us has ended.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let table = newest();
    let mut ends = Ends {
        table,
        ctx: init(table),
        listen: Ptr::default(),
        send: Vec::new(),
        recv: Vec::new(),
        channels: Vec::new(),
    };
    tell("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        ends.do_(verb, rest);
    }
}

impl Ends {
    fn do_(&mut self, verb: &str, rest: &str) {
        let Self { table, ctx, .. } = *self;
        let numbers: Vec<usize> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        match verb {
            "listen" => {
                let mut handle = [0; 128];
                let (rc, listen) = table.listen(ctx, 0, &mut handle);
                assert_eq!(rc, 0, "listen");
                self.listen = listen;
                return tell(&word(&handle));
            }
            "accept" => {
                self.recv.push(accepted(table, self.listen));
                assert_eq!(table.close_listen(self.listen), 0);
            }
            "connect" => self.send.push(connected(table, ctx, &mut handle(rest))),
            // As a connector that has come as far as the listener's HELLO.
            "meet" => {
                let listener = Handle::decode(&handle(rest)).unwrap();
                let channel = Channel::connect(&listener, &evil::hello(), evil::config().connect_timeout);
                let channel = channel.unwrap();
                until("the listener's HELLO", || channel.try_recv().unwrap());
                self.channels.push(channel);
            }
            // As a listener that has come as far as the connector's WIRING.
            "greet" => {
                let listener = Listener::open(&Options::from(&evil::config())).unwrap();
                tell(&word(&listener.handle().encode()));
                let channel = until("a connector", || listener.try_accept().unwrap());
                channel.send(&Message::Hello(evil::hello())).unwrap();
                let next = || until("a message", || channel.try_recv().unwrap());
                assert!(matches!((next(), next()), (Message::Hello(_), Message::Wiring(_))));
                self.channels.push(channel);
            }
            "post" => {
                let buffer = self.buffer(self.recv[0], vec![0; numbers[1]]);
                for _ in 0..numbers[0] {
                    self.irecv(&buffer);
                }
                // Written to until the end of the process.
                std::mem::forget(buffer);
            }
            "send" => self.send_checked(numbers[0], numbers[1] as u64),
            "recv" => self.recv_checked(numbers[0], numbers[1] as u64),
            "stream" => {
                tell("ok");
                let buffer = self.buffer(self.send[0], pattern(numbers[0], 1));
                self.for_ever(|| self.isend(&buffer));
            }
            "drain" => {
                tell("ok");
                let buffer = self.buffer(self.recv[0], vec![0; numbers[0]]);
                self.for_ever(|| self.irecv(&buffer));
            }
            "echo" => self.echo(numbers[0], numbers[1]),
            "close" => self.close(),
            other => panic!("unknown command {other}"),
        }
        tell("ok");
    }

    fn buffer(&self, comm: Ptr, bytes: Vec<u8>) -> Buffer {
        Buffer::new(self.table, comm, bytes)
    }

    fn isend(&self, buffer: &Buffer) -> Ptr {
        send(self.table, self.send[0], buffer, buffer.bytes.len())
    }

    fn irecv(&self, buffer: &Buffer) -> Ptr {
        recv(self.table, self.recv[0], buffer, buffer.bytes.len())
    }

    /// Eight under way, until the first process kills this one.
    fn for_ever(&self, mut start: impl FnMut() -> Ptr) {
        let mut under_way = std::collections::VecDeque::new();
        loop {
            if under_way.len() == 8 {
                wait(self.table, under_way.pop_front().unwrap());
            }
            under_way.push_back(start());
        }
    }

    fn send_checked(&self, len: usize, seed: u64) {
        let from = self.buffer(self.send[0], pattern(len, seed));
        assert_eq!(wait(self.table, self.isend(&from)), len);
        from.dereg();
    }

    fn recv_checked(&self, len: usize, seed: u64) {
        let to = self.buffer(self.recv[0], vec![0; len]);
        assert_eq!(wait(self.table, self.irecv(&to)), len);
        assert!(to.bytes == pattern(len, seed), "{len} bytes differ");
        to.dereg();
    }

    /// Sends back what comes, `rounds` messages of each comm: the comms' turns come as their data does.
    fn echo(&self, rounds: usize, len: usize) {
        let ends: Vec<_> = self.recv.iter().zip(&self.send).collect();
        let mut lanes: Vec<_> = ends
            .iter()
            .map(|(r, s)| {
                let to = self.buffer(**r, vec![0; len]);
                let from = self.table.reg_mr(**s, to.addr(), len, super::pair::HOST);
                assert_eq!(from.0, 0, "regMr");
                let request = recv(self.table, **r, &to, len);
                (to, from.1, request, Step::Receiving, rounds)
            })
            .collect();
        until("all echoes", || {
            for ((to, mr, request, step, left), (r, s)) in lanes.iter_mut().zip(&ends) {
                let (rc, done, sizes) = match *step {
                    Step::Over => continue,
                    Step::Waiting => (0, true, [0; 8]),
                    _ => self.table.test(*request),
                };
                assert_eq!(rc, 0, "test");
                match (*step, done) {
                    (Step::Receiving, true) => {
                        assert_eq!(sizes[0] as usize, len);
                        *step = Step::Waiting;
                    }
                    (Step::Waiting, _) => {
                        let (rc, taken) = self.table.isend(**s, to.addr(), len, 1, *mr);
                        assert_eq!(rc, 0, "isend");
                        if !taken.is_null() {
                            (*request, *step) = (taken, Step::Sending);
                        }
                    }
                    (Step::Sending, true) => {
                        *left -= 1;
                        *step = if *left == 0 { Step::Over } else { Step::Receiving };
                        if *left > 0 {
                            *request = recv(self.table, **r, to, len);
                        }
                    }
                    _ => {}
                }
            }
            lanes.iter().all(|lane| lane.3 == Step::Over).then_some(())
        });
        for ((to, mr, ..), (_, s)) in lanes.into_iter().zip(&ends) {
            assert_eq!(self.table.dereg_mr(**s, mr), 0);
            to.dereg();
        }
    }

    fn close(&mut self) {
        self.send.drain(..).for_each(|comm| assert_eq!(self.table.close_send(comm), 0));
        self.recv.drain(..).for_each(|comm| assert_eq!(self.table.close_recv(comm), 0));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Receiving,
    Waiting,
    Sending,
    Over,
}

/// Starts a send of the first `len` bytes, tried until it is taken.
pub fn send(table: &dyn Table, comm: Ptr, from: &Buffer, len: usize) -> Ptr {
    until("isend", || {
        let (rc, request) = table.isend(comm, from.addr(), len, 1, from.mr);
        assert_eq!(rc, 0, "isend");
        (!request.is_null()).then_some(request)
    })
}

/// Starts a receive that must be taken.
pub fn recv(table: &dyn Table, comm: Ptr, to: &Buffer, room: usize) -> Ptr {
    let (rc, request) = table.irecv(comm, &[(to.addr(), room, 1, to.mr)]);
    assert_eq!((rc, request.is_null()), (0, false), "irecv");
    request
}

/// Tests until done; the size.
pub fn wait(table: &dyn Table, request: Ptr) -> usize {
    until("test", || {
        let (rc, done, sizes) = table.test(request);
        assert_eq!(rc, 0, "test");
        done.then_some(sizes[0] as usize)
    })
}
