//! What a receiver has to do before it sends UP: the state of `renewed_keys`.

use crate::proto::{Attempt, Sequence};

/// What is left of an attempt whose queue pairs this end uses already.
#[derive(Debug, Default)]
pub(super) struct KeyRenewal {
    /// The first group whose entries at the sender may have old keys.
    pub(super) first: Option<Sequence>,
    /// The attempt whose UP waits for that.
    pub(super) up: Option<Attempt>,
}

impl KeyRenewal {
    /// Returns whether UP waits.
    pub(super) fn is_pending(&self) -> bool {
        self.up.is_some()
    }

    /// Forgets the attempt.
    pub(super) fn abort(&mut self) {
        self.up = None;
    }

    /// Returns the group from which on entries must be written again, at least from `next` on.
    pub(super) fn first_of(&self, next: Sequence) -> Sequence {
        self.first.map_or(next, |first| first.min(next))
    }
}
