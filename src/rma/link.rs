//! The two ends of a link: a connection of the two-sided transport with the messages that a rank has
//! under way on it, in their order.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use mpib_proto::{COMMAND_BYTES, COMMAND_MESSAGE_BYTES, COMMAND_WORDS, Command, MAX_CARRIED};
use nccl_net_versions::{Buffer, MemKind};

use super::local::Part;
use super::requests::Number;
use super::window::{Registered, Window};
use crate::error::{Error, Fast, Result};
use crate::plugin::Plugin;
use crate::transport::memory::Registrar;
use crate::transport::{Copied, LocalCopy, Mr, RecvComm, SendComm, Towards};
use crate::verbs::Pages;

/// Words of a message with a command.
const MESSAGE_WORDS: usize = COMMAND_MESSAGE_BYTES / 8;
/// Commands under way on a command link: as many as receives that the peer can offer.
pub(super) const COMMANDS: usize = 64;

/// The largest message in bytes. The transport has no larger sizes than those of an `int`.
const LARGEST: usize = 1 << 30;

/// Registered memory for messages, in slots of [`COMMAND_MESSAGE_BYTES`].
// The registration is dropped before the memory that it covers.
#[derive(Debug)]
pub(super) struct Slots {
    mr: Mr,
    memory: Pages,
}

impl Slots {
    fn new(count: usize, registrar: &Registrar) -> Result<Self> {
        let memory = Pages::new(count * MESSAGE_WORDS)
            .map_err(|e| Error::io("memory for messages of one-sided traffic", e))?;
        let whole = Buffer { addr: memory.addr(), len: count * COMMAND_MESSAGE_BYTES };
        let mr = registrar.register(whole, MemKind::Host, None)?;
        Ok(Self { mr, memory })
    }

    pub(super) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns the first `len` bytes of a slot.
    pub(super) fn buffer(&self, slot: usize, len: usize) -> Buffer {
        Buffer { addr: self.memory.addr() + slot * COMMAND_MESSAGE_BYTES, len }
    }

    /// Writes bytes into a slot, from word `at` on.
    pub(super) fn write(&self, slot: usize, at: usize, bytes: &[u8]) {
        let places = self.memory.words().iter().skip(slot * MESSAGE_WORDS + at);
        for (place, part) in places.zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Reads bytes of a slot, from word `at` on.
    pub(super) fn read(&self, slot: usize, at: usize, bytes: &mut [u8]) {
        let places = self.memory.words().iter().skip(slot * MESSAGE_WORDS + at);
        for (part, place) in bytes.chunks_mut(8).zip(places) {
            let word = place.load(Ordering::Relaxed).to_ne_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }
}

/// The sending end of a link.
#[derive(Debug)]
pub(super) struct SendLink {
    comm: SendComm,
    windows: Registered,
    slots: Slots,
    count: usize,
    /// The slot of the next command.
    next: usize,
    under_way: VecDeque<Sent>,
    /// Commands among these.
    commands: usize,
}

/// A message under way.
#[derive(Debug)]
struct Sent {
    index: u8,
    /// The window that it is of. `None`: it is a command, in a slot.
    window: Option<u32>,
    /// The request that it is a part of.
    request: Option<Number>,
}

impl SendLink {
    /// `slots`: how many commands may be under way.
    pub(super) fn new(comm: SendComm, slots: usize) -> Result<Self> {
        let memory = Slots::new(slots, comm.registrar())?;
        Ok(Self {
            comm,
            windows: Registered::default(),
            slots: memory,
            count: slots,
            next: 0,
            under_way: VecDeque::with_capacity(slots),
            commands: 0,
        })
    }

    /// Returns the size in bytes of the largest message, 1 or more.
    pub(super) fn longest(&self) -> usize {
        self.comm.longest().clamp(1, LARGEST)
    }

    /// Starts to send a command, with at most [`MAX_CARRIED`] bytes inside. Returns `false` if there
    /// is no room, or no receive yet.
    pub(super) fn send_command(
        &mut self,
        command: Command,
        inside: &[u8],
        request: Option<Number>,
    ) -> Fast<bool> {
        if self.commands == self.count || !self.comm.may_send() {
            return Ok(false);
        }
        let len = COMMAND_BYTES + inside.len();
        debug_assert!(inside.len() <= MAX_CARRIED);
        let words = command.encode().map(u64::to_le_bytes);
        self.slots.write(self.next, 0, words.as_flattened());
        self.slots.write(self.next, COMMAND_WORDS, inside);
        let started = self.comm.start(self.slots.buffer(self.next, len), self.slots.mr())?;
        let Some(index) = started else { return Ok(false) };
        self.next = (self.next + 1) % self.count;
        self.commands += 1;
        self.under_way.push_back(Sent { index, window: None, request });
        Ok(true)
    }

    /// Starts to send a part of a window. Returns `false` if there is no room, or no receive yet.
    pub(super) fn send(&mut self, window: &Window, part: Buffer, request: Option<Number>) -> Fast<bool> {
        let Self { comm, windows, .. } = self;
        if !comm.may_send() {
            return Ok(false);
        }
        let mr = windows.get(window, comm.registrar())?;
        let Some(index) = comm.start(part, mr)? else { return Ok(false) };
        self.under_way.push_back(Sent { index, window: Some(window.number), request });
        Ok(true)
    }

    /// Ends the oldest message if it is done. Returns its request.
    pub(super) fn next_sent(&mut self) -> Fast<Option<Option<Number>>> {
        let Some(Sent { index, window, request }) = self.under_way.front() else { return Ok(None) };
        let (is_command, request) = (window.is_none(), *request);
        if !self.comm.has_sent(*index)? {
            return Ok(None);
        }
        self.under_way.pop_front();
        self.commands -= usize::from(is_command);
        Ok(Some(request))
    }

    /// Returns whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether a part of a window is under way.
    pub(super) fn is_sending(&self, number: u32) -> bool {
        self.under_way.iter().any(|sent| sent.window == Some(number))
    }

    /// Ends the registration of a window.
    pub(super) fn forget(&mut self, number: u32) {
        self.windows.forget(number);
    }

    pub(super) fn close(self) -> Result<()> {
        self.comm.close()
    }
}

/// The receiving end of a link.
#[derive(Debug)]
pub(super) struct RecvLink {
    comm: RecvComm,
    windows: Registered,
    slots: Slots,
    count: usize,
    /// The slot of the next receive.
    next: usize,
    /// The receives of commands that are outstanding, by slot.
    offered: VecDeque<(usize, u8)>,
}

/// A message that has come, in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    slot: usize,
    /// Its size in bytes.
    len: usize,
}

/// Returns an error if a message has not the size that was announced.
fn check_len(came: usize, announced: usize) -> Result<()> {
    if came == announced {
        return Ok(());
    }
    Err(Error::Protocol(format!("a message of one-sided traffic has {came} bytes, expected {announced}")))
}

impl RecvLink {
    /// Offers room for `slots` commands.
    pub(super) fn new(comm: RecvComm, slots: usize) -> Result<Self> {
        let memory = Slots::new(slots, comm.registrar())?;
        let (windows, offered) = (Registered::default(), VecDeque::with_capacity(slots));
        Ok(Self { comm, windows, slots: memory, count: slots, next: 0, offered })
    }

    /// Makes room for so many commands. None may be outstanding.
    pub(super) fn resized(self, slots: usize) -> Result<Self> {
        Self::new(self.comm, slots)
    }

    /// Offers a receive for a command in each slot. What has come in them must be handled.
    pub(super) fn offer(&mut self) -> Fast<()> {
        while self.offered.len() < self.count {
            let buffer = self.slots.buffer(self.next, COMMAND_MESSAGE_BYTES);
            let Some(index) = self.comm.start::<Plugin>(buffer, self.slots.mr())? else { return Ok(()) };
            self.offered.push_back((self.next, index));
            self.next = (self.next + 1) % self.count;
        }
        Ok(())
    }

    /// Returns the next message of the slots if it has come.
    pub(super) fn next_received(&mut self) -> Fast<Option<Received>> {
        let Some((slot, index)) = self.offered.front().copied() else { return Ok(None) };
        let Some(len) = self.comm.received(index)? else { return Ok(None) };
        self.offered.pop_front();
        Ok(Some(Received { slot, len }))
    }

    /// Returns the command in a message.
    pub(super) fn command(&self, message: Received) -> Result<Command> {
        let mut words = [[0; 8]; COMMAND_WORDS];
        // The slot has an earlier command behind a message that is too short.
        check_len(message.len.min(COMMAND_BYTES), COMMAND_BYTES)?;
        self.slots.read(message.slot, 0, words.as_flattened_mut());
        let command =
            Command::decode(&words.map(u64::from_le_bytes)).map_err(|e| Error::Protocol(e.to_string()))?;
        check_len(message.len, COMMAND_BYTES + command.inside())?;
        Ok(command)
    }

    /// Returns the bytes that follow a command in its message.
    pub(super) fn inside(&self, message: Received, bytes: &mut [u8]) {
        self.slots.read(message.slot, COMMAND_WORDS, bytes);
    }

    /// Returns the bytes of a message without a command.
    pub(super) fn bytes(&self, message: Received, bytes: &mut [u8]) -> Result<()> {
        check_len(message.len, bytes.len())?;
        self.slots.read(message.slot, 0, bytes);
        Ok(())
    }

    /// Offers a part of a window. Returns the index of the receive, `None` if there is no room.
    pub(super) fn receive(&mut self, window: &Window, part: Buffer) -> Fast<Option<u8>> {
        let Self { comm, windows, .. } = self;
        let mr = windows.get(window, comm.registrar())?;
        comm.start::<Plugin>(part, mr)
    }

    /// Starts a copy between a slot of `slots`, which are of this link, and a part of a window. Returns
    /// `None` if there is no room, or no rail lives.
    pub(super) fn copy(&mut self, slots: &Slots, slot: usize, part: &Part, to: Towards) -> Fast<Option<u8>> {
        let Self { comm, windows, .. } = self;
        let mr = windows.get(&part.window, comm.registrar())?;
        let host = (slots.buffer(slot, part.buffer.len), slots.mr());
        comm.start_copy(LocalCopy { host, gpu: (part.buffer, mr), to })
    }

    /// Returns how a copy has ended if it has.
    pub(super) fn has_copied(&self, index: u8) -> Fast<Option<Copied>> {
        self.comm.has_copied(index)
    }

    /// Returns whether a message of `len` bytes has come.
    pub(super) fn has_received(&self, index: u8, len: usize) -> Fast<bool> {
        let Some(came) = self.comm.received(index)? else { return Ok(false) };
        check_len(came, len)?;
        Ok(true)
    }

    /// Starts to make received data visible to the GPU. Returns `None` if it is.
    pub(super) fn flush(&mut self, window: &Window, part: Buffer) -> Fast<Option<u8>> {
        let Self { comm, windows, .. } = self;
        let mr = windows.get(window, comm.registrar())?;
        comm.start_flush(part, mr)
    }

    pub(super) fn has_flushed(&self, index: u8) -> Fast<bool> {
        self.comm.has_flushed(index)
    }

    pub(super) fn forget(&mut self, number: u32) {
        self.windows.forget(number);
    }

    /// Registers memory of this process on the connection.
    pub(super) fn slots(&self, count: usize) -> Result<Slots> {
        Slots::new(count, self.comm.registrar())
    }

    pub(super) fn close(self) -> Result<()> {
        self.comm.close()
    }
}
