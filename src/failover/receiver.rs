//! The receiver: it reports failed rails, judges what has arrived over those that the sender has
//! given up, and answers the sender's attempts.

use mpib_proto::{
    Attempt, Message, NewRails, OpenGroup, RailSet, RebuildFailed, Replay, SLOTS, SenderState, Sequence,
    Verdict, rails,
};

use crate::error::{Error, Fast};

/// What a receiver knows of dead rails, of the parts that it has requested again, and of the
/// sender's present attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Receiver {
    all: RailSet,
    /// The epoch of the last VERDICT; 0 before the first.
    epoch: u32,
    /// The rails that are given up.
    dead: RailSet,
    /// Rails that this end reports by DOWN: the sender has not given them up yet.
    reported: RailSet,
    /// The STATE whose rails are being given up.
    state: Option<SenderState>,
    /// The parts that are outstanding although their rail is given up.
    expected: Vec<Expected>,
    /// The number of the last REBUILD; 0 before the first.
    last: u32,
    attempt: Option<(Attempt, RailSet, Step)>,
    /// Dead rails that this end could not make: it sends RETURN once they can be tried.
    unusable: RailSet,
}

/// Where the present attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// This end makes its queue pairs.
    Making,
    /// REBUILT is sent.
    Answered,
    /// This end probes.
    Proving,
}

/// A part that the sender sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Expected {
    replay: Replay,
    /// NCCL has the buffer: an optional receive.
    given_back: bool,
}

/// What a message of the sender leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceiverAction {
    Nothing,
    /// Drop the attempt, and offer nothing more over these rails. Once everything has arrived that
    /// the sender has completed, destroy this end's queue pairs on them and then
    /// [`judge`](Receiver::judge).
    GiveUp(RailSet),
    /// Make queue pairs of these rails, and connect them to the sender's. Then
    /// [`Receiver::worked`].
    Make(NewRails),
    /// Probe. Then [`Receiver::worked`].
    Probe,
}

/// What this end's own work in an attempt leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReceiverWorked {
    Nothing,
    /// Send REBUILT with this attempt and these rails.
    Made(Attempt, RailSet),
    /// Use these rails. Write the CTS entries again whose keys have changed, and send UP, which names
    /// all entries that are outstanding.
    Use(Attempt, RailSet),
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

impl Receiver {
    pub(crate) fn new(all: RailSet) -> Self {
        Self {
            all,
            epoch: 0,
            dead: RailSet::EMPTY,
            reported: RailSet::EMPTY,
            state: None,
            expected: Vec::new(),
            last: 0,
            attempt: None,
            unusable: RailSet::EMPTY,
        }
    }

    /// Begins without these rails, as after an episode.
    pub(crate) fn without(self, dead: RailSet) -> Self {
        Self { epoch: u32::from(!dead.is_empty()), dead, ..self }
    }

    /// Returns the rails that are given up.
    pub(crate) fn dead(&self) -> RailSet {
        self.dead
    }

    /// Returns the rails of the present attempt.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn attempt_rails(&self) -> RailSet {
        self.attempt.map_or(RailSet::EMPTY, |(_, which, _)| which)
    }

    /// Returns whether this end probes.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_proving(&self) -> bool {
        matches!(self.attempt, Some((.., Step::Proving)))
    }

    /// Returns whether no buffer may be offered. What the buffers of lost parts hold is being judged,
    /// or a part is sent again into a buffer that NCCL may offer again.
    pub(crate) fn blocks_offers(&self) -> bool {
        let is_lost = |state: &SenderState| state.open.iter().any(|group| group.lost != 0);
        self.state.as_ref().is_some_and(is_lost) || self.expected.iter().any(|expected| expected.given_back)
    }

    /// Returns whether an episode has begun at this end, and no VERDICT is made yet.
    pub(crate) fn is_going_on(&self) -> bool {
        !self.reported.without(self.dead).is_empty() || self.state.is_some()
    }

    /// Returns whether an episode has begun at this end, and not everything is sent again yet.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_going_on() || !self.expected.is_empty()
    }

    /// Notes that rails do not work. Returns DOWN if the sender does not know.
    pub(crate) fn failed(&mut self, which: RailSet) -> Option<Message> {
        let coming = self.state.as_ref().map_or(RailSet::EMPTY, |state| RailSet::from_bits(state.dead));
        let new = which.without(self.dead | self.reported | coming);
        self.reported |= new;
        if new.is_empty() { None } else { self.down() }
    }

    /// Returns DOWN for the rails that the sender has not given up; `None` if there are none. It is
    /// sent again after a VERDICT: a sender ignores a DOWN of an earlier epoch.
    pub(crate) fn down(&self) -> Option<Message> {
        let which = self.reported.without(self.dead);
        (!which.is_empty()).then(|| Message::Down { epoch: self.epoch, rails: which.bits() })
    }

    /// Handles a message of the sender. `next` is the group that this end offers next.
    ///
    /// # Errors
    /// It contradicts what this end knows, or a receiver gets no such message.
    pub(crate) fn on_message(&mut self, message: Message, next: Sequence) -> Fast<ReceiverAction> {
        match message {
            Message::State(state) => self.on_state(state, next),
            Message::Rebuild(request) => self.on_rebuild(request),
            Message::Proved(attempt) => Ok(self.on_proved(attempt)),
            other => {
                let name = other.name();
                Err(Error::Protocol(format!("the peer sent {name} on an established connection")).into())
            }
        }
    }

    fn on_state(&mut self, state: SenderState, next: Sequence) -> Fast<ReceiverAction> {
        let newest = self.state.as_ref().map_or(self.epoch, |state| state.epoch);
        if state.epoch <= newest {
            let found = state.epoch;
            return Err(Error::Protocol(format!("STATE of epoch {found} after one of {newest}")).into());
        }
        check(&state, next, self.all, self.dead)?;
        let new = RailSet::from_bits(state.dead).without(self.dead);
        self.state = Some(state);
        self.attempt = None;
        Ok(ReceiverAction::GiveUp(new))
    }

    /// Returns the STATE that is being handled.
    pub(crate) fn state(&self) -> Option<&SenderState> {
        self.state.as_ref()
    }

    /// Judges every lost part of the STATE that is being handled, once this end has destroyed its
    /// queue pairs on the dead rails. `held` returns what this end has of a group. Returns the
    /// VERDICT, and the open groups that are not whole, each with its lost parts that count as arrived.
    pub(crate) fn judge(
        &mut self,
        held: impl Fn(Sequence) -> Held,
    ) -> Option<(Verdict, Vec<(OpenGroup, u8)>)> {
        let state = self.state.take()?;
        let (mut again, mut partial) = (Vec::new(), Vec::new());
        for group in state.open {
            let Held::Parts { got, given_back, used } = held(group.seq) else { continue };
            let missing = if used { 0 } else { group.lost & !got };
            partial.push((group, group.lost & !missing));
            let slot = group.seq.slot();
            self.expected.retain(|e| e.replay.slot != slot || group.lost >> e.replay.part & 1 == 0);
            let expect = |part| Expected { replay: Replay::new(slot, part as u8, state.epoch), given_back };
            self.expected.extend(rails(missing).map(expect));
            if missing != 0 {
                again.push((group.seq, missing));
            }
        }
        (self.epoch, self.dead) = (state.epoch, RailSet::from_bits(state.dead));
        self.reported = self.reported.without(self.dead);
        Some((Verdict { epoch: state.epoch, again }, partial))
    }

    /// Handles the arrival of a part that is sent again. Returns whether it is expected.
    pub(crate) fn arrived(&mut self, replay: Replay) -> bool {
        let at = self.expected.iter().position(|expected| expected.replay == replay);
        at.map(|at| self.expected.swap_remove(at)).is_some()
    }

    /// A REBUILD of another epoch has no effect. The queue pairs of an earlier attempt are void.
    fn on_rebuild(&mut self, request: NewRails) -> Fast<ReceiverAction> {
        if request.attempt.number <= self.last || request.attempt.epoch != self.epoch || self.state.is_some()
        {
            return Ok(ReceiverAction::Nothing);
        }
        let which = RailSet::from_bits(request.rails);
        if !self.dead.includes(which) {
            let what = format!("REBUILD of rails {which}, of which {} are given up", self.dead);
            return Err(Error::Protocol(what).into());
        }
        self.last = request.attempt.number;
        self.unusable = self.unusable.without(which);
        self.attempt = Some((request.attempt, which, Step::Making));
        Ok(ReceiverAction::Make(request))
    }

    fn on_proved(&mut self, attempt: Attempt) -> ReceiverAction {
        let Some((current, _, step)) = &mut self.attempt else { return ReceiverAction::Nothing };
        if (*current, *step) != (attempt, Step::Answered) {
            return ReceiverAction::Nothing;
        }
        *step = Step::Proving;
        ReceiverAction::Probe
    }

    /// Handles the end of this end's own work.
    pub(crate) fn worked(&mut self) -> ReceiverWorked {
        let Some((attempt, which, step)) = &mut self.attempt else { return ReceiverWorked::Nothing };
        match step {
            Step::Making => {
                *step = Step::Answered;
                ReceiverWorked::Made(*attempt, *which)
            }
            Step::Proving => {
                let (attempt, which) = (*attempt, *which);
                self.attempt = None;
                self.dead = self.dead.without(which);
                self.reported = self.reported.without(which);
                ReceiverWorked::Use(attempt, which)
            }
            Step::Answered => ReceiverWorked::Nothing,
        }
    }

    /// Ends the present attempt, which has failed at this end. Returns its rails and the message to
    /// send.
    pub(crate) fn abort(&mut self, reason: String) -> Option<(RailSet, Message)> {
        let (attempt, which, _) = self.attempt.take()?;
        self.unusable |= which;
        Some((which, Message::RebuildFailed(RebuildFailed { attempt, reason })))
    }

    /// Returns the rails that this end could not make and that `may_return` now, for RETURN.
    pub(crate) fn returned(&mut self, may_return: impl Fn(usize) -> bool) -> RailSet {
        let which: RailSet = self.unusable.iter().filter(|rail| may_return(*rail)).collect();
        self.unusable = self.unusable.without(which);
        which
    }

    /// Returns whether this end could not make a rail that `may_return` now.
    pub(crate) fn is_return_due(&self, may_return: impl Fn(usize) -> bool) -> bool {
        self.unusable.iter().any(may_return)
    }
}

/// Compares a STATE with what this end knows.
fn check(state: &SenderState, next: Sequence, all: RailSet, dead: RailSet) -> Fast<()> {
    let refuse = |what: String| Err(Error::Protocol(format!("STATE {what}")).into());
    let found = RailSet::from_bits(state.dead);
    if !all.includes(found) || !found.includes(dead) {
        return refuse(format!("gives up rails {found} of {all}, and {dead} are given up"));
    }
    // Groups go out over the living rails while STATE is on its way: any number may have arrived since.
    if state.next > next {
        let (found, next) = (state.next.number(), next.number());
        return refuse(format!("has group {found} as the next, and this end offers group {next} next"));
    }
    let mut slots = 0u64;
    for group in &state.open {
        // An open group is younger than SLOTS groups, or its slot could not be in use.
        let (seq, age) = (group.seq.number(), state.next.number().wrapping_sub(group.seq.number()));
        if !(1..=SLOTS as u64).contains(&age) || !all.includes(RailSet::from_bits(group.mask)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::tests::new_rails;

    //= protocol.md: failback: a message of another attempt or epoch has no effect
    #[test]
    fn a_receiver_begins_each_attempt_once_and_only_in_its_epoch() {
        let (mut receiver, which) = (Receiver::new(RailSet::first(2)), RailSet::of(0));
        let state = SenderState { epoch: 3, dead: 1, next: Sequence::FIRST, open: Vec::new() };
        let hears = |receiver: &mut Receiver, message| receiver.on_message(message, Sequence::FIRST);
        let given_up = hears(&mut receiver, Message::State(state.clone())).unwrap();
        assert_eq!(given_up, ReceiverAction::GiveUp(which));
        receiver.judge(|_| Held::Whole);
        let again = hears(&mut receiver, Message::State(state)).unwrap_err().to_string();
        assert!(again.contains("STATE of epoch 3 after one of 3"), "{again}");
        let rebuild = |number, epoch| new_rails(Attempt { number, epoch }, which);
        let begin = |receiver: &mut Receiver, request: &NewRails| {
            hears(receiver, Message::Rebuild(request.clone())).unwrap()
                == ReceiverAction::Make(request.clone())
        };
        assert!(!begin(&mut receiver, &rebuild(1, 2)) && begin(&mut receiver, &rebuild(1, 3)));
        assert!(!begin(&mut receiver, &rebuild(1, 3)), "a repetition");
        let first = Attempt { number: 1, epoch: 3 };
        let proved = |receiver: &mut Receiver, attempt| hears(receiver, Message::Proved(attempt)).unwrap();
        assert_eq!(proved(&mut receiver, first), ReceiverAction::Nothing, "not answered yet");
        assert_eq!(receiver.worked(), ReceiverWorked::Made(first, which));
        assert_eq!(receiver.worked(), ReceiverWorked::Nothing);
        assert!(begin(&mut receiver, &rebuild(2, 3)), "a new one");
        let second = Attempt { number: 2, epoch: 3 };
        assert_eq!(receiver.worked(), ReceiverWorked::Made(second, which));
        assert_eq!(proved(&mut receiver, first), ReceiverAction::Nothing);
        assert_eq!(proved(&mut receiver, second), ReceiverAction::Probe);
        assert_eq!(receiver.worked(), ReceiverWorked::Use(second, which));
        assert_eq!(receiver.worked(), ReceiverWorked::Nothing);
        let living = hears(&mut receiver, Message::Rebuild(rebuild(3, 3))).unwrap_err().to_string();
        assert!(living.contains("REBUILD of rails 0b01, of which 0b00 are given up"), "{living}");
    }

    /// Whole groups pass over the other rail while STATE is on its way, more than there are slots.
    //= protocol.md: STATE: any number of groups may have arrived since it was made
    #[test]
    fn a_state_may_be_older_than_all_groups_that_are_outstanding() {
        let mut receiver = Receiver::new(RailSet::first(2));
        let group = |seq| Sequence::from_number(seq);
        let open = OpenGroup { seq: group(1115), mask: 0b11, lost: 0b01, size: Some(8) };
        let state = SenderState { epoch: 1, dead: 1, next: group(1116), open: vec![open] };
        let action = receiver.on_message(Message::State(state.clone()), group(1200)).unwrap();
        assert_eq!(action, ReceiverAction::GiveUp(RailSet::of(0)));
        // Its slot is in use again, so all of it has arrived.
        let (verdict, partial) = receiver.judge(|_| Held::Whole).unwrap();
        assert!(verdict.again.is_empty() && partial.is_empty());
        let ahead = SenderState { epoch: 2, next: group(1201), open: Vec::new(), ..state };
        let refused = receiver.on_message(Message::State(ahead), group(1200)).unwrap_err().to_string();
        assert!(
            refused.contains("has group 1201 as the next, and this end offers group 1200 next"),
            "{refused}"
        );
    }

    //= protocol.md: failback: RETURN is sent for each rail that this end could not make
    #[test]
    fn a_rail_that_could_not_be_made_is_not_forgotten_by_an_attempt_for_another_one() {
        let mut receiver = Receiver::new(RailSet::first(2));
        let state = SenderState { epoch: 1, dead: 0b11, next: Sequence::FIRST, open: Vec::new() };
        receiver.on_message(Message::State(state), Sequence::FIRST).unwrap();
        receiver.judge(|_| Held::Whole);
        for (number, rail) in [(1, 0), (2, 1)] {
            let request = new_rails(Attempt { number, epoch: 1 }, RailSet::of(rail));
            receiver.on_message(Message::Rebuild(request), Sequence::FIRST).unwrap();
            assert_eq!(receiver.abort("down".into()).unwrap().0, RailSet::of(rail));
        }
        assert!(!receiver.is_return_due(|_| false) && receiver.is_return_due(|rail| rail == 0));
        assert_eq!(receiver.returned(|rail| rail == 0), RailSet::of(0));
        assert_eq!(receiver.returned(|_| true), RailSet::of(1));
        assert!(receiver.returned(|_| true).is_empty());
    }
}
