//! A small agent. Each new pair of hosts gets the next slot, and every slot gets the share that the
//! agent reads from its input.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use nccl_net_mpib_agent_iface::agent::{HintsWriter, Request, Response, Status};

struct Table {
    hints: HintsWriter,
    pairs: Vec<(Ipv4Addr, Ipv4Addr)>,
    share: u16,
}

/// Answers registrations in `folder/agent.sock`, with hints in `folder/hints`. Each line of the
/// standard input is a new share. The agent ends with its input.
pub(crate) fn run(folder: &Path) -> ExitCode {
    match serve(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("error agent in {}: {e}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let hints = HintsWriter::create(folder.join("hints"))?;
    let table = Arc::new(Mutex::new(Table { hints, pairs: Vec::new(), share: 0 }));
    let socket = folder.join("agent.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    let shared = Arc::clone(&table);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let table = Arc::clone(&shared);
            std::thread::spawn(move || answer(stream, &table));
        }
    });
    println!("ok");
    for line in std::io::stdin().lines() {
        let Ok(share) = line?.trim().parse() else { continue };
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        table.share = share;
        for slot in 0..table.pairs.len() {
            table.hints.set(slot as u8, share);
        }
        println!("ok {}", table.pairs.len());
    }
    Ok(())
}

/// Answers the requests of one plugin until its process ends.
fn answer(mut stream: UnixStream, table: &Mutex<Table>) {
    let mut input = Vec::new();
    let mut bytes = [0; 64];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        input.extend_from_slice(&bytes[..n]);
        while let Ok(Some((request, len))) = Request::decode(&input) {
            input.drain(..len);
            let response = match request {
                Request::Register(register) => {
                    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
                    let slot = table.slot((register.sout_src, register.sout_dst));
                    Response::Registered { status: Status::SUCCESS, slot: slot.into() }
                }
                Request::Deregister { .. } => Response::Deregistered { status: Status::SUCCESS },
                // This agent has only a hint file.
                Request::Attach => Response::Deregistered { status: Status::INVALID_REQUEST },
            };
            let (bytes, len) = response.encode();
            if stream.write_all(&bytes[..len]).is_err() {
                return;
            }
        }
    }
}

impl Table {
    fn slot(&mut self, pair: (Ipv4Addr, Ipv4Addr)) -> u8 {
        if let Some(at) = self.pairs.iter().position(|p| *p == pair) {
            return at as u8;
        }
        let slot = self.pairs.len() as u8;
        self.pairs.push(pair);
        self.hints.assign(slot, pair.0, pair.1);
        self.hints.set(slot, self.share);
        slot
    }
}
