//! Processes that register with the agent of a host, in their own way.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::thread;

use arbitrary::Arbitrary;
use mpib_agent::{Config, Handle, Server, Snapshot};
use mpib_tests::pair::until;
use nccl_net_mpib_agent_iface::agent::paths::SOCKET_NAME;
use nccl_net_mpib_agent_iface::agent::{
    IN_MEMORY, MESSAGE_MAX, Register, Request, Response, Status, TAKES_MEMORY, flags, passing,
};
use tempfile::TempDir;

use crate::steps;

/// Most steps of one run.
const MAX_STEPS: usize = 64;
/// Processes at one time.
const PROCESSES: usize = 3;
/// The limit of registered connections of a process.
const CONNECTIONS: usize = 6;
/// Pairs of addresses, and numbers of connections: so few that they meet.
const PAIRS: u8 = 5;
const NUMBERS: u8 = 8;

/// What a process sends.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Kind {
    Register { number: u8, pair: u8 },
    Deregister { number: u8 },
    Attach,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Step {
    Connect { process: u8 },
    Request { process: u8, kind: Kind, takes_memory: bool },
    Bytes { process: u8, bytes: [u8; 9], len: u8 },
    Close { process: u8 },
}

/// SOUT addresses of both ends.
type Pair = (Ipv4Addr, Ipv4Addr);
/// The slot of each pair, with its connections.
type Slots = BTreeMap<Pair, (u8, usize)>;

/// What the agent must know of a process.
struct Process {
    socket: UnixStream,
    /// What was sent behind the last whole request.
    sent: Vec<u8>,
    /// What was read behind the last whole answer.
    read: Vec<u8>,
    /// The pair of each connection, and whether its slot is in the memory file.
    connections: HashMap<u32, (Pair, bool)>,
    flows: Slots,
    /// Whether it has got its memory file.
    has_memory: bool,
}

/// An agent that serves all runs.
struct Agent {
    folder: TempDir,
    handle: Handle,
}

struct World<'a> {
    agent: &'a Agent,
    /// In the order in which they have connected.
    processes: Vec<(u8, Process)>,
    /// Those of the hint file.
    plain: Slots,
}

/// Sends what the bytes stand for to an agent. Each answer is that of a model; what is no request ends
/// its own connection alone; nothing is left once all processes have closed.
pub fn registrations(data: &[u8]) {
    thread_local!(static AGENT: Agent = Agent::start());
    let Some(steps) = steps::<Step>(data, MAX_STEPS) else { return };
    AGENT.with(|agent| {
        let mut world = World { agent, processes: Vec::new(), plain: Slots::new() };
        steps.into_iter().for_each(|step| world.make(step));
        world.end();
    });
}

impl Agent {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let mut config = Config { hint_file: true, ..Config::default() };
        config.limits.connections_per_process = CONNECTIONS;
        let server = Server::bind(folder.path(), config, None).expect("a socket");
        let handle = server.handle();
        thread::spawn(|| server.run().expect("an agent that goes on"));
        Self { folder, handle }
    }

    fn snapshot(&self) -> Snapshot {
        self.handle.read(mpib_agent::Agent::snapshot)
    }
}

impl World<'_> {
    fn make(&mut self, step: Step) {
        match step {
            Step::Connect { process } => {
                self.close(process);
                self.processes.push((number(process), Process::connect(self.agent)));
            }
            Step::Request { process, kind, takes_memory } => {
                let (bytes, len) = request(kind).encode_with(if takes_memory { TAKES_MEMORY } else { 0 });
                self.send(process, &bytes[..len]);
            }
            Step::Bytes { process, bytes, len } => {
                self.send(process, &bytes[..usize::from(len) % (bytes.len() + 1)]);
            }
            Step::Close { process } => self.close(process),
        }
    }

    fn send(&mut self, n: u8, bytes: &[u8]) {
        let Some(at) = self.find(n) else { return };
        let process = &mut self.processes[at].1;
        assert_eq!(passing::send(&process.socket, bytes, None).expect("an open connection"), bytes.len());
        process.sent.extend_from_slice(bytes);
        let mut expected = Vec::new();
        loop {
            match Request::decode(&process.sent) {
                Ok(Some((request, len))) => {
                    let takes_memory = flags(&process.sent) & TAKES_MEMORY != 0;
                    process.sent.drain(..len);
                    expected.push(process.answer(request, takes_memory, &mut self.plain));
                }
                Ok(None) => return expected.into_iter().for_each(|answer| process.reads(answer)),
                // Requests just before it may get no answer.
                Err(_) => {
                    process.is_closed();
                    return self.close(n);
                }
            }
        }
    }

    fn close(&mut self, n: u8) {
        let Some(at) = self.find(n) else { return };
        let (_, process) = self.processes.remove(at);
        let plain = process.connections.values().filter(|(_, in_memory)| !in_memory);
        plain.for_each(|(pair, _)| remove(&mut self.plain, *pair));
        drop(process);
        // The slots are free from now on.
        self.agrees();
    }

    fn find(&self, n: u8) -> Option<usize> {
        self.processes.iter().position(|(other, _)| *other == number(n))
    }

    /// Compares the agent with the model, closes all connections, and compares again.
    fn end(mut self) {
        self.agrees();
        self.processes.clear();
        self.plain.clear();
        self.agrees();
    }

    fn agrees(&self) {
        let counts: Vec<_> =
            self.processes.iter().map(|(_, one)| (one.connections.len(), flows(&one.flows))).collect();
        until("what the agent knows", || {
            let found = self.agent.snapshot();
            let views = |all: Vec<mpib_agent::state::FlowView>| -> Vec<_> {
                all.into_iter().map(|flow| ((flow.source, flow.destination), flow.connections)).collect()
            };
            let processes: Vec<_> =
                found.processes.into_iter().map(|one| (one.connections, views(one.flows))).collect();
            (processes == counts && views(found.plain_flows) == flows(&self.plain)).then_some(())
        });
    }
}

impl Process {
    fn connect(agent: &Agent) -> Self {
        let socket = UnixStream::connect(agent.folder.path().join(SOCKET_NAME)).expect("an agent");
        socket.set_nonblocking(true).expect("a socket");
        let (connections, flows) = (HashMap::new(), Slots::new());
        Self { socket, sent: Vec::new(), read: Vec::new(), connections, flows, has_memory: false }
    }

    /// Returns the answer to a request, and whether it says that the process has a memory file.
    fn answer(&mut self, request: Request, takes_memory: bool, plain: &mut Slots) -> (Response, bool) {
        match request {
            Request::Register(register) => {
                let refused = |status| (Response::Registered { status, slot: 0 }, false);
                if self.connections.contains_key(&register.conn_id) {
                    return refused(Status::INVALID_REQUEST);
                }
                if self.connections.len() == CONNECTIONS {
                    return refused(Status::NO_FREE_SLOT);
                }
                let pair = (register.sout_src, register.sout_dst);
                self.connections.insert(register.conn_id, (pair, takes_memory));
                let slot = add(if takes_memory { &mut self.flows } else { plain }, pair);
                (Response::Registered { status: Status::SUCCESS, slot: slot.into() }, takes_memory)
            }
            Request::Deregister { conn_id } => {
                let removed = self.connections.remove(&conn_id);
                if let Some((pair, in_memory)) = removed {
                    remove(if in_memory { &mut self.flows } else { plain }, pair);
                }
                let status = if removed.is_some() { Status::SUCCESS } else { Status::INVALID_REQUEST };
                (Response::Deregistered { status }, false)
            }
            Request::Attach => (Response::Deregistered { status: Status::SUCCESS }, true),
        }
    }

    /// Reads an answer. The first one with a slot in the memory file brings the file.
    fn reads(&mut self, (expected, in_memory): (Response, bool)) {
        let mut file = None;
        let (found, len) = until("an answer", || {
            if let Some(answer) = Response::decode(&self.read).expect("an answer") {
                return Some(answer);
            }
            let mut chunk = [0; MESSAGE_MAX];
            match passing::receive(&self.socket, &mut chunk) {
                Ok((0, _)) => panic!("the agent has closed a connection before {expected:?}"),
                Ok((n, descriptor)) => {
                    self.read.extend_from_slice(&chunk[..n]);
                    file = file.take().or(descriptor.into_iter().next());
                }
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock, "{e}"),
            }
            None
        });
        assert_eq!(found, expected);
        assert_eq!(flags(&self.read) & IN_MEMORY != 0, in_memory, "{expected:?}");
        assert_eq!(file.is_some(), in_memory && !self.has_memory, "{expected:?}");
        self.read.drain(..len);
        self.has_memory |= in_memory;
    }

    /// The agent closes the connection.
    fn is_closed(&self) {
        until("the end of a connection", || match passing::receive(&self.socket, &mut [0; MESSAGE_MAX]) {
            Ok((n, _)) => (n == 0).then_some(()),
            Err(e) => (e.kind() != io::ErrorKind::WouldBlock).then_some(()),
        });
    }
}

fn number(process: u8) -> u8 {
    process % PROCESSES as u8
}

fn request(kind: Kind) -> Request {
    match kind {
        Kind::Register { number, pair } => {
            let [sout_src, sout_dst, sup_src, sup_dst] =
                [1, 2, 3, 4].map(|network| Ipv4Addr::new(10, network, 0, pair % PAIRS));
            Request::Register(Register {
                conn_id: (number % NUMBERS).into(),
                sout_src,
                sout_dst,
                sup_src,
                sup_dst,
            })
        }
        Kind::Deregister { number } => Request::Deregister { conn_id: (number % NUMBERS).into() },
        Kind::Attach => Request::Attach,
    }
}

/// Adds a connection of a pair. Returns its slot: the first free one for a new pair.
fn add(slots: &mut Slots, pair: Pair) -> u8 {
    let free = (0..u8::MAX).find(|slot| slots.values().all(|(used, _)| used != slot)).expect("a free slot");
    let (slot, count) = slots.entry(pair).or_insert((free, 0));
    *count += 1;
    *slot
}

fn remove(slots: &mut Slots, pair: Pair) {
    let (_, count) = slots.get_mut(&pair).expect("a pair that was added");
    *count -= 1;
    if *count == 0 {
        slots.remove(&pair);
    }
}

/// The pairs with their connections, as the agent shows them.
fn flows(slots: &Slots) -> Vec<(Pair, usize)> {
    slots.iter().map(|(pair, (_, count))| (*pair, *count)).collect()
}
