//! CTS entries with old keys: the state of `renewed_keys`.

use crate::proto::Sequence;

/// What is left to write of entries whose keys have changed.
#[derive(Debug, Default)]
pub(super) struct KeyRenewal {
    /// The first group whose entries at the sender may have old keys.
    pub(super) first: Option<Sequence>,
}

impl KeyRenewal {
    /// Returns the group from which on entries must be written again, at least from `next` on.
    pub(super) fn first_of(&self, next: Sequence) -> Sequence {
        self.first.map_or(next, |first| first.min(next))
    }
}
