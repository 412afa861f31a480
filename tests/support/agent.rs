//! An agent process for tests, which acts on commands from its standard input.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use nccl_net_mpib::simulation::agent::{Addresses, Options, Subscription};
use nccl_net_mpib::simulation::process::Process;
use nccl_net_mpib_agent_iface::agent::memory::{MEMORY_SIZE, MemoryWriter};
use nccl_net_mpib_agent_iface::agent::{
    HintsWriter, IN_MEMORY, Request, Response, Status, entry_offset, flags, passing,
};
use nccl_net_versions::{Level, Logger};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::log::{INFO, LOG, WARN};
use crate::pair::{LIMIT, until};
use crate::process::Role;

/// Passes its folder to the agent process.
const FOLDER: &str = "TEST_AGENT_FOLDER";

pub fn wait_share(flow: &Subscription, share: u16) {
    until(&format!("share {share}"), || (flow.share() == share).then_some(()));
}

/// One test's folder, with the options that lead there.
pub struct Place {
    dir: tempfile::TempDir,
    pub options: Options,
}

/// Whether a line of the log is a warning, and its text.
type Line = (bool, String);

impl Place {
    pub fn create() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Host programs in C have it so, unlike Rust's: a signal for a lost agent would end
            // this process. SAFETY: no handler is involved.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            nccl_net_mpib::simulation::log::install(Logger::from_fn(|level, _, _, text| {
                let level = if level == Level::Warn { WARN } else { INFO };
                LOG.lock().unwrap().push((level, text.to_string_lossy().into_owned()));
            }));
        });
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            sockets: vec![dir.path().join("agent.sock")],
            files: vec![dir.path().join("hints")],
            poll: Duration::from_micros(500),
            agent_uid: None,
            answer_timeout: LIMIT,
            settle_timeout: LIMIT,
            reconnect: Duration::from_millis(1),
            refused_again: Duration::from_millis(5),
            report_gap: Duration::ZERO,
        };
        Self { dir, options }
    }

    /// Where the agent listens.
    pub fn socket(&self) -> &Path {
        &self.options.sockets[0]
    }

    /// Where the hint file is.
    pub fn file(&self) -> &Path {
        &self.options.files[0]
    }

    /// What the log has on this place: lines with their level, WARN or not.
    pub fn log(&self) -> Vec<Line> {
        let dir = self.dir.path().to_str().unwrap();
        let log = LOG.lock().unwrap();
        let lines = log.iter().filter(|(_, text)| text.contains(dir));
        lines.map(|(level, text)| (*level == WARN, text.clone())).collect()
    }

    /// Waits for a line with this in it, behind the first `seen` ones.
    pub fn wait_line(&self, seen: usize, warn: bool, part: &str) -> Line {
        let until = Instant::now() + LIMIT;
        loop {
            let log = self.log();
            if let Some(line) = log.iter().skip(seen).find(|l| l.0 == warn && l.1.contains(part)) {
                return line.clone();
            }
            assert!(Instant::now() < until, "no line with {part:?}, but {log:#?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn flow(&self, last: u8) -> Subscription {
        Subscription::open(&Process::global().agent, &self.options, addresses(last)).unwrap()
    }

    /// An agent that has made its file and listens.
    pub fn agent(&self) -> Agent {
        self.agent_by(Role::Agent.command())
    }

    /// As [`agent`](Self::agent), by a command of [`Role::Agent`].
    pub fn agent_by(&self, command: Command) -> Agent {
        let mut agent = self.idle_agent_by(command);
        agent.tell("hints");
        agent.tell("listen");
        agent
    }

    /// An agent process that does nothing yet.
    pub fn idle_agent(&self) -> Agent {
        self.idle_agent_by(Role::Agent.command())
    }

    fn idle_agent_by(&self, mut command: Command) -> Agent {
        let mut child = command
            .env(FOLDER, self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tx, events) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some((_, event)) = line.split_once('@') {
                    let _ = tx.send(event.to_owned());
                }
            }
        });
        let input = child.stdin.take().unwrap();
        Agent { child, input, events, early: Vec::new() }
    }
}

pub fn addresses(last: u8) -> Addresses {
    Addresses {
        sout_src: [10, 0, 0, 1].into(),
        sout_dst: [10, 0, 0, last].into(),
        sup_src: [10, 1, 0, 1].into(),
        sup_dst: [10, 1, 0, last].into(),
    }
}

/// The test's end of an agent process, which is killed at the end.
pub struct Agent {
    child: Child,
    input: ChildStdin,
    events: Receiver<String>,
    early: Vec<String>,
}

impl Agent {
    /// Has it do something, and waits until it is done.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.event("done");
    }

    /// Waits for an event that begins like this. Others are kept.
    pub fn event(&mut self, begin: &str) -> String {
        if let Some(at) = self.early.iter().position(|e| e.starts_with(begin)) {
            return self.early.remove(at);
        }
        loop {
            match self.events.recv_timeout(LIMIT) {
                Ok(event) if event.starts_with(begin) => return event,
                Ok(event) => self.early.push(event),
                Err(e) => panic!("no event {begin:?} ({e}), but {:?}", self.early),
            }
        }
    }

    /// Events of this kind that have come so far.
    pub fn so_far(&mut self, begin: &str) -> Vec<String> {
        self.early.extend(self.events.try_iter());
        self.early.iter().filter(|e| e.starts_with(begin)).cloned().collect()
    }

    /// Drops the events that nobody waits for.
    pub fn forget(&mut self) {
        self.events.try_iter().for_each(drop);
        self.early.clear();
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the agent process knows.
struct State {
    dir: PathBuf,
    hints: Option<HintsWriter>,
    /// Which slot a pair has, and the share.
    pairs: HashMap<(Ipv4Addr, Ipv4Addr), (u8, u16)>,
    next: u8,
    mode: String,
    /// To be passed with the next answer.
    file: Option<OwnedFd>,
}

/// The agent process: obeys commands until its input ends.
pub fn run_agent() {
    let dir = std::env::var_os(FOLDER).expect("an agent has a folder");
    let state = State {
        dir: dir.into(),
        hints: None,
        pairs: HashMap::new(),
        next: 0,
        mode: "answer".into(),
        file: None,
    };
    let state = Arc::new(Mutex::new(state));
    for line in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "listen" {
            listen(&state, words.get(1).map(|uid| uid.parse().unwrap()));
        } else {
            state.lock().unwrap().obey(&words);
        }
        println!("@done");
    }
}

fn listen(state: &Arc<Mutex<State>>, uid: Option<u32>) {
    let path = state.lock().unwrap().dir.join("agent.sock");
    let _ = std::fs::remove_file(&path);
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    // The kernel notes the user at this moment.
    if let Some(uid) = uid {
        nix::unistd::seteuid(uid.into()).unwrap();
    }
    socket.listen(128).unwrap();
    nix::unistd::seteuid(nix::unistd::getuid()).unwrap();
    let listener = UnixListener::from(OwnedFd::from(socket));
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, state) = (stream.unwrap(), Arc::clone(&state));
            thread::spawn(move || serve(stream, &state));
        }
    });
}

fn serve(mut stream: UnixStream, state: &Mutex<State>) {
    println!("@connected");
    let mut input = Vec::new();
    let mut bytes = [0; 64];
    while let Ok(n) = stream.read(&mut bytes) {
        if n == 0 {
            break;
        }
        input.extend_from_slice(&bytes[..n]);
        while let Some((request, len)) = Request::decode(&input).unwrap() {
            let flags = flags(&input);
            input.drain(..len);
            let answer = state.lock().unwrap().answer(request, flags);
            let Some(answer) = answer else { return };
            let file = state.lock().unwrap().file.take();
            let _ = passing::send(&stream, &answer, file.as_ref().map(|file| file.as_fd()));
        }
    }
    println!("@closed");
}

impl State {
    fn hints(&mut self) -> &mut HintsWriter {
        self.hints.as_mut().unwrap()
    }

    fn obey(&mut self, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u16>().unwrap();
        match words[0] {
            "hints" => {
                let mut writer = HintsWriter::create(self.dir.join("hints")).unwrap();
                for ((src, dst), (slot, share)) in &self.pairs {
                    writer.assign(*slot, *src, *dst);
                    writer.set(*slot, *share);
                }
                self.hints = Some(writer);
            }
            "mode" => self.mode = words[1..].join(" "),
            "next" => self.next = number(1) as u8,
            // The share of the pair whose other end ends so.
            "set" => {
                let (_, (slot, share)) = self
                    .pairs
                    .iter_mut()
                    .find(|(pair, _)| u16::from(pair.1.octets()[3]) == number(1))
                    .unwrap();
                *share = number(2);
                let (slot, share) = (*slot, *share);
                self.hints().set(slot, share);
            }
            "free" => self.hints().free(number(1) as u8),
            // A writer that stops in the middle of a change; `set` completes it.
            "stop" => {
                let slot = number(1) as u8;
                let hint = self.hints().hint(slot);
                let file = std::fs::OpenOptions::new().write(true).open(self.dir.join("hints")).unwrap();
                let at = entry_offset(slot) as u64;
                file.write_all_at(&(hint.seq + 1).to_le_bytes(), at + 4).unwrap();
                file.write_all_at(&999u32.to_le_bytes(), at).unwrap();
            }
            // A slot that changes hands all the time.
            "flip" => {
                let slot = number(1) as u8;
                let ours = self.hints().hint(slot);
                for _ in 0..200_000 {
                    let hints = self.hints();
                    hints.assign(slot, [9, 9, 9, 9].into(), ours.dst);
                    hints.set(slot, 900);
                    hints.assign(slot, ours.src, ours.dst);
                    hints.set(slot, 100);
                }
            }
            other => panic!("{other}?"),
        }
    }

    /// `None` closes the connection.
    fn answer(&mut self, request: Request, flags: u8) -> Option<Vec<u8>> {
        let bytes = |response: Response| {
            let (bytes, len) = response.encode();
            Some(bytes[..len].to_vec())
        };
        let register = match request {
            Request::Register(register) => register,
            Request::Deregister { conn_id } => {
                println!("@deregistered {conn_id}");
                return match self.mode.as_str() {
                    "silent" => Some(Vec::new()),
                    _ => bytes(Response::Deregistered { status: Status::SUCCESS }),
                };
            }
            // An agent without a memory file.
            Request::Attach => return bytes(Response::Deregistered { status: Status::INVALID_REQUEST }),
        };
        let mode: Vec<&str> = self.mode.split(' ').collect();
        let number = || mode[1].parse::<u32>().unwrap();
        match mode[0] {
            "answer" => {}
            "silent" => return Some(Vec::new()),
            "half" => {
                return bytes(Response::Registered { status: Status::SUCCESS, slot: 0 })
                    .map(|b| b[..9].to_vec());
            }
            "garbage" => return Some(b"HTTP/1.1 400 Bad Request\r\n".to_vec()),
            "twice" => {
                return bytes(Response::Registered { status: Status::SUCCESS, slot: 0 }).map(|b| b.repeat(2));
            }
            "wrong" => return bytes(Response::Deregistered { status: Status::SUCCESS }),
            "slot" => return bytes(Response::Registered { status: Status::SUCCESS, slot: number() }),
            "refuse" => return bytes(Response::Registered { status: Status(number() as u8), slot: 0 }),
            "hang-up" => return None,
            // As an agent that has only the list of fields.
            "literal" => return Some(vec![0; 8]),
            "no-flags" if flags != 0 => return None,
            "no-flags" => {}
            "invalid-flags" if flags != 0 => {
                return bytes(Response::Registered { status: Status::INVALID_REQUEST, slot: 0 });
            }
            "invalid-flags" => {}
            // A slot of a memory file that does not come, or is none.
            "no-memory" => return in_memory(),
            "unsealed" => {
                let file = memfd_create("x", MFdFlags::MFD_ALLOW_SEALING).unwrap();
                std::fs::File::from(file.try_clone().unwrap()).set_len(MEMORY_SIZE as u64).unwrap();
                self.file = Some(file);
                return in_memory();
            }
            "strange-slot" => {
                let mut memory = MemoryWriter::create().unwrap();
                memory.assign(0, [9, 9, 9, 9].into(), register.sout_dst, 512);
                self.file = Some(memory.descriptor().try_clone_to_owned().unwrap());
                return in_memory();
            }
            other => panic!("{other}?"),
        }
        let pair = (register.sout_src, register.sout_dst);
        let slot = match self.pairs.get(&pair) {
            Some((slot, _)) => *slot,
            None => {
                let slot = self.next;
                self.next = slot.wrapping_add(1);
                self.pairs.insert(pair, (slot, 0));
                self.hints().assign(slot, pair.0, pair.1);
                slot
            }
        };
        println!("@registered {} {} {}", register.conn_id, register.sup_dst, slot);
        bytes(Response::Registered { status: Status::SUCCESS, slot: slot.into() })
    }
}

/// A slot of the memory file.
fn in_memory() -> Option<Vec<u8>> {
    let (bytes, len) = Response::Registered { status: Status::SUCCESS, slot: 0 }.encode_with(IN_MEMORY);
    Some(bytes[..len].to_vec())
}

/// Changes some bytes of a file in place.
pub fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}
