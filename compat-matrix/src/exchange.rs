//! Moves data between two processes through a core's table, from listen to the last close, and
//! checks every byte.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::OwnedFd,
    thread,
};

use mpib::rails;
use nccl_net_host::{
    Buffer, Comm, Error, HANDLE_BYTES, Handle, NO_SIZES, Net, Recv, RecvComm, Request, Sizes,
};
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Context, Failure, Result},
    script::{Plan, Role, Tally},
    worker::foreign,
};

/// Bytes behind each message that must not change: a receive may be larger than the message.
const SLACK: usize = 64;
const UNTOUCHED: u8 = 0xee;

/// The connection to the other process. Messages are lines of JSON.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: BufReader<File>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// The handle that listen wrote.
    Handle(Vec<u8>),
    /// The data has arrived and is correct.
    Checked,
    /// Everything is closed.
    Closed,
}

impl Peer {
    /// Wraps a connected stream socket of any kind.
    pub(crate) fn new(stream: OwnedFd) -> Self {
        Self { stream: BufReader::new(stream.into()) }
    }

    fn say(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_string(message).cannot("write a message")?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|e| Failure::peer(e.to_string()))
    }

    fn hear(&mut self) -> Result<Message> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err(Failure::peer("the connection ended")),
            Ok(_) => serde_json::from_str(&line).map_err(|e| Failure::peer(e.to_string())),
            Err(e) => Err(Failure::peer(e.to_string())),
        }
    }

    /// Sends bytes to the other process.
    pub(crate) fn give(&mut self, bytes: &[u8]) -> Result<()> {
        self.say(&Message::Handle(bytes.to_vec()))
    }

    pub(crate) fn take(&mut self) -> Result<Vec<u8>> {
        match self.hear()? {
            Message::Handle(bytes) => Ok(bytes),
            other => Err(Failure::tool(format!("{other:?} came where bytes were expected"))),
        }
    }

    fn wait(&mut self) -> Result<()> {
        match self.hear()? {
            Message::Checked | Message::Closed => Ok(()),
            Message::Handle(_) => Err(Failure::tool("a handle came where none was expected")),
        }
    }
}

/// Makes one connection, uses it as the plan requires, and closes it.
pub(crate) fn run(net: &Net, peer: &mut Peer, role: Role, plan: &Plan) -> Result<Tally> {
    // A plugin that uses no softverbs has no counters.
    let before = rails::read();
    let mut tally = Tally::default();
    match role {
        Role::Sender => send_all(net, peer, plan, &mut tally)?,
        Role::Receiver => receive_all(net, peer, plan, &mut tally)?,
    }
    let rails = before.and_then(|before| rails::since(&before)).unwrap_or_default();
    tally.rails = rails.into_iter().map(|rail| (rail.name, rail.bytes)).collect();
    Ok(tally)
}

fn send_all(net: &Net, peer: &mut Peer, plan: &Plan, tally: &mut Tally) -> Result<()> {
    let bytes: [u8; HANDLE_BYTES] =
        peer.take()?.try_into().map_err(|_| Failure::tool("a handle of a wrong length"))?;
    let mut handle = Handle(bytes);
    let comm = until(|| net.connect(plan.device, &mut handle))?;
    for (size, group) in &plan.sizes {
        let slots = Slots { size: *size, count: group * plan.depth };
        let mut bytes = slots.bytes();
        for slot in 0..slots.count {
            fill(slots.message(&mut bytes, slot), slot);
        }
        let buffer = comm.register(bytes).map_err(foreign)?;
        let mut requests = Vec::new();
        for slot in 0..slots.count {
            let (offset, tag) = (slots.offset(slot), (slot % group) as i32);
            requests.push(until(|| comm.isend(buffer.mr(), offset, *size, tag))?);
        }
        for mut request in requests {
            let sizes = finish(&comm, &mut request)?;
            if usize::try_from(sizes[0]) != Ok(*size) {
                return Err(Failure::wrong(format!("test gives {} bytes for a send of {size}", sizes[0])));
            }
        }
        peer.wait()?;
        tally.messages += slots.count;
        tally.bytes += (slots.count * size) as u64;
        comm.release(buffer).map_err(foreign)?;
    }
    comm.close().map_err(foreign)?;
    peer.say(&Message::Closed)?;
    peer.wait()
}

fn receive_all(net: &Net, peer: &mut Peer, plan: &Plan, tally: &mut Tally) -> Result<()> {
    let listener = net.listen(plan.device).map_err(foreign)?;
    peer.give(&listener.handle().0)?;
    let comm = until(|| listener.accept())?;
    listener.close().map_err(foreign)?;
    for (size, group) in &plan.sizes {
        let slots = Slots { size: *size, count: group * plan.depth };
        let buffer = comm.register(slots.bytes()).map_err(foreign)?;
        let posted: Vec<Vec<Recv<'_>>> =
            (0..plan.depth).map(|g| slots.receives(&buffer, g * group, *group)).collect();
        let mut requests = Vec::new();
        for recvs in &posted {
            requests.push(until(|| comm.irecv(recvs))?);
        }
        for (recvs, mut request) in posted.iter().zip(requests) {
            let sizes = finish(&comm, &mut request)?;
            if let Some(wrong) = sizes.iter().take(*group).find(|got| usize::try_from(**got) != Ok(*size)) {
                return Err(Failure::wrong(format!("{wrong} bytes arrived where {size} were sent")));
            }
            flush(&comm, recvs, *size)?;
            comm.irecv_consumed(&request).map_err(foreign)?;
        }
        let mut bytes = comm.release(buffer).map_err(foreign)?;
        for slot in 0..slots.count {
            check(slots.message(&mut bytes, slot), slot, *size)?;
        }
        peer.say(&Message::Checked)?;
        tally.messages += slots.count;
        tally.bytes += (slots.count * size) as u64;
    }
    comm.close().map_err(foreign)?;
    peer.say(&Message::Closed)?;
    peer.wait()
}

/// Flushes as the core does after a receive into GPU memory, with the sizes that arrived.
fn flush(comm: &RecvComm, recvs: &[Recv<'_>], size: usize) -> Result<()> {
    let arrived: Vec<Recv<'_>> = recvs.iter().map(|recv| Recv { len: size, ..*recv }).collect();
    match comm.iflush(&arrived).map_err(foreign)? {
        Some(mut request) => finish(comm, &mut request).map(|_| ()),
        None => Ok(()),
    }
}

/// Polls until there is a value. The parent process enforces the deadline.
fn until<T>(mut poll: impl FnMut() -> std::result::Result<Option<T>, Error>) -> Result<T> {
    loop {
        if let Some(value) = poll().map_err(foreign)? {
            return Ok(value);
        }
        thread::yield_now();
    }
}

/// Polls a request until it is done; returns the sizes.
fn finish<Way>(comm: &Comm<Way>, request: &mut Request) -> Result<Sizes> {
    let mut sizes = NO_SIZES;
    while !comm.test(request, &mut sizes).map_err(foreign)? {
        thread::yield_now();
    }
    Ok(sizes)
}

/// The layout of memory for messages of one size, each with slack behind it.
#[derive(Debug, Clone, Copy)]
struct Slots {
    size: usize,
    count: usize,
}

impl Slots {
    fn bytes(self) -> Vec<u8> {
        vec![UNTOUCHED; (self.size + SLACK) * self.count]
    }

    const fn offset(self, slot: usize) -> usize {
        slot * (self.size + SLACK)
    }

    /// Returns a message with the slack behind it.
    fn message(self, bytes: &mut [u8], slot: usize) -> &mut [u8] {
        &mut bytes[self.offset(slot)..][..self.size + SLACK]
    }

    fn receives(self, buffer: &Buffer, first: usize, n: usize) -> Vec<Recv<'_>> {
        let len = self.size + SLACK;
        let recv = |i: usize| Recv { mr: buffer.mr(), offset: self.offset(first + i), len, tag: i as i32 };
        (0..n).map(recv).collect()
    }
}

/// Returns eight bytes of a message, which depend on the message and the position. The product's
/// highest byte comes first, since it alone depends on all bits.
fn word(slot: usize, at: usize) -> [u8; 8] {
    ((slot as u64) << 40 ^ at as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn fill(message: &mut [u8], slot: usize) {
    let size = message.len() - SLACK;
    for (at, chunk) in message[..size].chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(slot, at)[..chunk.len()]);
    }
}

fn check(message: &[u8], slot: usize, size: usize) -> Result<()> {
    let (data, slack) = message.split_at(size);
    let wrong = data.chunks(8).enumerate().find(|(at, chunk)| word(slot, *at)[..chunk.len()] != **chunk);
    if let Some((at, chunk)) = wrong {
        return Err(Failure::wrong(format!(
            "message {slot} of {size} bytes: {chunk:02x?} arrived at byte {}, {:02x?} was sent",
            at * 8,
            &word(slot, at)[..chunk.len()]
        )));
    }
    if slack.iter().any(|byte| *byte != UNTOUCHED) {
        return Err(Failure::wrong(format!("message {slot} of {size} bytes: bytes behind it were written")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_a_swap_and_a_byte_too_many_are_found() {
        for size in [1, 7, 8, 129] {
            let mut message = vec![UNTOUCHED; size + SLACK];
            fill(&mut message, 3);
            check(&message, 3, size).unwrap();
            assert!(check(&message, 4, size).is_err(), "another message's data");
            for at in [0, size - 1, size] {
                message[at] ^= 1;
                assert!(check(&message, 3, size).is_err(), "byte {at} of {size}");
                message[at] ^= 1;
            }
        }
    }
}
