//! What commands do to the windows of a rank, as docs/internals/protocol.md has it.

use std::collections::VecDeque;

use mpib_proto::{COMMAND_BYTES, Command, Extent, Signal, Way};

use super::{ENDED, GETS, LEN, MARK};

/// Most messages that follow a command.
const MOST: usize = 64;

/// What becomes of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on.
    Goes,
    /// A command waits for a window, or nothing is read any more.
    Waits,
    /// Data is missing.
    Stalls,
    /// The connection fails.
    Fails,
}

/// The windows of the honest rank.
pub(super) struct Model {
    windows: [Vec<u8>; 2],
    named: [Vec<Named>; 2],
    pub(super) answered: Vec<bool>,
    /// The messages that follow.
    follow: VecDeque<Follow>,
    /// The signal behind them: window, offset and value.
    signal: Option<(usize, usize, u64)>,
}

/// What commands name a byte for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Nothing,
    Data,
    Signals,
    /// Data twice, or data and signals, whose order is free.
    Several,
}

/// A message with data.
#[derive(Debug, Clone, Copy)]
struct Follow {
    /// It comes over the command link.
    is_next: bool,
    /// Window and offset; `None` if the data is dropped.
    place: Option<(usize, usize)>,
    len: usize,
}

/// What is found of a window.
enum Found {
    Window(usize),
    Ended,
    NotYet,
}

fn find(number: u32) -> Found {
    match number {
        ENDED => Found::Ended,
        0 | 1 => Found::Window(number as usize),
        _ => Found::NotYet,
    }
}

/// Returns where data begins, if it is inside of a window.
fn inside(offset: u64, size: u64) -> Option<usize> {
    let end = offset.checked_add(size)?;
    (end <= LEN as u64).then_some(offset as usize)
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            windows: [vec![MARK; LEN], vec![MARK; LEN]],
            named: [vec![Named::Nothing; LEN], vec![Named::Nothing; LEN]],
            answered: vec![false; GETS.len()],
            follow: VecDeque::new(),
            signal: None,
        }
    }

    /// Handles the command of a message.
    pub(super) fn command(&mut self, command: Option<Command>, message: &[u8]) -> Verdict {
        let Some(command) = command.filter(|it| message.len() == COMMAND_BYTES + it.inside()) else {
            return Verdict::Fails;
        };
        let carried = &message[COMMAND_BYTES..];
        match command {
            Command::Put { data, signal } => self.put(data, signal, carried),
            Command::Get { from, .. } => match find(from.window) {
                Found::NotYet => Verdict::Waits,
                Found::Window(_) if inside(from.offset, from.size).is_some() => Verdict::Goes,
                _ => Verdict::Fails,
            },
            Command::Answer { id, size, way } => {
                let id = id as usize;
                match GETS.get(id).filter(|get| !self.answered[id] && get.2 as u64 == size) {
                    Some((window, at, _)) => {
                        self.answered[id] = true;
                        self.take(Some((*window as usize, *at)), size as usize, way, carried);
                        Verdict::Goes
                    }
                    None => Verdict::Fails,
                }
            }
            // Nothing behind it is read.
            Command::End => Verdict::Waits,
            Command::Join { .. } => Verdict::Fails,
        }
    }

    fn put(&mut self, data: Option<(Extent, Way)>, signal: Option<Signal>, carried: &[u8]) -> Verdict {
        let mut word = None;
        if let Some(Signal { window, offset, .. }) = signal {
            match find(window) {
                Found::NotYet => return Verdict::Waits,
                Found::Ended => {}
                Found::Window(number) => match inside(offset, 8).filter(|at| at % 8 == 0) {
                    Some(at) => word = Some((number, at)),
                    None => return Verdict::Fails,
                },
            }
        }
        if let Some((Extent { window, offset, size }, way)) = data {
            let place = match (find(window), way) {
                (Found::NotYet, _) => return Verdict::Waits,
                (Found::Ended, Way::DataLink(_)) => return Verdict::Fails,
                (Found::Ended, _) => None,
                (Found::Window(number), _) => match inside(offset, size) {
                    Some(at) => Some((number, at)),
                    None => return Verdict::Fails,
                },
            };
            self.take(place, size as usize, way, carried);
        }
        if let Some(((number, at), signal)) = word.zip(signal) {
            for named in &mut self.named[number][at..at + 8] {
                let is_free = matches!(named, Named::Nothing | Named::Signals);
                *named = if is_free { Named::Signals } else { Named::Several };
            }
            self.signal = Some((number, at, signal.value));
            self.apply();
        }
        Verdict::Goes
    }

    /// Adds the signal, once all data of its put is there.
    fn apply(&mut self) {
        let Some((number, at, value)) = self.signal.take_if(|_| self.follow.is_empty()) else { return };
        let word = &mut self.windows[number][at..at + 8];
        let sum = u64::from_ne_bytes((&*word).try_into().expect("a word")).wrapping_add(value);
        word.copy_from_slice(&sum.to_ne_bytes());
    }

    /// Takes the data of a command.
    fn take(&mut self, place: Option<(usize, usize)>, size: usize, way: Way, carried: &[u8]) {
        if let Some((number, at)) = place {
            for named in &mut self.named[number][at..at + size] {
                *named = if *named == Named::Nothing { Named::Data } else { Named::Several };
            }
        }
        match way {
            Way::Inside => self.write(place, carried),
            Way::Next => self.follow.push_back(Follow { is_next: true, place, len: size }),
            Way::DataLink(chunk) => {
                let chunk = usize::try_from(chunk).unwrap_or(usize::MAX).min(size);
                for start in (0..size).step_by(chunk) {
                    let place = place.map(|(number, at)| (number, at + start));
                    self.follow.push_back(Follow { is_next: false, place, len: chunk.min(size - start) });
                }
            }
        }
    }

    fn write(&mut self, place: Option<(usize, usize)>, bytes: &[u8]) {
        if let Some((number, at)) = place {
            self.windows[number][at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Returns whether more messages must follow than a run is for.
    pub(super) fn awaits_many(&self) -> bool {
        self.follow.len() > MOST
    }

    /// Returns the message that must follow: whether over the command link, and its size.
    pub(super) fn awaited(&self) -> Option<(bool, usize)> {
        self.follow.front().map(|it| (it.is_next, it.len))
    }

    /// Handles a message that follows.
    pub(super) fn data(&mut self, bytes: &[u8]) -> Verdict {
        match self.follow.pop_front() {
            // Data for a window that has ended is dropped, of any size.
            Some(Follow { is_next: true, place: None, .. }) => {}
            Some(Follow { place, len, .. }) if len == bytes.len() => self.write(place, bytes),
            _ => return Verdict::Fails,
        }
        self.apply();
        Verdict::Goes
    }

    /// Compares a window with the model's.
    pub(super) fn check(&self, number: u32, found: &[u8], verdict: Verdict) {
        let (expected, named) = (&self.windows[number as usize], &self.named[number as usize]);
        for (at, (byte, expected)) in found.iter().zip(expected).enumerate() {
            // Of a link that ends, the last commands may have no effect.
            let is_known = match named[at] {
                Named::Nothing => true,
                Named::Data | Named::Signals => verdict == Verdict::Goes,
                Named::Several => false,
            };
            assert!(
                !is_known || byte == expected,
                "window {number}, byte {at}: {byte:#x}, not {expected:#x}"
            );
        }
    }
}
