//! The sender's side of episodes.

use crate::error::{Error, Fast};
use crate::proto::{OpenGroup, Replay, SenderState, Sequence, Verdict, rails};

/// What a sender knows of its dead rails, and of the parts that other rails carry for them.
#[derive(Debug, Default)]
pub(crate) struct SenderEpisodes {
    /// The number of the last STATE; 0 before the first.
    epoch: u32,
    /// The rails that are given up.
    dead: u8,
    /// The last STATE, while its VERDICT is outstanding.
    awaited: Option<SenderState>,
    /// Whether an episode has begun whose VERDICT is outstanding.
    awaiting: bool,
    /// The parts that are sent again, in the order of their verdicts. Those of completed groups
    /// stay until the next episode.
    moved: Vec<Moved>,
}

/// A part that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl SenderEpisodes {
    /// Makes those of a connection that begins without these rails, as after an episode.
    pub(crate) fn without(dead: u8) -> Self {
        Self { dead, epoch: u32::from(dead != 0), ..Self::default() }
    }

    /// Returns whether sends must wait: which buffers the peer still wants is not known.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.awaiting
    }

    /// Returns whether a part waits to be sent again.
    pub(crate) fn has_unposted(&self) -> bool {
        self.moved.iter().any(|moved| moved.carrier.is_none())
    }

    /// Returns whether DOWN with this epoch is newer than the last STATE.
    pub(crate) fn is_current(&self, epoch: u32) -> bool {
        self.epoch == epoch
    }

    /// Returns the last STATE if its VERDICT is outstanding.
    pub(crate) fn awaited(&self) -> Option<&SenderState> {
        self.awaited.as_ref()
    }

    /// Gives up rails, which begins an episode unless all of them are given up already. Returns
    /// those that are new.
    pub(crate) fn give_up(&mut self, rails: u8) -> u8 {
        let new = rails & !self.dead;
        if new != 0 {
            self.dead |= new;
            self.epoch = self.epoch.wrapping_add(1).max(1);
            self.awaiting = true;
        }
        new
    }

    /// Returns the rails that are given up.
    pub(crate) fn dead(&self) -> u8 {
        self.dead
    }

    /// Returns the number of the last STATE.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins an episode although no more rails are given up.
    pub(crate) fn renew(&mut self) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.awaiting = true;
    }

    /// Notes that rails work again, with new queue pairs at both ends.
    pub(crate) fn revive(&mut self, rails: u8) {
        self.dead &= !rails;
    }

    /// Returns the parts of a group whose last carrier is given up.
    fn lost(&self, seq: Sequence, mask: u8) -> u8 {
        let is_lost = |part: &usize| {
            let moved = self.moved.iter().find(|moved| (moved.seq, usize::from(moved.part)) == (seq, *part));
            match moved.map(|moved| moved.carrier) {
                None => self.dead >> part & 1 == 1,
                Some(None) => true,
                Some(Some(carrier)) => self.dead >> carrier & 1 == 1,
            }
        };
        rails(mask).filter(is_lost).fold(0, |lost, part| lost | 1 << part)
    }

    /// Returns STATE for the groups that are open. Their lost parts count as outstanding until the
    /// VERDICT, also those that are acknowledged: a group whose buffer may be needed does not
    /// complete.
    pub(crate) fn state(&mut self, next: Sequence, open: &[Posted]) -> SenderState {
        self.moved.retain(|moved| open.iter().any(|group| group.seq == moved.seq));
        let group = |Posted { seq, mask, size }: &Posted| OpenGroup {
            seq: *seq,
            mask: *mask,
            lost: self.lost(*seq, *mask),
            size: *size,
        };
        let open = open.iter().map(group).collect();
        let state = SenderState { epoch: self.epoch, dead: self.dead, next, open };
        self.awaited = Some(state.clone());
        state
    }

    /// Handles the VERDICT. Returns the lost parts of each open group, and those of them that must
    /// be sent again; the others are done. `None` if the VERDICT answers an earlier STATE.
    ///
    /// # Errors
    /// It requests parts that are not lost.
    pub(crate) fn verdict(
        &mut self,
        verdict: &Verdict,
        open: &[Posted],
    ) -> Fast<Option<Vec<(Sequence, u8, u8)>>> {
        if verdict.epoch != self.epoch || !self.awaiting {
            return Ok(None);
        }
        let again =
            |seq: Sequence| verdict.again.iter().filter(move |(of, _)| *of == seq).map(|(_, parts)| parts);
        let judged: Vec<_> = open
            .iter()
            .map(|group| {
                (group.seq, self.lost(group.seq, group.mask), again(group.seq).fold(0, |a, b| a | b))
            })
            .collect();
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
        (self.awaiting, self.awaited) = (false, None);
        Ok(Some(judged))
    }

    /// Returns the first part that waits to be sent again.
    pub(crate) fn next_unposted(&self) -> Option<(Sequence, Replay)> {
        let moved = self.moved.iter().find(|moved| moved.carrier.is_none())?;
        Some((moved.seq, Replay::new(moved.seq.slot(), moved.part, self.epoch)))
    }

    /// Notes which rail carries the part that [`next_unposted`](Self::next_unposted) returns.
    pub(crate) fn posted(&mut self, carrier: usize) {
        if let Some(moved) = self.moved.iter_mut().find(|moved| moved.carrier.is_none()) {
            moved.carrier = Some(carrier as u8);
        }
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
