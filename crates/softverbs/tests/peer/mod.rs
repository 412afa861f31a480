//! The other process: a second instance of the test program, controlled through its standard input
//! and output.
#![allow(unreachable_pub, missing_docs, reason = "nobody else uses it")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::{Address, End, Opts, PATIENCE, Send, checksum, fabric, imm, op, setup, wait_for};

/// Marks the protocol lines among those of the test harness.
const MARK: &str = "@@";
/// Set in the process that plays the peer.
const PEER: &str = "TEST_PEER";

/// Returns the name of the calling test function.
macro_rules! here {
    () => {{
        fn inner() {}
        let name = std::any::type_name_of_val(&inner);
        let (_, name) = name.split_once("::").expect("below the crate");
        name.strip_suffix("::inner").expect("the function above")
    }};
}
pub(crate) use here;

/// Runs the rest of the calling test in a new process, whose devices and faults no other test sees.
macro_rules! own_process {
    () => {
        if !$crate::peer::is_alone() {
            return $crate::peer::run_alone($crate::peer::here!());
        }
    };
}
pub(crate) use own_process;

/// Set in the process that a test has for itself.
const ALONE: &str = "TEST_ALONE";

/// Whether this process runs a single test.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs `test` in a new process, and fails as it fails.
pub fn run_alone(test: &str) {
    let output = again(test).env(ALONE, "1").output().expect("this program can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

pub fn base() -> PathBuf {
    // SAFETY: cannot fail.
    PathBuf::from(format!("/dev/shm/softverbs-{}", unsafe { libc::geteuid() }))
}

/// Prepares a second instance of this program, for one of its tests. The test must exist: an
/// instance that runs no test at all succeeds.
pub fn again(test: &str) -> Command {
    let program = std::env::current_exe().expect("our own path");
    let list = Command::new(&program).args(["--exact", test, "--list"]).output();
    let list = String::from_utf8_lossy(&list.expect("this program can be started").stdout).into_owned();
    assert!(list.lines().any(|line| line == format!("{test}: test")), "there is no test {test}: {list}");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// Obeys, and does not return, if this process is a peer. For tests that act before they start one.
pub fn play() {
    if std::env::var_os(PEER).is_some() {
        serve();
        std::process::exit(0);
    }
}

/// Prepares the process that plays the peer in `test`.
pub fn peer(test: &str) -> Command {
    let mut command = again(test);
    command.env(PEER, "1");
    command
}

pub fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").and_then(|()| out.flush()).expect("the parent listens");
}

pub fn hello(address: &Address) -> String {
    let gid: String = address.gid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {gid} {} {}", address.qpn, address.addr, address.rkey)
}

pub fn parse(line: &str) -> Address {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let mut gid = [0; 16];
    for (i, byte) in gid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&words[1][2 * i..2 * i + 2], 16).expect("hexadecimal");
    }
    Address { qpn: number(words[0]) as u32, gid, addr: number(words[2]), rkey: number(words[3]) as u32 }
}

pub struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    address: Address,
}

impl Peer {
    /// Starts it in the fabric of this process. It creates one end and prints its address.
    ///
    /// The peer runs `test`, the calling test, as far as this call, and then serves its commands.
    pub fn start(test: &str, env: &[(&str, &str)]) -> Self {
        play();
        setup();
        let mut command = peer(test);
        command.env("SOFTVERBS_FABRIC", fabric()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(env.iter().copied());
        let mut child = command.spawn().expect("this program can be started");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut this = Self { child, to, from, address: Address { qpn: 0, gid: [0; 16], addr: 0, rkey: 0 } };
        this.address = parse(&this.answer());
        this
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let n = self.from.read_line(&mut line).expect("the child's output");
            assert!(n > 0, "the child has ended");
            // The harness may have started the line.
            if let Some((_, answer)) = line.trim_end().split_once(MARK) {
                return answer.to_owned();
            }
        }
    }

    pub fn say(&mut self, line: &str) {
        let to = self.to.as_mut().expect("not finished");
        writeln!(to, "{line}").and_then(|()| to.flush()).expect("the child listens");
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.answer()
    }

    /// Connects both ends.
    pub fn connect(&mut self, here: &End) -> Address {
        let address = self.address;
        self.ask(&format!("connect {}", hello(&here.address())));
        here.connect(&address);
        address
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started");
    }

    pub fn finish(mut self) {
        self.to = None;
        assert!(self.child.wait().expect("it was started").success());
    }
}

/// The child's side: one end, and one command per line until the input ends.
fn serve() {
    let len = std::env::var("TEST_LEN").ok().and_then(|v| v.parse().ok()).unwrap_or(1 << 20);
    let mut end = End::new(Opts { len, ..Opts::default() });
    report(&hello(&end.address()));
    let mut there = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("the parent's output");
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers: Vec<usize> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        match verb {
            "connect" => {
                let address = parse(rest);
                end.connect(&address);
                there = Some(address);
                report("ok");
            }
            "recv" => {
                assert_eq!(end.recv(numbers[0] as u64, numbers[1], numbers[2]), 0);
                report("ok");
            }
            "unmap" => {
                let (mr, addr) = end.unmapped(numbers[0]);
                // SAFETY: alive.
                let rkey = unsafe { (*mr).rkey };
                report(&hello(&Address { addr, rkey, ..end.address() }));
            }
            "poll" => {
                let wc = wait_for(if rest == "recv" { end.rcq } else { end.scq });
                report(&format!("{} {} {} {}", wc.wr_id, wc.status, wc.byte_len, imm(&wc)));
            }
            "gid" => report(&std::net::Ipv6Addr::from(end.gid_at(numbers[0] as i32)).to_string()),
            "sum" => report(&checksum(&end.buf[..numbers[0]]).to_string()),
            "set" => {
                end.buf[numbers[0]..numbers[0] + 8].copy_from_slice(&(numbers[1] as u64).to_ne_bytes());
                report("ok");
            }
            "get" => {
                let bytes = end.buf[numbers[0]..numbers[0] + 8].try_into().expect("8 bytes");
                report(&u64::from_ne_bytes(bytes).to_string());
            }
            "write" => {
                let to = there.expect("connected");
                let mut sges = [end.sge(0, numbers[0])];
                let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0);
                assert_eq!(end.send(wr.imm(numbers[1] as u32)), 0);
                assert_eq!(end.poll_send().status, 0);
                report("ok");
            }
            "stream" => {
                // Writes until the parent kills it during a write.
                let to = there.expect("connected");
                report("ok");
                let begin = std::time::Instant::now();
                while begin.elapsed() < PATIENCE {
                    let mut sges = [end.sge(0, numbers[0])];
                    assert_eq!(end.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
                    end.poll_send();
                }
            }
            other => panic!("unknown command {other}"),
        }
    }
}
