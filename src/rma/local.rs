//! Copies that an adapter makes inside of this host, over a connection of the rank with itself.
//!
//! The processor does not reach GPU memory. What it has to write there goes over an adapter, and so
//! do puts and gets of a rank with itself. The connection splits, fails over and flushes as every
//! other one.

use std::collections::VecDeque;
use std::sync::Arc;

use nccl_net_versions::Buffer;

use super::connector::{Connector, Terms};
use super::link::{RecvLink, SendLink, Slots};
use super::order::Ticket;
use super::requests::Number;
use super::signals::Word;
use super::window::Window;
use crate::error::{Error, Fast, Result};
use crate::proto::LinkKind;

/// Copies from and to the processor that are under way at most, in each direction.
const SLOTS: usize = 64;

/// What a copy is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A put, in the order of those of a rank.
    Put(usize, Ticket),
    /// A part of a request.
    Request(Number),
    /// The value of a word is read.
    Read(Word),
    /// A word gets its next value.
    Write(Word),
}

/// A part of a window.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) window: Arc<Window>,
    pub(super) buffer: Buffer,
}

/// One end of a copy.
#[derive(Debug)]
enum Place {
    Slot(usize),
    Part(Part),
}

/// A copy, and what it is for if it is the last one for that.
#[derive(Debug)]
struct Copy {
    from: Place,
    to: Place,
    len: usize,
    purpose: Option<Purpose>,
}

/// A copy whose receive is offered.
#[derive(Debug)]
struct Moving {
    copy: Copy,
    receive: u8,
    has_arrived: bool,
    flush: Option<u8>,
}

/// The connection of the rank with itself.
#[derive(Debug)]
enum Connection {
    /// Nothing has needed it.
    Unused,
    Connecting(Box<Connecting>),
    Ready(Box<Ready>),
}

#[derive(Debug)]
struct Connecting {
    connector: Connector,
    receive: Option<RecvLink>,
}

#[derive(Debug)]
struct Ready {
    send: SendLink,
    receive: RecvLink,
    /// Memory to send from, and to receive into, with the slots that are free.
    sources: (Slots, Vec<usize>),
    targets: (Slots, Vec<usize>),
    /// The copies whose receive is offered, and how many of them have been posted, and are sent.
    moving: VecDeque<Moving>,
    posted: usize,
    sent: usize,
    /// JOIN, the first message, is sent.
    has_joined: bool,
}

/// The copies of a group.
#[derive(Debug)]
pub(super) struct Local {
    connection: Connection,
    waiting: VecDeque<Copy>,
    done: VecDeque<(Purpose, u64)>,
}

impl Local {
    pub(super) fn new() -> Self {
        Self { connection: Connection::Unused, waiting: VecDeque::new(), done: VecDeque::new() }
    }

    /// Returns the connection if it is there, and begins it if not.
    fn ready(&mut self, terms: &Terms) -> Option<&mut Ready> {
        if matches!(self.connection, Connection::Unused) {
            let connector = Connector::new(terms, terms.rank, LinkKind::Data, 1);
            let connecting = Connecting { connector, receive: None };
            self.connection = Connection::Connecting(Box::new(connecting));
        }
        match &mut self.connection {
            Connection::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    /// Takes the accepted end of the connection.
    pub(super) fn accepted(&mut self, link: RecvLink) -> Result<()> {
        match &mut self.connection {
            Connection::Connecting(connecting) if connecting.receive.is_none() => {
                connecting.receive = Some(link);
                Ok(())
            }
            _ => Err(Error::Protocol("a connection claims to be of this rank, and is not".into())),
        }
    }

    /// Writes bytes to a part of a window. Returns `false` if there is no room for them yet.
    pub(super) fn write(&mut self, terms: &Terms, part: Part, bytes: &[u8], purpose: Purpose) -> bool {
        let Some(Ready { sources: (slots, free), .. }) = self.ready(terms) else { return false };
        let Some(slot) = free.pop() else { return false };
        slots.write(slot, 0, bytes);
        let copy =
            Copy { from: Place::Slot(slot), to: Place::Part(part), len: bytes.len(), purpose: Some(purpose) };
        self.waiting.push_back(copy);
        true
    }

    /// Reads a word, which comes with the end of the copy. Returns `false` if there is no room for
    /// it yet.
    pub(super) fn read(&mut self, terms: &Terms, part: Part, purpose: Purpose) -> bool {
        let Some(Ready { targets: (_, free), .. }) = self.ready(terms) else { return false };
        let Some(slot) = free.pop() else { return false };
        let copy = Copy { from: Place::Part(part), to: Place::Slot(slot), len: 8, purpose: Some(purpose) };
        self.waiting.push_back(copy);
        true
    }

    /// Copies a part of a window to another one, of the same size.
    pub(super) fn copy(&mut self, terms: &Terms, from: Part, to: Part, purpose: Purpose) {
        self.ready(terms);
        let len = from.buffer.len;
        let (from, to) = (Place::Part(from), Place::Part(to));
        self.waiting.push_back(Copy { from, to, len, purpose: Some(purpose) });
    }

    /// Returns what is done, with the word that was read.
    pub(super) fn next_done(&mut self) -> Option<(Purpose, u64)> {
        self.done.pop_front()
    }

    /// Goes on with all copies.
    pub(super) fn progress(&mut self, terms: &Terms) -> Fast<()> {
        match &mut self.connection {
            Connection::Unused => Ok(()),
            Connection::Connecting(connecting) => {
                let Connecting { connector, receive } = &mut **connecting;
                connector.poll(terms)?;
                if receive.is_some()
                    && let Some(send) = connector.take()
                    && let Some(receive) = receive.take()
                {
                    self.connection = Connection::Ready(Box::new(Ready::new(send, receive)?));
                }
                Ok(())
            }
            Connection::Ready(ready) => ready.progress(&mut self.waiting, &mut self.done),
        }
    }

    /// Ends the registration of a window.
    pub(super) fn forget(&mut self, number: u32) {
        if let Connection::Ready(ready) = &mut self.connection {
            ready.send.forget(number);
            ready.receive.forget(number);
        }
    }

    pub(super) fn close(self) -> Result<()> {
        match self.connection {
            Connection::Unused | Connection::Connecting(_) => Ok(()),
            Connection::Ready(ready) => ready.send.close().and(ready.receive.close()),
        }
    }
}

impl Ready {
    fn new(send: SendLink, receive: RecvLink) -> Result<Self> {
        let all = || (0..SLOTS).collect();
        let (sources, targets) = ((send.slots(SLOTS)?, all()), (receive.slots(SLOTS)?, all()));
        Ok(Self {
            send,
            receive,
            sources,
            targets,
            moving: VecDeque::new(),
            posted: 0,
            sent: 0,
            has_joined: false,
        })
    }

    fn progress(&mut self, waiting: &mut VecDeque<Copy>, done: &mut VecDeque<(Purpose, u64)>) -> Fast<()> {
        while let Some(copy) = waiting.front() {
            // What is larger than a message goes in several.
            let longest = self.send.longest();
            if copy.len > longest {
                let copy = waiting.pop_front().map(|copy| copy.cut(longest));
                copy.into_iter().flatten().flatten().rev().for_each(|copy| waiting.push_front(copy));
                continue;
            }
            let offered = match &copy.to {
                Place::Slot(slot) => {
                    let buffer = self.targets.0.buffer(*slot, copy.len);
                    self.receive.receive_into(&self.targets.0, buffer)?
                }
                Place::Part(part) => self.receive.receive(&part.window, part.buffer)?,
            };
            let Some(receive) = offered else { break };
            let Some(copy) = waiting.pop_front() else { break };
            self.moving.push_back(Moving { copy, receive, has_arrived: false, flush: None });
        }
        while let Some(Moving { copy, .. }) = self.moving.get(self.posted) {
            let posted = match &copy.from {
                Place::Slot(slot) => {
                    let buffer = self.sources.0.buffer(*slot, copy.len);
                    self.send.send_from(&self.sources.0, buffer)?
                }
                Place::Part(part) => self.send.send(&part.window, part.buffer, None)?,
            };
            if !posted {
                break;
            }
            self.posted += 1;
        }
        self.finish(done)
    }

    /// Ends the copies that are done, in order.
    fn finish(&mut self, done: &mut VecDeque<(Purpose, u64)>) -> Fast<()> {
        while self.send.next_sent()?.is_some() {
            self.sent += usize::from(std::mem::replace(&mut self.has_joined, true));
        }
        while let Some(moving) = self.moving.front_mut() {
            if !moving.has_arrived {
                if !self.receive.has_received(moving.receive)? {
                    return Ok(());
                }
                moving.has_arrived = true;
                // Of two writes to one word by two adapters, the second one may land first.
                moving.flush = match &moving.copy.to {
                    Place::Part(part) if part.window.is_on_gpu() && moving.copy.purpose.is_some() => {
                        self.receive.flush(&part.window, part.buffer)?
                    }
                    _ => None,
                };
            }
            if let Some(flush) = moving.flush {
                if !self.receive.has_flushed(flush)? {
                    return Ok(());
                }
                moving.flush = None;
            }
            if self.sent == 0 {
                return Ok(());
            }
            let Some(Moving { copy, .. }) = self.moving.pop_front() else { return Ok(()) };
            self.sent -= 1;
            self.posted -= 1;
            if let Place::Slot(slot) = copy.from {
                self.sources.1.push(slot);
            }
            let mut word = [0; 8];
            if let Place::Slot(slot) = copy.to {
                self.targets.0.read(slot, 0, &mut word);
                self.targets.1.push(slot);
            }
            done.extend(copy.purpose.map(|purpose| (purpose, u64::from_ne_bytes(word))));
        }
        Ok(())
    }
}

impl Copy {
    /// Returns the copy in two: its first `len` bytes, and the rest. Only copies between windows are
    /// so large.
    fn cut(self, len: usize) -> [Option<Self>; 2] {
        let (Place::Part(from), Place::Part(to)) = (self.from, self.to) else { return [None, None] };
        let first = |part: &Part| {
            Place::Part(Part {
                window: Arc::clone(&part.window),
                buffer: Buffer { addr: part.buffer.addr, len },
            })
        };
        let head = Self { from: first(&from), to: first(&to), len, purpose: None };
        let rest = |part: Part| {
            let buffer = Buffer { addr: part.buffer.addr + len, len: part.buffer.len - len };
            Place::Part(Part { window: part.window, buffer })
        };
        let tail = Self { from: rest(from), to: rest(to), len: self.len - len, purpose: self.purpose };
        [Some(head), Some(tail)]
    }
}
