//! The receiver's side of episodes.

use crate::error::{Error, Fast};
use crate::proto::{Message, OpenGroup, Replay, SLOTS, SenderState, Sequence, Verdict, rails};

/// What a receiver knows of dead rails, and of the parts that it has requested again.
#[derive(Debug, Default)]
pub(crate) struct ReceiverEpisodes {
    /// The epoch of the last VERDICT; 0 before the first.
    epoch: u32,
    /// The rails that are given up.
    dead: u8,
    /// Rails that this end reports by DOWN: the sender has not given them up yet.
    reported: u8,
    /// The STATE whose rails are being given up.
    state: Option<SenderState>,
    /// The last VERDICT, in case the sender repeats its STATE.
    verdict: Option<Verdict>,
    /// The parts that are outstanding although their rail is given up.
    expected: Vec<Expected>,
}

/// A part that the sender sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    replay: Replay,
    /// NCCL has the buffer: an optional receive.
    given_back: bool,
}

/// What to do about a STATE.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing: it is old, or is being handled.
    Nothing,
    /// Repeat this answer.
    Repeat(Verdict),
    /// Give up these rails, wait until the groups that the sender has completed are whole, and
    /// [`judge`](ReceiverEpisodes::judge).
    GiveUp(u8),
}

/// What a receiver holds of an open group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// All of it. The slot may be in use again.
    Whole,
    /// Some parts.
    Parts {
        /// Those that have arrived.
        got: u8,
        /// NCCL has the buffer: an optional receive.
        given_back: bool,
        /// The buffer, or a part of it, has been offered again: NCCL has used the data, so all of
        /// it had arrived.
        used: bool,
    },
}

impl ReceiverEpisodes {
    /// Makes those of a connection that begins without these rails, as after an episode.
    pub(crate) fn without(dead: u8) -> Self {
        Self { dead, epoch: u32::from(dead != 0), ..Self::default() }
    }

    /// Returns the rails that are given up.
    pub(crate) fn dead(&self) -> u8 {
        self.dead
    }

    /// Returns the epoch of the last VERDICT.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Notes that rails work again, with new queue pairs at both ends.
    pub(crate) fn revive(&mut self, rails: u8) {
        self.dead &= !rails;
        self.reported &= !rails;
    }

    /// Returns whether no buffer may be offered. What the buffers hold is being judged, or a part is
    /// sent again into a buffer that NCCL may offer again.
    pub(crate) fn blocks_offers(&self) -> bool {
        self.state.is_some() || self.expected.iter().any(|expected| expected.given_back)
    }

    /// Returns whether an episode has begun at this end, and no VERDICT is made yet.
    pub(crate) fn is_going_on(&self) -> bool {
        self.reported & !self.dead != 0 || self.state.is_some()
    }

    /// Returns whether an episode has begun at this end, and not everything is sent again yet.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_going_on() || !self.expected.is_empty()
    }

    /// Notes that rails do not work. Returns whether there is something new to [report](Self::down).
    pub(crate) fn notice(&mut self, rails: u8) -> bool {
        let coming = self.state.as_ref().map_or(0, |state| state.dead);
        let new = rails & !(self.dead | self.reported | coming);
        self.reported |= new;
        new != 0
    }

    /// Returns DOWN for the rails that the sender has not given up; `None` if there are none.
    pub(crate) fn down(&self) -> Option<Message> {
        let rails = self.reported & !self.dead;
        (rails != 0).then_some(Message::Down { epoch: self.epoch, rails })
    }

    /// Returns the last VERDICT.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Handles a STATE. `next` is the group that this end offers next, `all` the connection's rails.
    ///
    /// # Errors
    /// It contradicts what this end knows.
    pub(crate) fn on_state(&mut self, state: SenderState, next: Sequence, all: u8) -> Fast<Answer> {
        let newest = self.state.as_ref().map_or(self.epoch, |state| state.epoch);
        if state.epoch < newest || state.epoch == newest && self.state.is_some() {
            return Ok(Answer::Nothing);
        }
        if state.epoch == newest {
            return Ok(self.verdict.clone().map_or(Answer::Nothing, Answer::Repeat));
        }
        check(&state, next, all, self.dead)?;
        let new = state.dead & !self.dead;
        self.state = Some(state);
        Ok(Answer::GiveUp(new))
    }

    /// Returns the STATE that is being handled.
    pub(crate) fn state(&self) -> Option<&SenderState> {
        self.state.as_ref()
    }

    /// Judges every lost part of the STATE that is being handled, once this end has destroyed its
    /// queue pairs on the dead rails. `held` returns what this end has of a group. Returns the
    /// VERDICT, and the open groups that are not whole.
    pub(crate) fn judge(
        &mut self,
        held: impl Fn(Sequence) -> Held,
    ) -> Option<(Verdict, Vec<OpenGroup>, Sequence)> {
        let state = self.state.take()?;
        let (mut again, mut partial) = (Vec::new(), Vec::new());
        for group in state.open {
            let Held::Parts { got, given_back, used } = held(group.seq) else { continue };
            partial.push(group);
            let missing = if used { 0 } else { group.lost & !got };
            let slot = group.seq.slot();
            self.expected.retain(|e| e.replay.slot != slot || group.lost >> e.replay.part & 1 == 0);
            let expect = |part| Expected { replay: Replay::new(slot, part as u8, state.epoch), given_back };
            self.expected.extend(rails(missing).map(expect));
            if missing != 0 {
                again.push((group.seq, missing));
            }
        }
        (self.epoch, self.dead) = (state.epoch, state.dead);
        self.reported &= !self.dead;
        let verdict = Verdict { epoch: state.epoch, again };
        self.verdict = Some(verdict.clone());
        Some((verdict, partial, state.next))
    }

    /// Handles the arrival of a part that is sent again. Returns whether it is expected.
    pub(crate) fn arrived(&mut self, replay: Replay) -> bool {
        let at = self.expected.iter().position(|expected| expected.replay == replay);
        at.map(|at| self.expected.swap_remove(at)).is_some()
    }
}

/// Compares a STATE with what this end knows.
fn check(state: &SenderState, next: Sequence, all: u8, dead: u8) -> Fast<()> {
    let refuse = |what: String| Err(Error::Protocol(format!("STATE {what}")).into());
    if state.dead & !all != 0 || dead & !state.dead != 0 {
        let found = state.dead;
        return refuse(format!("gives up rails {found:#04b} of {all:#04b}, and {dead:#04b} are given up"));
    }
    let oldest = Sequence::from_number(next.number().saturating_sub(SLOTS as u64).max(1));
    if state.next > next || state.next < oldest {
        let (found, next) = (state.next.number(), next.number());
        return refuse(format!("has group {found} as the next, and this end offers group {next} next"));
    }
    let mut slots = 0u64;
    for group in &state.open {
        // An open group is younger than SLOTS groups, or its slot could not be in use.
        let (seq, age) = (group.seq.number(), state.next.number().wrapping_sub(group.seq.number()));
        if !(1..=SLOTS as u64).contains(&age) || group.mask & !all != 0 {
            return refuse(format!("has open group {seq} on rails {:#04b}, which cannot be", group.mask));
        }
        if slots >> group.seq.slot() & 1 == 1 {
            return refuse(format!("has group {seq} twice"));
        }
        slots |= 1 << group.seq.slot();
    }
    Ok(())
}

const _: () = assert!(SLOTS <= u64::BITS as usize);
