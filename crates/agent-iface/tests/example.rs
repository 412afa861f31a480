//! The agent of `examples/agent.rs`, as a plugin meets it.

#[path = "../examples/agent.rs"]
#[allow(dead_code, reason = "its main is for the program alone")]
mod agent;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::agent::{ENTRY_SIZE, Hint, Register, Request, Response, Status, entry_offset};

/// The agent's socket, once it listens.
fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(e) => panic!("{}: {e}", socket.display()),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the agent does not listen");
        std::thread::yield_now();
    }
}

fn register(conn_id: u32, last: u8) -> Request {
    let [sout_src, sup_src] = [[10, 0, 0, 1].into(), [10, 1, 0, 1].into()];
    let [sout_dst, sup_dst] = [[10, 0, 0, last].into(), [10, 1, 0, last].into()];
    Request::Register(Register { conn_id, sout_src, sout_dst, sup_src, sup_dst })
}

/// Sends all requests in one write and reads one response for each.
fn exchange(plugin: &mut UnixStream, requests: &[Request]) -> Vec<Response> {
    let mut bytes = Vec::new();
    for (message, len) in requests.iter().map(Request::encode) {
        bytes.extend_from_slice(&message[..len]);
    }
    plugin.write_all(&bytes).unwrap();
    let (mut received, mut buffer, mut responses) = (Vec::new(), [0; 64], Vec::new());
    while responses.len() < requests.len() {
        let n = plugin.read(&mut buffer).unwrap();
        assert!(n > 0, "the agent closed the socket after {responses:?}");
        received.extend_from_slice(&buffer[..n]);
        while let Some((response, len)) = Response::decode(&received).unwrap() {
            received.drain(..len);
            responses.push(response);
        }
    }
    responses
}

#[test]
fn each_pair_of_hosts_has_one_slot_with_the_share() {
    let dir = tempfile::tempdir().unwrap();
    let (hints, socket) = (dir.path().join("hints"), dir.path().join("agent.sock"));
    let paths = (hints.clone(), socket.clone());
    std::thread::spawn(move || agent::run(&paths.0, &paths.1, 341));

    let mut plugin = connect(&socket);
    let requests = [register(1, 2), register(2, 3), register(3, 2), Request::Deregister { conn_id: 2 }];
    let status = Status::SUCCESS;
    let registered = |slot| Response::Registered { status, slot };
    let expected = [registered(0), registered(1), registered(0), Response::Deregistered { status }];
    assert_eq!(exchange(&mut plugin, &requests), expected);

    let file = fs::read(&hints).unwrap();
    for (slot, last) in [(0, 2), (1, 3)] {
        let at = entry_offset(slot);
        let hint = Hint::decode(file[at..at + ENTRY_SIZE].try_into().unwrap());
        assert_eq!((hint.share(), hint.src, hint.dst), (341, [10, 0, 0, 1].into(), [10, 0, 0, last].into()));
    }
    // A second process has the same slots for the same pairs.
    assert_eq!(exchange(&mut connect(&socket), &[register(1, 3)]), [registered(1)]);
}
