//! Signals: numbers that are added to words of windows.
//!
//! Only the owner of a window adds to its words, for all ranks. So an add needs no atomic operation
//! of an adapter, which could not be repeated when a rail fails: the processor adds in host memory,
//! and for a word on the GPU it writes the sum, which may be written twice.

use std::collections::HashMap;
use std::sync::Arc;

use super::connector::Terms;
use super::local::{Local, Part, Purpose};
use super::window::Window;
use crate::error::{Error, Result};

/// A word of a window: the window's number and the word's offset in bytes.
pub(super) type Word = (u32, u64);

/// What is done with a word on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing.
    Rest,
    /// Its value is needed.
    Read,
    /// Its value is on the way.
    Reading,
    /// This value is to be written.
    Write(u64),
    /// This value is being written.
    Writing(u64),
}

/// The state of a word on the GPU.
#[derive(Debug)]
struct Adding {
    part: Part,
    step: Step,
    /// The value, if nobody else changes it.
    value: Option<u64>,
    /// The ranks whose signals are being added.
    served: Vec<usize>,
    /// What comes after them: a sum, and the ranks that it is of.
    sum: u64,
    next: Vec<usize>,
}

/// The words on the GPU that have had signals.
#[derive(Debug, Default)]
pub(super) struct Signals {
    words: HashMap<Word, Adding>,
    /// Those whose next step is to be begun.
    due: Vec<Word>,
}

/// Returns whether a signal can be at this offset.
pub(super) fn check(window: &Window, offset: u64) -> Result<()> {
    let part = window.part(offset, 8)?;
    match part.addr % 8 {
        0 => Ok(()),
        _ => Err(Error::Argument(format!(
            "a signal at offset {offset} of window {}: expected the address of an aligned word of 8 bytes",
            window.number
        ))),
    }
}

impl Signals {
    /// Adds `value` for a rank to the word at `offset`, which [`check`] has found right. Returns
    /// whether it is done; [`written`](Self::written) has the rank if not.
    pub(super) fn add(&mut self, window: &Arc<Window>, offset: u64, value: u64, rank: usize) -> Result<bool> {
        if let Some(host) = window.host() {
            let added = usize::try_from(offset).ok().and_then(|offset| host.add(offset, value));
            return added
                .map(|()| true)
                .ok_or_else(|| Error::Internal("a signal outside of its window".into()));
        }
        let word = (window.number, offset);
        let buffer = window.part(offset, 8)?;
        let adding = self.words.entry(word).or_insert_with(|| Adding {
            part: Part { window: Arc::clone(window), buffer },
            step: Step::Rest,
            value: None,
            served: Vec::new(),
            sum: 0,
            next: Vec::new(),
        });
        adding.sum = adding.sum.wrapping_add(value);
        adding.next.push(rank);
        if adding.step == Step::Rest {
            adding.begin();
            self.due.push(word);
        }
        Ok(false)
    }

    /// Begins the steps that are due. Returns whether there was one.
    pub(super) fn progress(&mut self, terms: &Terms, local: &mut Local) -> bool {
        let Self { words, due } = self;
        let before = due.len();
        due.retain(|word| {
            let Some(adding) = words.get_mut(word) else { return false };
            let part = adding.part.clone();
            let (begun, next) = match adding.step {
                Step::Read => (local.read(terms, part, Purpose::Read(*word)), Step::Reading),
                Step::Write(value) => (
                    local.write(terms, part, &value.to_ne_bytes(), Purpose::Write(*word)),
                    Step::Writing(value),
                ),
                step => (true, step),
            };
            if begun {
                adding.step = next;
            }
            !begun
        });
        due.len() < before
    }

    /// Notes the value of a word.
    pub(super) fn read(&mut self, word: Word, value: u64) {
        if let Some(adding) = self.words.get_mut(&word) {
            adding.value = Some(value);
            adding.begin();
            self.due.push(word);
        }
    }

    /// Notes that a word is written. Calls `applied` for each rank whose signals are in it.
    pub(super) fn written(&mut self, word: Word, applied: impl FnMut(usize)) {
        let Some(adding) = self.words.get_mut(&word) else { return };
        if let Step::Writing(value) = adding.step {
            adding.value = adding.part.window.never_reset.then_some(value);
        }
        adding.step = Step::Rest;
        adding.served.drain(..).for_each(applied);
        if !adding.next.is_empty() {
            adding.begin();
            self.due.push(word);
        }
    }

    /// Returns whether an adapter reads or writes a word of a window, or is about to.
    pub(super) fn uses(&self, number: u32) -> bool {
        self.words.iter().any(|((window, _), adding)| *window == number && adding.step != Step::Rest)
    }

    /// Forgets the words of a window.
    pub(super) fn forget(&mut self, number: u32) {
        self.words.retain(|(window, _), _| *window != number);
        self.due.retain(|(window, _)| *window != number);
    }
}

impl Adding {
    /// Chooses the next step.
    fn begin(&mut self) {
        self.step = match self.value {
            None => Step::Read,
            Some(value) => {
                std::mem::swap(&mut self.served, &mut self.next);
                Step::Write(value.wrapping_add(std::mem::take(&mut self.sum)))
            }
        };
    }
}
