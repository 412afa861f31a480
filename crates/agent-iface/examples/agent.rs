//! A complete agent: every connection gets the same fixed share of SUP.
//!
//! ```text
//! cargo run -p nccl-net-mpib-agent-iface --example agent -- 341
//! ```
#![allow(missing_docs, unreachable_pub, reason = "a program, which a test includes")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::{env, fs, thread};

use nccl_net_mpib_agent_iface::agent::{HINTS_PATH, HintsWriter, Request, Response, SOCKET_PATH, Status};

/// The hint file, and the slot of each pair of SOUT addresses.
type Slots = Mutex<(HintsWriter, HashMap<(Ipv4Addr, Ipv4Addr), u8>)>;

fn main() -> io::Result<()> {
    let share = env::args().nth(1).map_or(Ok(341), |text| text.parse()).map_err(io::Error::other)?;
    fs::create_dir_all(Path::new(HINTS_PATH).parent().expect("a path below /tmp"))?;
    // A socket file of an earlier agent would make `bind` fail.
    let _ = fs::remove_file(SOCKET_PATH);
    run(Path::new(HINTS_PATH), Path::new(SOCKET_PATH), share)
}

/// Creates the hint file, listens, and serves each plugin in a separate thread.
pub fn run(hints: &Path, socket: &Path, share: u16) -> io::Result<()> {
    let slots = Mutex::new((HintsWriter::create(hints)?, HashMap::new()));
    let listener = UnixListener::bind(socket)?;
    thread::scope(|scope| {
        for plugin in listener.incoming() {
            let (plugin, slots) = (plugin?, &slots);
            scope.spawn(move || serve(plugin, slots, share).inspect_err(|e| eprintln!("agent: {e}")));
        }
        Ok(())
    })
}

/// Answers one plugin, in order, until it closes the socket.
fn serve(mut plugin: UnixStream, slots: &Slots, share: u16) -> io::Result<()> {
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let n = plugin.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        received.extend_from_slice(&buffer[..n]);
        while let Some((request, len)) = Request::decode(&received).map_err(io::Error::other)? {
            received.drain(..len);
            let (bytes, len) = answer(&request, slots, share).encode();
            plugin.write_all(&bytes[..len])?;
        }
    }
}

fn answer(request: &Request, slots: &Slots, share: u16) -> Response {
    let connection = match request {
        Request::Register(connection) => connection,
        // The slot stays with its pair of addresses: the share never changes.
        Request::Deregister { .. } => return Response::Deregistered { status: Status::SUCCESS },
        // This agent has only a hint file.
        Request::Attach => return Response::Deregistered { status: Status::INVALID_REQUEST },
    };
    let mut slots = slots.lock().expect("no thread panics while it holds the lock");
    let (file, by_pair) = &mut *slots;
    let pair = (connection.sout_src, connection.sout_dst);
    let slot = by_pair.get(&pair).copied().or_else(|| u8::try_from(by_pair.len()).ok());
    let Some(slot) = slot else {
        return Response::Registered { status: Status::NO_FREE_SLOT, slot: 0 };
    };
    if by_pair.insert(pair, slot).is_none() {
        file.assign(slot, pair.0, pair.1);
        file.set(slot, share);
    }
    Response::Registered { status: Status::SUCCESS, slot: slot.into() }
}
