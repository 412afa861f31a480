//! The sender: it gives dead rails up, says what is outstanding, and makes the rails again.

use mpib_proto::{
    Attempt, Message, NewRails, OpenGroup, RailSet, RebuildFailed, Replay, SenderState, Sequence, Up,
    Verdict, rails,
};

use crate::error::{Error, Fast};

/// What a sender knows of its dead rails, of the parts that other rails carry for them, and of the
/// attempt that is to bring rails back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sender {
    all: RailSet,
    /// The number of the last STATE; 0 before the first.
    epoch: u32,
    /// The rails that are given up.
    dead: RailSet,
    /// Failed rails that the next episode is about.
    failing: RailSet,
    /// Whether queue pairs on dead rails are being destroyed: STATE follows.
    fencing: bool,
    /// Whether the VERDICT of the last episode is outstanding.
    awaiting: bool,
    /// The parts that are sent again, in the order of their verdicts. Those of completed groups
    /// stay until the next episode.
    moved: Vec<Moved>,
    /// The number of the last attempt; 0 before the first.
    attempts: u32,
    attempt: Option<(Attempt, RailSet, Step)>,
    /// The first group whose data a receiver that closes does not have.
    arrived: Option<Sequence>,
}

/// Where the present attempt is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// This end makes its queue pairs.
    Making,
    /// REBUILD is sent.
    Requested,
    /// This end probes.
    Proving,
    /// PROVED is sent.
    Proved,
    /// UP has come. The entries of these groups are awaited, with keys of these checksums.
    Up(Vec<(Sequence, u32)>),
}

/// A part that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Moved {
    seq: Sequence,
    part: u8,
    /// The rail that carries it; `None` until it is posted.
    carrier: Option<u8>,
}

/// A group that is posted and not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) seq: Sequence,
    /// The rails that carry a part of it.
    pub(crate) mask: u8,
    /// The size of its only message, if the immediate has it.
    pub(crate) size: Option<u64>,
}

/// What a message of the receiver leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SenderAction {
    Nothing,
    /// The receiver has given these rails up: [`Sender::episode`] begins one.
    GivenUpByPeer(RailSet),
    /// Of each open group these lost parts are known: all but the last ones are done, and those are
    /// to be sent again.
    Judged(Vec<(Sequence, u8, u8)>),
    /// Connect the new queue pairs to the receiver's, and probe. Then [`Sender::worked`].
    Join(NewRails),
    /// The attempt has failed at the receiver: drop it.
    Failed(RailSet, String),
    /// The receiver can make these dead rails again: what it has refused no longer counts.
    Returned(RailSet),
}

impl Sender {
    pub(crate) fn new(all: RailSet) -> Self {
        Self {
            all,
            epoch: 0,
            dead: RailSet::EMPTY,
            failing: RailSet::EMPTY,
            fencing: false,
            awaiting: false,
            moved: Vec::new(),
            attempts: 0,
            attempt: None,
            arrived: None,
        }
    }

    /// Returns the rails that are given up.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn dead(&self) -> RailSet {
        self.dead
    }

    /// Begins without these rails, as after an episode.
    pub(crate) fn without(self, dead: RailSet) -> Self {
        Self { epoch: u32::from(!dead.is_empty()), dead, ..self }
    }

    /// Returns whether a VERDICT is outstanding.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaiting
    }

    /// Returns whether this end probes.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_proving(&self) -> bool {
        matches!(self.attempt, Some((.., Step::Proving)))
    }

    /// Returns whether an episode goes on: a VERDICT is outstanding, or not everything is sent again.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.fencing || self.awaiting || self.has_unposted()
    }

    /// Returns whether a part waits to be sent again.
    pub(crate) fn has_unposted(&self) -> bool {
        self.moved.iter().any(|moved| moved.carrier.is_none())
    }

    /// Notes that rails do not work. [`episode`](Self::episode) begins one.
    pub(crate) fn failed(&mut self, which: RailSet) {
        self.failing |= which;
    }

    /// Begins an episode if rails have failed. The caller drops the attempt and sends nothing more over
    /// the rails that this returns, destroys its queue pairs on them, and then sends what
    /// [`state`](Self::state) returns. Groups go out over the other rails meanwhile.
    pub(crate) fn episode(&mut self) -> Option<RailSet> {
        let failed = std::mem::take(&mut self.failing);
        let new = failed.without(self.dead);
        // The receiver may use rails of the present attempt, and has given them up again.
        if new.is_empty() && (failed & self.attempt_rails()).is_empty() {
            return None;
        }
        self.dead |= new;
        self.fencing = true;
        // New queue pairs of a rail that the receiver may use are destroyed before the receiver
        // learns of the episode: no CTS entry comes over them any more.
        self.attempt = None;
        Some(new)
    }

    /// Returns whether [`state`](Self::state) is due once all queue pairs on dead rails are destroyed.
    pub(crate) fn is_fencing(&self) -> bool {
        self.fencing
    }

    /// Returns STATE for the groups that are open. `next` is the group that this end posts next.
    /// The lost parts count as outstanding until the VERDICT, also those that are acknowledged: a
    /// group whose buffer may be needed does not complete.
    pub(crate) fn state(&mut self, next: Sequence, open: &[Posted]) -> SenderState {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        (self.fencing, self.awaiting) = (false, true);
        self.moved.retain(|moved| open.iter().any(|group| group.seq == moved.seq));
        let group = |Posted { seq, mask, size }: &Posted| OpenGroup {
            seq: *seq,
            mask: *mask,
            lost: self.lost(*seq, *mask),
            size: *size,
        };
        let open = open.iter().map(group).collect();
        SenderState { epoch: self.epoch, dead: self.dead.bits(), next, open }
    }

    /// Handles a message of the receiver; `open` are the groups that are open.
    ///
    /// # Errors
    /// It contradicts what this end knows, or a sender gets no such message.
    pub(crate) fn on_message(&mut self, message: Message, open: &[Posted]) -> Fast<SenderAction> {
        match message {
            Message::Down { epoch, rails } => self.on_down(epoch, RailSet::from_bits(rails)),
            Message::Verdict(verdict) => self.on_verdict(&verdict, open),
            Message::Rebuilt(answer) => Ok(self.on_rebuilt(answer)),
            Message::RebuildFailed(failed) => Ok(self.on_rebuild_failed(failed)),
            Message::Up(up) => {
                self.on_up(up);
                Ok(SenderAction::Nothing)
            }
            Message::Return { rails } => Ok(SenderAction::Returned(RailSet::from_bits(rails) & self.dead)),
            Message::Arrived { next } => {
                self.arrived = Some(next);
                Ok(SenderAction::Nothing)
            }
            other => {
                let name = other.name();
                Err(Error::Protocol(format!("the peer sent {name} on an established connection")).into())
            }
        }
    }

    /// A DOWN from before the last STATE has no effect: the receiver sends it again.
    fn on_down(&mut self, epoch: u32, which: RailSet) -> Fast<SenderAction> {
        if epoch != self.epoch {
            return Ok(SenderAction::Nothing);
        }
        if !self.all.includes(which) {
            let what = format!("DOWN of rails {which}, and the connection has {}", self.all);
            return Err(Error::Protocol(what).into());
        }
        self.failed(which);
        Ok(SenderAction::GivenUpByPeer(which))
    }

    /// A VERDICT that answers an earlier STATE has no effect.
    fn on_verdict(&mut self, verdict: &Verdict, open: &[Posted]) -> Fast<SenderAction> {
        if verdict.epoch != self.epoch || !self.awaiting || self.fencing {
            return Ok(SenderAction::Nothing);
        }
        let again = |seq: Sequence| {
            let of_group = verdict.again.iter().filter(|(of, _)| *of == seq);
            of_group.fold(0, |all, (_, parts)| all | parts)
        };
        let judged = |group: &Posted| (group.seq, self.lost(group.seq, group.mask), again(group.seq));
        let judged: Vec<_> = open.iter().map(judged).collect();
        for (seq, parts) in &verdict.again {
            let lost = judged.iter().find(|(of, ..)| of == seq).map_or(0, |(_, lost, _)| *lost);
            if parts & !lost != 0 {
                return Err(not_lost(*seq, *parts, lost));
            }
        }
        for (seq, _, again) in &judged {
            for part in rails(*again) {
                let part = part as u8;
                self.moved.retain(|moved| (moved.seq, moved.part) != (*seq, part));
                self.moved.push(Moved { seq: *seq, part, carrier: None });
            }
        }
        self.awaiting = false;
        Ok(SenderAction::Judged(judged))
    }

    /// Returns whether the receiver closes and has the data of all groups before this one.
    pub(crate) fn has_arrived(&self, next: Sequence) -> bool {
        self.arrived.is_some_and(|arrived| next <= arrived)
    }

    /// Returns the lost parts that a closing receiver has, by open group, as
    /// [`Judged`](SenderAction::Judged) does: no VERDICT comes any more. None while queue pairs on dead
    /// rails, which read these groups' buffers, are being destroyed.
    pub(crate) fn arrived(&mut self, open: &[Posted]) -> Vec<(Sequence, u8, u8)> {
        let Some(next) = self.arrived.filter(|_| !self.fencing) else { return Vec::new() };
        let has = open.iter().filter(|group| group.seq < next);
        let judged = has.map(|group| (group.seq, self.lost(group.seq, group.mask), 0)).collect();
        // A part that was sent again completes by its own acknowledgement, as long as its carrier lives.
        self.moved.retain(|moved| moved.seq >= next || moved.carrier.is_some());
        self.awaiting &= open.iter().any(|group| group.seq >= next);
        judged
    }

    /// Returns the parts of a group whose last carrier is given up.
    fn lost(&self, seq: Sequence, mask: u8) -> u8 {
        let is_lost = |part: &usize| {
            let moved = self.moved.iter().find(|moved| (moved.seq, usize::from(moved.part)) == (seq, *part));
            match moved.map(|moved| moved.carrier) {
                None => self.dead.contains(*part),
                Some(None) => true,
                Some(Some(carrier)) => self.dead.contains(carrier.into()),
            }
        };
        rails(mask).filter(is_lost).fold(0, |lost, part| lost | 1 << part)
    }

    /// Returns the first part that waits to be sent again; none before the VERDICT.
    pub(crate) fn next_unposted(&self) -> Option<(Sequence, Replay)> {
        if self.fencing || self.awaiting {
            return None;
        }
        let moved = self.moved.iter().find(|moved| moved.carrier.is_none())?;
        Some((moved.seq, Replay::new(moved.seq.slot(), moved.part, self.epoch)))
    }

    /// Notes which rail carries the part that [`next_unposted`](Self::next_unposted) returns.
    pub(crate) fn posted(&mut self, carrier: usize) {
        if let Some(moved) = self.moved.iter_mut().find(|moved| moved.carrier.is_none()) {
            moved.carrier = Some(carrier as u8);
        }
    }

    /// Returns the dead rails that an attempt may be about now. `may_return` returns whether the
    /// port and the route of a rail may be tried.
    pub(crate) fn due(&self, may_return: impl Fn(usize) -> bool) -> Option<usize> {
        if self.fencing || self.awaiting || self.attempt.is_some() {
            return None;
        }
        self.dead.iter().find(|rail| may_return(*rail))
    }

    /// Begins an attempt for dead rails, which the caller makes. Then [`worked`](Self::worked).
    pub(crate) fn begin(&mut self, which: RailSet) {
        self.attempts = self.attempts.wrapping_add(1).max(1);
        let attempt = Attempt { number: self.attempts, epoch: self.epoch };
        self.attempt = Some((attempt, which, Step::Making));
    }

    /// Returns the rails of the present attempt.
    pub(crate) fn attempt_rails(&self) -> RailSet {
        self.attempt.as_ref().map_or(RailSet::EMPTY, |(_, which, _)| *which)
    }

    /// Handles the end of this end's own work. `made` describes its port and queue pairs. Returns
    /// the message to send.
    pub(crate) fn worked(&mut self, made: impl FnOnce(Attempt, RailSet) -> NewRails) -> Option<Message> {
        let (attempt, which, step) = self.attempt.as_mut()?;
        match step {
            Step::Making => {
                *step = Step::Requested;
                Some(Message::Rebuild(made(*attempt, *which)))
            }
            Step::Proving => {
                *step = Step::Proved;
                Some(Message::Proved(*attempt))
            }
            Step::Requested | Step::Proved | Step::Up(_) => None,
        }
    }

    fn on_rebuilt(&mut self, answer: NewRails) -> SenderAction {
        let Some((attempt, which, step)) = &mut self.attempt else { return SenderAction::Nothing };
        if (*attempt, which.bits(), &*step) != (answer.attempt, answer.rails, &Step::Requested) {
            return SenderAction::Nothing;
        }
        *step = Step::Proving;
        SenderAction::Join(answer)
    }

    fn on_rebuild_failed(&mut self, failed: RebuildFailed) -> SenderAction {
        match self.attempt {
            Some((current, ..)) if current == failed.attempt => {
                SenderAction::Failed(self.abort(), failed.reason)
            }
            _ => SenderAction::Nothing,
        }
    }

    fn on_up(&mut self, up: Up) {
        let Some((attempt, _, step)) = &mut self.attempt else { return };
        if (*attempt, &*step) == (up.attempt, &Step::Proved) {
            *step = Step::Up(up.entries);
        }
    }

    /// Returns whether the rails of an attempt are to be used once [all entries](Self::use_rails) with
    /// new keys are there.
    pub(crate) fn awaits_entries(&self) -> bool {
        matches!(self.attempt, Some((.., Step::Up(_))))
    }

    /// Ends an attempt after UP once all entries that it names are there, for which `is_there` is
    /// called with the group and the checksum of its keys: a message over TCP may pass them. Returns
    /// the rails to be used.
    pub(crate) fn use_rails(&mut self, is_there: impl Fn(Sequence, u32) -> bool) -> Option<RailSet> {
        let Some((_, which, Step::Up(awaited))) = &mut self.attempt else { return None };
        awaited.retain(|(seq, keys)| !is_there(*seq, *keys));
        if !awaited.is_empty() {
            return None;
        }
        let which = *which;
        self.attempt = None;
        self.dead = self.dead.without(which);
        Some(which)
    }

    /// Ends the present attempt, which has failed. Later messages about it are ignored. Returns its
    /// rails.
    pub(crate) fn abort(&mut self) -> RailSet {
        let which = self.attempt_rails();
        self.attempt = None;
        which
    }
}

#[cold]
fn not_lost(seq: Sequence, parts: u8, lost: u8) -> Box<Error> {
    let seq = seq.number();
    Error::Protocol(format!(
        "VERDICT requests parts {parts:#04b} of group {seq}, of which {lost:#04b} are lost"
    ))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::tests::new_rails;

    fn hears(sender: &mut Sender, message: Message) -> SenderAction {
        sender.on_message(message, &[]).unwrap()
    }

    //= protocol.md: failback: a message of another attempt or epoch has no effect
    #[test]
    fn a_sender_goes_through_the_steps_in_order_and_ignores_other_messages() {
        let (mut sender, which) = (Sender::new(RailSet::first(2)), RailSet::of(1));
        sender.failed(which);
        assert_eq!((sender.episode(), sender.episode()), (Some(which), None));
        assert_eq!(sender.state(Sequence::FIRST, &[]).epoch, 1);
        let verdict = |epoch| Message::Verdict(Verdict { epoch, again: Vec::new() });
        assert_eq!(hears(&mut sender, verdict(2)), SenderAction::Nothing);
        assert_eq!(sender.due(|_| true), None, "the VERDICT is outstanding");
        assert_eq!(hears(&mut sender, verdict(1)), SenderAction::Judged(Vec::new()));
        assert_eq!((sender.due(|_| false), sender.due(|_| true)), (None, Some(1)));
        sender.begin(which);
        let first = Attempt { number: 1, epoch: 1 };
        let rebuilt = |attempt| Message::Rebuilt(new_rails(attempt, which));
        assert_eq!(hears(&mut sender, rebuilt(first)), SenderAction::Nothing, "nothing is made yet");
        assert_eq!(sender.worked(new_rails), Some(Message::Rebuild(new_rails(first, which))));
        for other in [Attempt { number: 2, ..first }, Attempt { epoch: 2, ..first }] {
            assert_eq!(hears(&mut sender, rebuilt(other)), SenderAction::Nothing);
        }
        assert_eq!(hears(&mut sender, rebuilt(first)), SenderAction::Join(new_rails(first, which)));
        let up = |attempt| {
            let entries = [7, 8].map(|n| (Sequence::from_number(n), n as u32)).to_vec();
            Message::Up(Up { attempt, entries })
        };
        hears(&mut sender, up(first));
        assert_eq!(sender.use_rails(|_, _| true), None, "not proved yet");
        assert_eq!(sender.worked(new_rails), Some(Message::Proved(first)));
        hears(&mut sender, up(Attempt { epoch: 2, ..first }));
        assert_eq!(sender.use_rails(|_, _| true), None);
        hears(&mut sender, up(first));
        assert_eq!(sender.use_rails(|seq, _| seq.number() == 7), None, "one entry is missing");
        assert!(sender.awaits_entries());
        assert_eq!(sender.use_rails(|seq, keys| (seq.number(), keys) == (8, 8)), Some(which));
        assert!(sender.dead().is_empty() && sender.attempt_rails().is_empty());
    }

    //= protocol.md: failback: RETURN is about dead rails
    #[test]
    fn a_sender_is_concerned_by_the_return_of_dead_rails_alone() {
        let (mut sender, which) = (Sender::new(RailSet::first(2)), RailSet::of(1));
        sender.failed(which);
        sender.episode();
        let returned = hears(&mut sender, Message::Return { rails: 0b11 });
        assert_eq!(returned, SenderAction::Returned(which));
    }
}
