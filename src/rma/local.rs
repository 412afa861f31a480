//! Copies that an adapter makes inside of this host, over a connection of the rank with itself.
//!
//! The processor does not reach GPU memory. What it has to write there goes over an adapter, and so
//! do puts and gets of a rank with itself. Large ones are messages of the connection, which splits,
//! fails over and flushes as every other one. Small ones are writes and reads of one adapter, on the
//! queue pairs of its flushes.

use std::collections::VecDeque;
use std::sync::Arc;

use mpib_proto::LinkKind;
use nccl_net_versions::Buffer;

use super::connector::{Connector, Terms};
use super::link::{RecvLink, SendLink, Slots};
use super::order::Ticket;
use super::requests::Number;
use super::signals::Word;
use super::window::Window;
use crate::error::{Error, Fast, Result};
use crate::transport::{Copied, FLUSHES, Towards};

/// Small copies under way at most.
const SLOTS: usize = 48;

// Each is one of the connection's flushes, as is what makes messages visible.
const _: () = assert!(SLOTS < FLUSHES);

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

/// A copy of a few bytes between this process and a part of a window.
#[derive(Debug)]
struct Small {
    slot: usize,
    part: Part,
    towards: Towards,
    purpose: Purpose,
    /// The copy that is under way.
    copy: Option<u8>,
}

/// A copy between windows, and what it is for if it is the last one for that.
#[derive(Debug)]
struct Large {
    from: Part,
    to: Part,
    purpose: Option<Purpose>,
}

/// A message whose receive is offered.
#[derive(Debug)]
struct Moving {
    large: Large,
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
    /// Memory of this process, and the slots that are free.
    slots: Slots,
    free: Vec<usize>,
    small: Vec<Small>,
    /// The messages whose receive is offered, and how many of them have been posted, and are sent.
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
    waiting: VecDeque<Large>,
    done: VecDeque<(Purpose, u64)>,
    has_failed: bool,
}

impl Local {
    pub(super) fn new() -> Self {
        let (waiting, done) = (VecDeque::new(), VecDeque::new());
        Self { connection: Connection::Unused, waiting, done, has_failed: false }
    }

    /// Returns whether no copy will be done any more.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
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
        let Some(ready) = self.ready(terms) else { return false };
        let Some(slot) = ready.free.pop() else { return false };
        ready.slots.write(slot, 0, bytes);
        ready.small.push(Small { slot, part, towards: Towards::Gpu, purpose, copy: None });
        true
    }

    /// Reads a word, which comes with the end of the copy. Returns `false` if there is no room for
    /// it yet.
    pub(super) fn read(&mut self, terms: &Terms, part: Part, purpose: Purpose) -> bool {
        let Some(ready) = self.ready(terms) else { return false };
        let Some(slot) = ready.free.pop() else { return false };
        ready.small.push(Small { slot, part, towards: Towards::Host, purpose, copy: None });
        true
    }

    /// Copies a part of a window to another one, of the same size.
    pub(super) fn copy(&mut self, terms: &Terms, from: Part, to: Part, purpose: Purpose) {
        self.ready(terms);
        self.waiting.push_back(Large { from, to, purpose: Some(purpose) });
    }

    /// Returns what is done, with the word that was read.
    pub(super) fn next_done(&mut self) -> Option<(Purpose, u64)> {
        self.done.pop_front()
    }

    /// Goes on with all copies.
    pub(super) fn progress(&mut self, terms: &Terms) -> Fast<()> {
        let progress = self.advance(terms);
        self.has_failed |= progress.is_err();
        progress
    }

    fn advance(&mut self, terms: &Terms) -> Fast<()> {
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

    /// Returns whether an adapter moves data of a window, or is about to.
    pub(super) fn uses(&self, number: u32) -> bool {
        let of = |part: &Part| part.window.number == number;
        let either = |large: &Large| of(&large.from) || of(&large.to);
        let is_under_way = match &self.connection {
            Connection::Ready(ready) => {
                ready.small.iter().any(|small| of(&small.part))
                    || ready.moving.iter().any(|moving| either(&moving.large))
            }
            Connection::Unused | Connection::Connecting(_) => false,
        };
        is_under_way || self.waiting.iter().any(either)
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
        let slots = receive.slots(SLOTS)?;
        Ok(Self {
            send,
            receive,
            slots,
            free: (0..SLOTS).collect(),
            small: Vec::with_capacity(SLOTS),
            moving: VecDeque::new(),
            posted: 0,
            sent: 0,
            has_joined: false,
        })
    }

    fn progress(&mut self, waiting: &mut VecDeque<Large>, done: &mut VecDeque<(Purpose, u64)>) -> Fast<()> {
        self.progress_small(done)?;
        while let Some(large) = waiting.front() {
            // What is larger than a message goes in several.
            let longest = self.send.longest();
            if large.to.buffer.len > longest {
                let parts = waiting.pop_front().map(|large| large.cut(longest));
                parts.into_iter().flatten().rev().for_each(|large| waiting.push_front(large));
                continue;
            }
            let Some(receive) = self.receive.receive(&large.to.window, large.to.buffer)? else { break };
            let Some(large) = waiting.pop_front() else { break };
            self.moving.push_back(Moving { large, receive, has_arrived: false, flush: None });
        }
        while let Some(Moving { large: Large { from, .. }, .. }) = self.moving.get(self.posted) {
            if !self.send.send(&from.window, from.buffer, None)? {
                break;
            }
            self.posted += 1;
        }
        self.finish(done)
    }

    /// Goes on with the small copies. One that is lost with its adapter is made again: the one writer
    /// of a word waits for the end, and puts that overlap have no order.
    fn progress_small(&mut self, done: &mut VecDeque<(Purpose, u64)>) -> Fast<()> {
        let mut at = 0;
        while let Some(Small { slot, part, towards, purpose, copy }) = self.small.get_mut(at) {
            if copy.is_none() {
                *copy = self.receive.copy(&self.slots, *slot, part, *towards)?;
            }
            let ended = copy.map_or(Ok(None), |copy| self.receive.has_copied(copy))?;
            match ended {
                None => {}
                Some(Copied::Lost) => *copy = None,
                Some(Copied::Done) => {
                    let mut word = [0; 8];
                    self.slots.read(*slot, 0, &mut word);
                    self.free.push(*slot);
                    done.push_back((*purpose, u64::from_ne_bytes(word)));
                    self.small.swap_remove(at);
                    continue;
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// Ends the messages that are done, in order.
    fn finish(&mut self, done: &mut VecDeque<(Purpose, u64)>) -> Fast<()> {
        while self.send.next_sent()?.is_some() {
            self.sent += usize::from(std::mem::replace(&mut self.has_joined, true));
        }
        while let Some(Moving { large, receive, has_arrived, flush }) = self.moving.front_mut() {
            if !*has_arrived {
                if !self.receive.has_received(*receive, large.to.buffer.len)? {
                    return Ok(());
                }
                *has_arrived = true;
                // One flush makes all visible that came before.
                if large.to.window.is_on_gpu() && large.purpose.is_some() {
                    *flush = self.receive.flush(&large.to.window, large.to.buffer)?;
                }
            }
            if let Some(index) = *flush {
                if !self.receive.has_flushed(index)? {
                    return Ok(());
                }
                *flush = None;
            }
            if self.sent == 0 {
                return Ok(());
            }
            done.extend(large.purpose.map(|purpose| (purpose, 0)));
            self.moving.pop_front();
            self.sent -= 1;
            self.posted -= 1;
        }
        Ok(())
    }
}

impl Large {
    /// Returns the copy in two: its first `len` bytes, and the rest.
    fn cut(self, len: usize) -> [Self; 2] {
        let part = |of: &Part, at: usize, len: usize| Part {
            window: Arc::clone(&of.window),
            buffer: Buffer { addr: of.buffer.addr + at, len },
        };
        let Self { from, to, purpose } = self;
        let rest = to.buffer.len - len;
        [
            Self { from: part(&from, 0, len), to: part(&to, 0, len), purpose: None },
            Self { from: part(&from, len, rest), to: part(&to, len, rest), purpose },
        ]
    }
}
