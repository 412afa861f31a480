//! What goes to one rank: its links, the commands, and the data that they announce.

use std::collections::VecDeque;

use mpib_proto::{Command, Extent, LinkKind, MAX_CARRIED, Signal, Way};
use nccl_net_versions::Buffer;

use super::connector::{Connector, Terms};
use super::link::{COMMANDS, SendLink};
use super::local::Part;
use super::requests::{Number, Pool, Table};
use crate::error::{Fast, Result};

/// Something to say to the rank.
#[derive(Debug)]
pub(super) enum Job {
    Put { request: Number, data: Option<(Part, u32, u64)>, signal: Option<Signal> },
    Get { request: Number, from: Extent },
    Answer { id: u32, data: Part },
    End,
}

/// Data that follows its command.
#[derive(Debug)]
struct Following {
    part: Part,
    request: Option<Number>,
}

#[derive(Debug)]
enum Links {
    /// Nothing was to be said.
    Unused,
    /// The command link and the data link.
    Connecting(Box<[Connector; 2]>),
    Ready(Box<Ready>),
}

#[derive(Debug)]
struct Ready {
    commands: SendLink,
    data: SendLink,
    /// Data to be sent as the next message of the command link.
    next: Option<Following>,
    /// Messages for the data link.
    following: VecDeque<Following>,
}

/// The sending half of a peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    links: Links,
    jobs: VecDeque<Job>,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self { links: Links::Unused, jobs: VecDeque::new() }
    }

    /// Adds a job, and begins to connect if it is the first one.
    pub(super) fn push(&mut self, terms: &Terms, rank: usize, job: Job) {
        if matches!(self.links, Links::Unused) {
            let both = [(LinkKind::Commands, COMMANDS), (LinkKind::Data, 1)];
            let both = both.map(|(kind, slots)| Connector::new(terms, rank, kind, slots));
            self.links = Links::Connecting(Box::new(both));
        }
        self.jobs.push_back(job);
    }

    /// Says that nothing follows, if the rank has been spoken to.
    pub(super) fn end(&mut self) {
        if matches!(self.links, Links::Ready(_)) {
            self.jobs.push_back(Job::End);
        }
    }

    /// Returns whether all that was said has arrived.
    pub(super) fn is_idle(&self) -> bool {
        match &self.links {
            Links::Ready(ready) => self.jobs.is_empty() && ready.is_idle(),
            Links::Unused | Links::Connecting(_) => true,
        }
    }

    /// Connects, sends what can be sent, and ends what is sent.
    pub(super) fn progress(&mut self, terms: &Terms, pool: &Pool, table: &mut Table) -> Fast<()> {
        match &mut self.links {
            Links::Unused => Ok(()),
            Links::Connecting(both) => {
                both.iter_mut().try_for_each(|connector| connector.poll(terms))?;
                let [to_commands, to_data] = &mut **both;
                if to_data.has_joined()
                    && let Some(commands) = to_commands.take()
                    && let Some(data) = to_data.take()
                {
                    let ready = Ready { commands, data, next: None, following: VecDeque::new() };
                    self.links = Links::Ready(Box::new(ready));
                }
                Ok(())
            }
            Links::Ready(ready) => {
                ready.send(&mut self.jobs, pool, table)?;
                ready.finish(pool, table)
            }
        }
    }

    /// Returns whether data of a window is under way.
    pub(super) fn is_sending(&self, number: u32) -> bool {
        match &self.links {
            Links::Ready(ready) => ready.commands.is_sending(number) || ready.data.is_sending(number),
            Links::Unused | Links::Connecting(_) => false,
        }
    }

    /// Ends the registration of a window.
    pub(super) fn forget(&mut self, number: u32) {
        if let Links::Ready(ready) = &mut self.links {
            ready.commands.forget(number);
            ready.data.forget(number);
        }
    }

    pub(super) fn close(self) -> Result<()> {
        match self.links {
            Links::Ready(ready) => ready.commands.close().and(ready.data.close()),
            Links::Unused | Links::Connecting(_) => Ok(()),
        }
    }
}

impl Ready {
    fn is_idle(&self) -> bool {
        self.next.is_none() && self.following.is_empty() && self.commands.is_idle() && self.data.is_idle()
    }

    fn send(&mut self, jobs: &mut VecDeque<Job>, pool: &Pool, table: &mut Table) -> Fast<()> {
        loop {
            if let Some(Following { part, request }) = &self.next {
                if !self.commands.send(&part.window, part.buffer, *request)? {
                    break;
                }
                self.next = None;
            }
            let Some(job) = jobs.front() else { break };
            if !self.say(job, table)? {
                break;
            }
            if let Some(Job::Put { request, .. }) = jobs.pop_front() {
                pool.part_done(table, request)?;
            }
        }
        while let Some(Following { part, request }) = self.following.front() {
            if !self.data.send(&part.window, part.buffer, *request)? {
                break;
            }
            self.following.pop_front();
        }
        Ok(())
    }

    /// Sends a command, and prepares the data that follows it. Returns `false` if there is no room
    /// yet.
    fn say(&mut self, job: &Job, table: &mut Table) -> Fast<bool> {
        let mut inside = [0; MAX_CARRIED];
        let (command, data, request) = match job {
            Job::Put { request, data, signal } => {
                let target = data.as_ref().map(|(part, window, offset)| {
                    let size = part.buffer.len as u64;
                    (Extent { window: *window, offset: *offset, size }, self.way(part, &mut inside))
                });
                let part = data.as_ref().map(|(part, ..)| part);
                (
                    Command::Put { data: target, signal: *signal },
                    part.zip(target.map(|t| t.1)),
                    Some(*request),
                )
            }
            Job::Get { request, from } => (Command::Get { id: *request, from: *from }, None, None),
            Job::Answer { id, data } => {
                let way = self.way(data, &mut inside);
                (Command::Answer { id: *id, size: data.buffer.len as u64, way }, Some((data, way)), None)
            }
            Job::End => (Command::End, None, None),
        };
        if !self.commands.send_command(command, &inside[..command.inside()], request)? {
            return Ok(false);
        }
        request.iter().for_each(|request| table.add_part(*request));
        if let Some((part, way)) = data {
            self.follow(part, way, request, table);
        }
        Ok(true)
    }

    /// Returns how the data goes. Copies it if the processor can and it is small.
    fn way(&self, part: &Part, inside: &mut [u8; MAX_CARRIED]) -> Way {
        let Buffer { addr, len } = part.buffer;
        if len > MAX_CARRIED {
            return Way::DataLink(self.data.longest() as u64);
        }
        let offset = addr - part.window.buffer.addr;
        match part.window.host().and_then(|host| host.read(offset, &mut inside[..len])) {
            Some(()) => Way::Inside,
            None => Way::Next,
        }
    }

    /// Prepares the data that follows a command.
    fn follow(&mut self, part: &Part, way: Way, request: Option<Number>, table: &mut Table) {
        let mut add = |buffer| {
            request.iter().for_each(|request| table.add_part(*request));
            Following { part: Part { buffer, ..part.clone() }, request }
        };
        match way {
            Way::Inside => {}
            Way::Next => self.next = Some(add(part.buffer)),
            Way::DataLink(chunk) => {
                let Buffer { addr, len } = part.buffer;
                let starts = (0..len).step_by(chunk as usize);
                let message =
                    |start: usize| Buffer { addr: addr + start, len: (len - start).min(chunk as usize) };
                self.following.extend(starts.map(|start| add(message(start))));
            }
        }
    }

    /// Ends the messages that are sent.
    fn finish(&mut self, pool: &Pool, table: &mut Table) -> Fast<()> {
        for link in [&mut self.commands, &mut self.data] {
            while let Some(sent) = link.next_sent()? {
                if let Some(request) = sent {
                    pool.part_done(table, request)?;
                }
            }
        }
        Ok(())
    }
}
