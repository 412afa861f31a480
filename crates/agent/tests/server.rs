//! The server against plugins that are of another release, lie, flood or die.

use std::io::{IoSlice, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpib_agent::{Agent, Config, Handle, Notify, Order, Server};
use nccl_net_mpib_agent_iface::agent::memory::Memory;
use nccl_net_mpib_agent_iface::agent::{
    ENTRY_SIZE, Hint, IN_MEMORY, Register, Request, Response, Status, TAKES_MEMORY, entry_offset, flags,
    passing,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Running {
    dir: tempfile::TempDir,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    fn start_in(dir: tempfile::TempDir, config: &str) -> Self {
        Self::start_with(dir, config, None)
    }

    pub(crate) fn start_with(dir: tempfile::TempDir, config: &str, notify: Option<Notify>) -> Self {
        let mut server = Server::bind(dir.path(), Config::parse(config).unwrap(), None).unwrap();
        let handle = server.handle();
        if let Some(notify) = notify {
            server.notify(notify);
        }
        Self { dir, handle, thread: Some(thread::spawn(move || server.run().unwrap())) }
    }

    fn stop(mut self) -> tempfile::TempDir {
        self.end();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    fn end(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub(crate) fn connect(&self) -> Client {
        let socket = UnixStream::connect(self.dir.path().join("agent.sock")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Client { socket, input: Vec::new(), file: None }
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.handle.read(Agent::snapshot).events.into_iter().map(|event| event.text).collect()
    }

    pub(crate) fn processes(&self) -> usize {
        self.handle.read(Agent::snapshot).processes.len()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for something that another thread does.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A plugin's end of the socket.
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    input: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Client {
    pub(crate) fn send(&mut self, request: &Request, flags: u8) {
        let (bytes, len) = request.encode_with(flags);
        self.socket.write_all(&bytes[..len]).unwrap();
    }

    /// The next message, and its flags.
    pub(crate) fn message(&mut self) -> (Response, u8) {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some((response, len)) = Response::decode(&self.input).unwrap() {
                let flags = flags(&self.input);
                self.input.drain(..len);
                return (response, flags);
            }
            let mut bytes = [0; 64];
            match passing::receive(&self.socket, &mut bytes) {
                Ok((n, file)) => {
                    assert!(n > 0, "the agent has closed");
                    self.input.extend_from_slice(&bytes[..n]);
                    self.file = file.into_iter().next().or(self.file.take());
                }
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
            }
            assert!(Instant::now() < end, "no answer");
            thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn register(&mut self, conn_id: u32, last: u8, flags: u8) -> (Response, u8) {
        let ip = |net, last| Ipv4Addr::new(10, net, 0, last);
        let (sout_src, sout_dst) = (ip(0, 1), ip(0, last));
        let register = Register { conn_id, sout_src, sout_dst, sup_src: ip(1, 1), sup_dst: ip(1, last) };
        self.send(&Request::Register(register), flags);
        self.message()
    }

    pub(crate) fn closed(&mut self) -> bool {
        match self.socket.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            // The agent had not read everything.
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn slot(slot: u32) -> Response {
    Response::Registered { status: Status::SUCCESS, slot }
}

pub(crate) fn deregistered(status: Status) -> Response {
    Response::Deregistered { status }
}

//= agent-interface.md: the memory file comes with the first answer to a plugin that takes it
#[test]
fn a_plugin_gets_its_memory_file_with_the_first_answer() {
    let agent = Running::start("default_share = 341");
    let mut plugin = agent.connect();
    assert_eq!(plugin.register(1, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
    let memory = Memory::open(plugin.file.take().expect("a descriptor")).unwrap();
    assert_eq!(memory.flow(0).read().unwrap().share(), 341);
    assert_eq!(plugin.register(2, 3, TAKES_MEMORY), (slot(1), IN_MEMORY));
    assert!(plugin.file.is_none(), "once");
    plugin.send(&Request::Deregister { conn_id: 1 }, 0);
    assert_eq!(plugin.message(), (deregistered(Status::SUCCESS), 0));
    plugin.send(&Request::Deregister { conn_id: 1 }, 0);
    assert_eq!(plugin.message(), (deregistered(Status::INVALID_REQUEST), 0));

    agent.handle.change(|agent| agent.drain("mlx5_0:1", true, Order::by("root"))).unwrap();
    assert_eq!(plugin.message(), (Response::PortsChanged, 0));
    assert_eq!(memory.ports().unwrap()[0].name, "mlx5_0:1");
}

//= agent-interface.md: ATTACH brings the memory file without a connection
#[test]
fn a_process_without_connections_attaches() {
    let agent = Running::start("drain = [\"mlx5_0:1\"]");
    let mut plugin = agent.connect();
    plugin.send(&Request::Attach, 0);
    assert_eq!(plugin.message(), (deregistered(Status::SUCCESS), IN_MEMORY));
    let memory = Memory::open(plugin.file.take().unwrap()).unwrap();
    assert_eq!(memory.ports().unwrap()[0].scale, 0);
    agent.handle.change(|agent| agent.drain("mlx5_0:1", false, Order::by("root"))).unwrap();
    assert_eq!(plugin.message(), (Response::PortsChanged, 0));
    assert!(memory.ports().unwrap().is_empty());
}

/// The agent needs none of them. They would use up its own, and keep a stranger's files open.
//= agent-interface.md: what is no page of the process costs one line of the log
#[test]
fn descriptors_that_a_process_passes_are_closed() {
    let agent = Running::start("");
    let mut plugin = agent.connect();
    let (mut read, write) = std::io::pipe().unwrap();
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    for count in [1, 3, 253] {
        let fds = vec![write.as_raw_fd(); count];
        let (bytes, len) = Request::Deregister { conn_id: 1 }.encode_with(0);
        let control = [ControlMessage::ScmRights(&fds)];
        let to = plugin.socket.as_raw_fd();
        sendmsg::<()>(to, &[IoSlice::new(&bytes[..len])], &control, MsgFlags::empty(), None).unwrap();
        assert_eq!(plugin.message(), (deregistered(Status::INVALID_REQUEST), 0));
    }
    drop(write);
    // The end of the pipe: nobody has its other end any more.
    until("the end of the pipe", || read.read(&mut [0]).is_ok_and(|n| n == 0));
}

//= agent-interface.md: plugins without a memory file have slots in the hint file
#[test]
fn a_plugin_of_an_earlier_release_has_the_hint_file_and_no_other_messages() {
    let agent = Running::start("default_share = 341");
    let mut plugin = agent.connect();
    assert_eq!(plugin.register(1, 2, 0), (slot(0), 0));
    assert!(plugin.file.is_none());
    let bytes = std::fs::read(agent.dir.path().join("hints")).unwrap();
    let entry: [u8; ENTRY_SIZE] = bytes[entry_offset(0)..][..ENTRY_SIZE].try_into().unwrap();
    assert_eq!((Hint::decode(&entry).share(), Hint::decode(&entry).dst), (341, [10, 0, 0, 2].into()));
    agent.handle.change(|agent| agent.drain("mlx5_0:1", true, Order::by("root"))).unwrap();
    plugin.send(&Request::Deregister { conn_id: 1 }, 0);
    assert_eq!(plugin.message(), (deregistered(Status::SUCCESS), 0), "PORTS CHANGED was not sent");

    let without = Running::start("hint_file = false");
    assert!(!without.dir.path().join("hints").exists());
    let refused = Response::Registered { status: Status::NO_FREE_SLOT, slot: 0 };
    assert_eq!(without.connect().register(1, 2, 0), (refused, 0));
}

//= agent.md: a process that sends no requests, or reads no answers, is disconnected, and only that one
#[test]
fn a_process_that_breaks_the_protocol_is_disconnected_and_others_are_served() {
    let agent = Running::start("");
    let mut good = agent.connect();
    assert_eq!(good.register(1, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
    let request = |kind: u8, len: u8| [0x52, 0x49, 0x50, 0x4d, len, 0, kind, 0].to_vec();
    for bytes in
        [b"GET / HTTP/1.1\r\n\r\n".to_vec(), request(1, 20), request(2, 0), request(9, 8), request(128, 12)]
    {
        let mut bad = agent.connect();
        bad.socket.write_all(&bytes).unwrap();
        assert!(bad.closed(), "{bytes:?}");
    }
    assert!(
        agent.events().iter().any(|e| e.contains("does not speak the protocol: message type 1 of 20 bytes"))
    );

    // One that floods the agent with requests and reads nothing.
    let mut deaf = agent.connect();
    let (bytes, len) = Request::Deregister { conn_id: 7 }.encode();
    let flood = bytes[..len].repeat(10_000);
    until("the end of a flood", || deaf.socket.write_all(&flood).is_err());
    until("a line", || agent.events().iter().any(|e| e.contains("does not read its answers")));

    // One that stops within a message, and one that ends without a word.
    let mut half = agent.connect();
    half.socket.write_all(&request(1, 28)).unwrap();
    drop(agent.connect());
    assert_eq!(good.register(2, 3, TAKES_MEMORY), (slot(1), IN_MEMORY));
    until("the ends of the others", || agent.processes() == 2);
    drop(half);
    until("the end of the last", || agent.processes() == 1);
    assert_eq!(good.register(3, 4, TAKES_MEMORY), (slot(2), IN_MEMORY));
}

//= agent-interface.md: complaints about processes are limited
#[test]
fn a_process_cannot_fill_the_log() {
    let agent = Running::start("");
    for _ in 0..50 {
        let mut bad = agent.connect();
        bad.socket.write_all(b"nonsense").unwrap();
        assert!(bad.closed());
    }
    until("the last one", || agent.processes() == 0);
    let lines = agent.events().iter().filter(|e| e.contains("does not speak")).count();
    assert_eq!(lines, 10);
}

//= agent.md: drains outlive a restart of the agent
#[test]
fn an_agent_that_follows_another_has_its_drains_and_its_socket() {
    let agent = Running::start("policy = \"external\"");
    let mut plugin = agent.connect();
    plugin.register(1, 2, TAKES_MEMORY);
    let pair = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    agent.handle.change(|agent| {
        agent.drain("mlx5_0:1", true, Order::by("root")).unwrap();
        agent.set_share(pair.0, pair.1, 99).unwrap();
    });
    assert_eq!(plugin.message().0, Response::PortsChanged);
    let second = Server::bind(agent.dir.path(), Config::default(), None).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse, "{second}");
    let dir = agent.stop();
    assert!(plugin.closed());

    let next = Running::start_in(dir, "policy = \"external\"");
    let mut plugin = next.connect();
    assert_eq!(plugin.register(1, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
    let memory = Memory::open(plugin.file.take().unwrap()).unwrap();
    assert_eq!(memory.flow(0).read().unwrap().share(), 99);
    assert_eq!(memory.ports().unwrap()[0].name, "mlx5_0:1");
}

#[test]
fn what_was_left_damaged_is_named_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(Path::new(dir.path()).join("state.json"), "{\"drains\":").unwrap();
    let agent = Running::start_in(dir, "");
    assert!(agent.events()[0].contains("nothing of it is used"), "{:?}", agent.events());
}
