//! What comes from one rank: its links, its puts in their order, and answers to gets.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mpib_proto::{Command, Extent, LinkKind, MAX_CARRIED, Signal, Way};
use nccl_net_versions::Buffer;

use super::connector::Terms;
use super::link::{COMMANDS, Received, RecvLink};
use super::local::{Local, Part, Purpose};
use super::order::{Order, Ticket};
use super::requests::{Number, Pool, Table};
use super::signals;
use super::window::{Found, Window, Windows};
use crate::error::{Error, Fast, Result};

/// What all peers of a group use.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub(super) terms: &'a Terms,
    pub(super) pool: &'a Pool,
    pub(super) table: &'a mut Table,
    pub(super) windows: &'a Windows,
    pub(super) local: &'a mut Local,
}

/// What arrived data is for.
#[derive(Debug, Clone, Copy)]
enum For {
    Put(Ticket),
    Get(Number),
}

/// A message of the command link that is no command.
#[derive(Debug)]
enum Next {
    Data(Part, For),
    /// Data for a window that this rank has deregistered.
    Drop,
}

/// Data that comes over the data link, not offered yet.
#[derive(Debug)]
struct Announced {
    /// What is left.
    part: Part,
    /// The size of each message but the last one.
    chunk: usize,
    what: For,
}

/// A message of the data link whose receive is offered.
#[derive(Debug)]
struct Arriving {
    part: Part,
    receive: u8,
    has_arrived: bool,
    flush: Option<u8>,
    /// The message is the last one of it.
    last_of: Option<For>,
}

/// The receiving half of a peer.
#[derive(Debug)]
pub(super) struct Incoming {
    rank: usize,
    commands: Option<RecvLink>,
    data: Option<RecvLink>,
    /// A message that has come, and could not be handled yet.
    held: Option<Received>,
    /// What the next message of the command link is, if it is no command.
    next: Option<Next>,
    announced: VecDeque<Announced>,
    arriving: VecDeque<Arriving>,
    /// Gets without an answer: where their data belongs.
    gets: HashMap<Number, Part>,
    /// The puts of the rank.
    pub(super) order: Order,
    has_ended: bool,
}

impl Incoming {
    pub(super) fn new(rank: usize) -> Self {
        Self {
            rank,
            commands: None,
            data: None,
            held: None,
            next: None,
            announced: VecDeque::new(),
            arriving: VecDeque::new(),
            gets: HashMap::new(),
            order: Order::default(),
            has_ended: false,
        }
    }

    /// Takes a link that the rank has joined by.
    pub(super) fn joined(&mut self, kind: LinkKind, link: RecvLink) -> Result<()> {
        let (place, link) = match kind {
            LinkKind::Commands => (&mut self.commands, link.resized(COMMANDS)?),
            LinkKind::Data => (&mut self.data, link),
        };
        match place {
            None => *place = Some(link),
            Some(_) => return Err(Error::Protocol(format!("a second {kind:?} link of rank {}", self.rank))),
        }
        Ok(())
    }

    /// Notes a get, and where its data belongs.
    pub(super) fn await_answer(&mut self, request: Number, part: Part) {
        self.gets.insert(request, part);
    }

    /// Handles what has come. Calls `asked` for each get.
    pub(super) fn progress(&mut self, shared: &mut Shared<'_>, asked: &mut dyn FnMut(u32, Part)) -> Fast<()> {
        if !self.has_ended {
            self.read_commands(shared, asked)?;
        }
        self.offer_announced()?;
        self.end_arriving(shared)
    }

    fn read_commands(&mut self, shared: &mut Shared<'_>, asked: &mut dyn FnMut(u32, Part)) -> Fast<()> {
        loop {
            let Some(link) = &mut self.commands else { return Ok(()) };
            let Some(message) = self.held.map_or_else(|| link.next_received(), |held| Ok(Some(held)))? else {
                return link.offer();
            };
            let is_handled = match self.next.take() {
                Some(Next::Drop) => true,
                Some(Next::Data(part, what)) => {
                    let is_placed = self.place_carried((message, false), &part, what, shared)?;
                    self.next = (!is_placed).then_some(Next::Data(part, what));
                    is_placed
                }
                None => self.handle(message, shared, asked)?,
            };
            self.held = (!is_handled).then_some(message);
            if !is_handled || self.has_ended {
                return Ok(());
            }
        }
    }

    /// Handles a command. Returns `false`, and has done nothing, if that is not possible yet.
    fn handle(
        &mut self,
        message: Received,
        shared: &mut Shared<'_>,
        asked: &mut dyn FnMut(u32, Part),
    ) -> Result<bool> {
        let Some(link) = &self.commands else { return Ok(false) };
        match link.command(message)? {
            Command::Put { data, signal } => self.put(message, data, signal, shared),
            Command::Get { id, from } => {
                match shared.windows.find(from.window) {
                    Found::Window(window) => asked(id, part_of(window, from)?),
                    Found::NotYet => return Ok(false),
                    Found::Ended => return Err(deregistered(from)),
                }
                Ok(true)
            }
            Command::Answer { id, size, way } => {
                let Some(part) = self.gets.get(&id) else {
                    return Err(Error::Protocol(format!("an answer to get {id}, which is not outstanding")));
                };
                if part.buffer.len as u64 != size {
                    let asked = part.buffer.len;
                    return Err(Error::Protocol(format!("an answer of {size} bytes to a get of {asked}")));
                }
                let part = part.clone();
                let is_taken = self.take(message, part, way, For::Get(id), shared)?;
                if is_taken {
                    self.gets.remove(&id);
                }
                Ok(is_taken)
            }
            Command::End => {
                self.has_ended = true;
                Ok(true)
            }
            Command::Join { .. } => Err(Error::Protocol("a second JOIN on a link".into())),
        }
    }

    fn put(
        &mut self,
        message: Received,
        data: Option<(Extent, Way)>,
        signal: Option<Signal>,
        shared: &mut Shared<'_>,
    ) -> Result<bool> {
        if let Some(signal) = signal {
            match shared.windows.find(signal.window) {
                Found::Window(window) => signals::check(&window, signal.offset).map_err(of_peer)?,
                Found::Ended => {}
                Found::NotYet => return Ok(false),
            }
        }
        let Some((extent, way)) = data else {
            let ticket = self.order.push(signal, None);
            self.order.is_visible(ticket);
            return Ok(true);
        };
        let part = match shared.windows.find(extent.window) {
            Found::Window(window) => part_of(window, extent)?,
            Found::NotYet => return Ok(false),
            Found::Ended => {
                let ticket = self.order.push(signal, None);
                self.order.is_visible(ticket);
                return self.drop_data(extent, way);
            }
        };
        let ticket = self.order.push(signal, None);
        let is_taken = self.take(message, part, way, For::Put(ticket), shared)?;
        if !is_taken {
            self.order.take_back();
        }
        Ok(is_taken)
    }

    /// Drops the data of a put into a window that this rank has deregistered.
    fn drop_data(&mut self, extent: Extent, way: Way) -> Result<bool> {
        match way {
            Way::Inside => {}
            Way::Next => self.next = Some(Next::Drop),
            Way::DataLink(_) => return Err(deregistered(extent)),
        }
        Ok(true)
    }

    /// Takes the data of a command. Returns `false` if there is no room for it yet.
    fn take(
        &mut self,
        message: Received,
        part: Part,
        way: Way,
        what: For,
        shared: &mut Shared<'_>,
    ) -> Result<bool> {
        match way {
            Way::Inside => return self.place_carried((message, true), &part, what, shared),
            Way::Next => self.next = Some(Next::Data(part, what)),
            Way::DataLink(chunk) => {
                let chunk = usize::try_from(chunk).unwrap_or(usize::MAX);
                self.announced.push_back(Announced { part, chunk, what });
            }
        }
        Ok(true)
    }

    /// Places data that has come over the command link, inside of its command or behind it. Returns
    /// `false` if there is no room for it yet.
    fn place_carried(
        &mut self,
        (message, is_inside): (Received, bool),
        part: &Part,
        what: For,
        shared: &mut Shared<'_>,
    ) -> Result<bool> {
        let Some(link) = &self.commands else { return Ok(false) };
        let Buffer { addr, len } = part.buffer;
        let mut carried = [0; MAX_CARRIED];
        let Some(bytes) = carried.get_mut(..len) else {
            return Err(Error::Protocol(format!(
                "{len} bytes over a command link, which carries {MAX_CARRIED}"
            )));
        };
        match is_inside {
            true => link.inside(message, bytes),
            false => link.bytes(message, bytes)?,
        }
        if let Some(host) = part.window.host() {
            let written = host.write(addr - part.window.buffer.addr, bytes);
            written.ok_or_else(|| Error::Internal("data outside of its window".into()))?;
            placed(&mut self.order, what, shared)?;
            return Ok(true);
        }
        let purpose = match what {
            For::Put(ticket) => Purpose::Put(self.rank, ticket),
            For::Get(request) => Purpose::Request(request),
        };
        Ok(shared.local.write(shared.terms, part.clone(), bytes, purpose))
    }

    /// Offers receives for announced data.
    fn offer_announced(&mut self) -> Fast<()> {
        let Some(link) = &mut self.data else { return Ok(()) };
        while let Some(Announced { part, chunk, what }) = self.announced.front_mut() {
            let Buffer { addr, len } = part.buffer;
            let message = Buffer { addr, len: len.min(*chunk) };
            let Some(receive) = link.receive(&part.window, message)? else { break };
            part.buffer = Buffer { addr: addr + message.len, len: len - message.len };
            let last_of = (part.buffer.len == 0).then_some(*what);
            let part = Part { buffer: message, ..part.clone() };
            self.arriving.push_back(Arriving { part, receive, has_arrived: false, flush: None, last_of });
            if last_of.is_some() {
                self.announced.pop_front();
            }
        }
        Ok(())
    }

    /// Ends the messages of the data link that are visible, in order.
    fn end_arriving(&mut self, shared: &mut Shared<'_>) -> Fast<()> {
        let Some(link) = &mut self.data else { return Ok(()) };
        while let Some(arriving) = self.arriving.front_mut() {
            if !arriving.has_arrived {
                if !link.has_received(arriving.receive, arriving.part.buffer.len)? {
                    break;
                }
                arriving.has_arrived = true;
                // One flush makes all visible that came before. Nobody looks into a window that has ended.
                let window = &arriving.part.window;
                let is_there = || matches!(shared.windows.find(window.number), Found::Window(_));
                if arriving.last_of.is_some() && window.is_on_gpu() && is_there() {
                    arriving.flush = link.flush(window, arriving.part.buffer)?;
                }
            }
            if let Some(flush) = arriving.flush
                && !link.has_flushed(flush)?
            {
                break;
            }
            if let Some(what) = arriving.last_of {
                placed(&mut self.order, what, shared)?;
            }
            self.arriving.pop_front();
        }
        Ok(())
    }

    /// Returns whether data in a window is being made visible.
    pub(super) fn is_flushing(&self, number: u32) -> bool {
        self.arriving.iter().any(|message| message.flush.is_some() && message.part.window.number == number)
    }

    /// Ends the registration of a window.
    pub(super) fn forget(&mut self, number: u32) {
        self.commands.iter_mut().chain(&mut self.data).for_each(|link| link.forget(number));
    }

    pub(super) fn close(self) -> Result<()> {
        let closed: Result<Vec<()>> =
            self.commands.into_iter().chain(self.data).map(RecvLink::close).collect();
        closed.map(|_| ())
    }
}

/// Notes that data is in place and visible.
fn placed(order: &mut Order, what: For, shared: &mut Shared<'_>) -> Result<()> {
    match what {
        For::Put(ticket) => order.is_visible(ticket),
        For::Get(request) => shared.pool.part_done(shared.table, request)?,
    }
    Ok(())
}

/// Returns the part of a window that the peer names.
fn part_of(window: Arc<Window>, extent: Extent) -> Result<Part> {
    let buffer = window.part(extent.offset, extent.size).map_err(of_peer)?;
    Ok(Part { window, buffer })
}

fn deregistered(Extent { window, offset, size }: Extent) -> Error {
    Error::Protocol(format!(
        "{size} bytes at offset {offset} of window {window} are to be moved, and this rank has deregistered it"
    ))
}

/// Returns the error of a command that names what is not there.
fn of_peer(e: Error) -> Error {
    Error::Protocol(e.to_string())
}
