//! Statistics pages that processes pass, and what else they may pass.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use mpib_agent::{Agent, Server};
use nccl_net_mpib_agent_iface::agent::{IN_MEMORY, Request, Status, TAKES_MEMORY, passing};
use nccl_net_mpib_agent_iface::codes::Code;
use nccl_net_mpib_agent_iface::stats::{
    Data, Direction, Islands, NewConnection, STATS_SIZE, StatsWriter, Traffic,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::sockopt::Linger;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt};

use crate::server::{Client, Running, deregistered, slot, until};

/// Offset of the process id in a page.
const PID: usize = 32;

/// The page of this process, and its writer.
pub(crate) fn page() -> (&'static StatsWriter, BorrowedFd<'static>) {
    (StatsWriter::for_this_process("1.2.3").unwrap(), StatsWriter::descriptor().unwrap())
}

/// Sends a request with a descriptor, and waits for the answer.
fn pass(client: &mut Client, descriptor: BorrowedFd<'_>) {
    let (bytes, len) = Request::Deregister { conn_id: 9 }.encode();
    assert_eq!(passing::send(&client.socket, &bytes[..len], Some(descriptor)).unwrap(), len);
    assert_eq!(client.message(), (deregistered(Status::INVALID_REQUEST), 0));
}

/// A sealed file in memory with these bytes.
fn sealed(bytes: &[u8], seals: SealFlag) -> File {
    let file = File::from(memfd_create("mpib-stats", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

/// The bytes of this process's page, as if another process had written it.
fn of_process(pid: u32) -> Vec<u8> {
    let mut bytes = vec![0; STATS_SIZE];
    File::from(page().1.try_clone_to_owned().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
    bytes[PID..PID + 4].copy_from_slice(&pid.to_ne_bytes());
    bytes
}

/// What the agent has said of pages.
fn said(agent: &Running) -> Vec<String> {
    let lines = agent.events().into_iter();
    lines.filter(|line| line.contains("has passed no statistics page that can be used: ")).collect()
}

//= agent-interface.md: a process passes its statistics page
#[test]
fn the_page_that_a_process_passes_decides_its_first_share() {
    let (writer, descriptor) = page();
    let rails: &[(u8, &str)] = &[(0, "pass_a:1"), (1, "pass_b:1")];
    let taken = writer.add(&NewConnection {
        direction: Direction::Send,
        islands: Islands::Two,
        data: Data::Split,
        traffic: Traffic::Messages,
        peer: "p",
        rails,
        substituted: false,
    });
    taken.entry().share(77);
    let agent = Running::start("policy = \"measured\"");
    let mut plugin = agent.connect();
    pass(&mut plugin, descriptor);
    assert_eq!(plugin.register(1, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
    let seen = agent.handle.read(Agent::snapshot);
    assert_eq!(seen.processes[0].ports, Some(["pass_a:1", "pass_b:1"].map(String::from)));
    assert_eq!((seen.processes[0].used_share, seen.processes[0].flows[0].share), (Some(77), 77));
    assert_eq!(said(&agent), [""; 0]);
}

//= agent-interface.md: what is no page of the process costs one line of the log
#[test]
fn a_process_that_passes_anything_else_is_served_and_costs_one_line() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let own = of_process(std::process::id());
    let (pipe, _writer) = io::pipe().unwrap();
    let truncated = sealed(&own, SealFlag::F_SEAL_GROW);
    truncated.set_len(0).unwrap();
    let write_only = std::fs::OpenOptions::new();
    let write_only = write_only.clone().write(true).open(format!("/proc/self/fd/{}", page().1.as_raw_fd()));
    let mut other_magic = own.clone();
    other_magic[0] ^= 1;
    let none = "not a file in memory that is sealed";
    let wrong: Vec<(OwnedFd, &str)> = vec![
        (pipe.into(), none),
        (File::open("/").unwrap().into(), none),
        (File::open("/dev/zero").unwrap().into(), none),
        (tempfile::tempfile().unwrap().into(), none),
        (agent_socket(), none),
        (truncated.into(), none),
        (sealed(&own[..4096], seals).into(), "4096 bytes, expected"),
        (sealed(&other_magic, seals).into(), "magic 0x"),
        (sealed(&of_process(1), seals).into(), "it is the page of process 1, and the process is "),
    ];
    // Linux refuses to open a file for writing whose writes are sealed.
    let wrong = wrong.into_iter().chain(write_only.ok().map(|file| (file.into(), "Bad file descriptor")));
    for (descriptor, why) in wrong {
        let agent = Running::start("");
        let mut plugin = agent.connect();
        pass(&mut plugin, descriptor.as_fd());
        // A good one is too late.
        pass(&mut plugin, page().1);
        let lines = said(&agent);
        let [line] = &lines[..] else { panic!("{why}: {lines:?}") };
        let code = Code::take(line).1.unwrap();
        assert!(line.contains(why) && code != Code::of_log("anything"), "{line}");
        assert_eq!(plugin.register(1, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
        assert_eq!(agent.handle.read(Agent::snapshot).processes[0].ports, None, "{why}");
    }
}

/// A socket of this process.
fn agent_socket() -> OwnedFd {
    std::os::unix::net::UnixStream::pair().unwrap().0.into()
}

//= agent-interface.md: a page that another user has made is not used
#[test]
fn a_page_of_another_user_is_not_used() {
    let file = sealed(&of_process(std::process::id()), SealFlag::F_SEAL_SHRINK);
    if std::os::unix::fs::fchown(&file, Some(12345), None).is_err() {
        return eprintln!("skipped: only root can play another user");
    }
    let agent = Running::start("");
    pass(&mut agent.connect(), file.as_fd());
    let lines = said(&agent);
    assert!(lines.len() == 1 && lines[0].contains(": user 12345 has made it"), "{lines:?}");
}

/// The one who closes such a socket last waits until the other end has read everything, for an hour.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 65536]).is_ok() {}
    // A socket that does not block is not waited for.
    ours.set_nonblocking(false).unwrap();
    setsockopt(&ours, Linger, &libc::linger { l_onoff: 1, l_linger: 3600 }).unwrap();
    (ours.into(), theirs)
}

/// Sends descriptors.
fn give(client: &Client, bytes: &[u8], descriptors: &[OwnedFd], flags: MsgFlags) {
    let fds: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(client.socket.as_raw_fd(), &[IoSlice::new(bytes)], &control, flags, None).unwrap();
}

//= agent-interface.md: a descriptor that cannot be closed soon holds nobody up
#[test]
fn a_descriptor_whose_close_takes_an_hour_holds_nobody_up() {
    let agent = Running::start("");
    let mut honest = agent.connect();
    honest.register(1, 2, TAKES_MEMORY);
    let (bytes, len) = Request::Deregister { conn_id: 9 }.encode();
    let request = &bytes[..len];
    let plain = MsgFlags::empty();
    // As the first descriptor, as a further one, in a message that is never read, and with a byte that a
    // reader of the others does not see.
    let messages: [&[(&[u8], usize, MsgFlags)]; 4] = [
        &[(request, 1, plain)],
        &[(request, 2, plain)],
        &[(b"nonsense", 0, plain), (request, 1, plain)],
        &[(b"!", 1, MsgFlags::MSG_OOB)],
    ];
    for (number, messages) in messages.into_iter().enumerate() {
        let (socket, mut other) = lingering();
        let (pipe, _writer) = io::pipe().unwrap();
        let descriptors = [OwnedFd::from(pipe), socket];
        // While the agent waits for its state: it must be the last who has the descriptor.
        let plugin = agent.handle.change(|_| {
            honest.send(&Request::Deregister { conn_id: 9 }, 0);
            let plugin = agent.connect();
            for (bytes, count, flags) in messages {
                give(&plugin, bytes, &descriptors[2 - count..], *flags);
            }
            drop(descriptors);
            plugin
        });
        assert_eq!(honest.message(), (deregistered(Status::INVALID_REQUEST), 0));
        assert_eq!(honest.register(2 + number as u32, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
        drop(plugin);
        until("the end of the connection", || agent.processes() == 1);
        assert_eq!(honest.register(100 + number as u32, 2, TAKES_MEMORY), (slot(0), IN_MEMORY));
        // The other end reads: the close is over.
        other.read_to_end(&mut Vec::new()).unwrap();
    }
}

//= agent-interface.md: who has too many descriptors that are not closed gets no further connection
#[test]
fn a_user_whose_descriptors_are_not_closed_is_refused_until_they_are() {
    Server::raise_limits();
    if getrlimit(Resource::RLIMIT_NOFILE).unwrap().0 < 4_000 {
        return eprintln!("skipped: a process may have fewer than 4,000 descriptors here");
    }
    let agent = Running::start("");
    let said = |part: &str| agent.events().iter().any(|line| line.contains(part));
    let mut early = agent.connect();
    early.register(1, 2, TAKES_MEMORY);
    let (bytes, len) = Request::Deregister { conn_id: 9 }.encode();
    let (socket, mut other) = lingering();
    let mut plugin = agent.connect();
    give(&plugin, &bytes[..len], &[agent_socket(), socket], MsgFlags::empty());
    assert_eq!(plugin.message(), (deregistered(Status::INVALID_REQUEST), 0));
    let (pipe, _writer) = io::pipe().unwrap();
    let many: Vec<OwnedFd> = (0..250).map(|_| pipe.try_clone().unwrap().into()).collect();
    until("the end of what it may pass", || {
        let control = [ControlMessage::ScmRights(&many.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>())];
        let bytes = [IoSlice::new(&bytes[..len])];
        sendmsg::<()>(plugin.socket.as_raw_fd(), &bytes, &control, MsgFlags::MSG_NOSIGNAL, None).is_err()
    });
    until("a line about its connection", || said("is disconnected: it is of a user who has passed 1"));
    drop(agent.connect());
    until("a line about another one", || said("is refused: 1"));
    // So is one that could pass more of them.
    early.send(&Request::Deregister { conn_id: 1 }, 0);
    assert!(early.closed());
    other.read_to_end(&mut Vec::new()).unwrap();
    let (bytes, len) = Request::Attach.encode();
    until("a connection", || {
        let mut later = agent.connect().socket;
        later.write_all(&bytes[..len]).is_ok() && later.read(&mut [0; 12]).is_ok_and(|n| n > 0)
    });
}
