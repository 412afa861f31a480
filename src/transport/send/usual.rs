//! What the usual sends of a comm have in common.

use crate::policy::Policy;
use crate::proto::{ImmLayout, MAX_RAILS};
use crate::verbs::ImmWrite;

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct UsualSends {
    /// They have 1 to this many bytes.
    pub(crate) largest: usize,
    /// Their rail.
    pub(crate) rail: usize,
    /// The mask of that rail.
    pub(crate) mask: u8,
    /// Their share for SUP, for the statistics.
    pub(crate) share: Option<u16>,
    pub(crate) write: ImmWrite,
}

impl UsualSends {
    pub(crate) fn new(policy: &Policy, layout: ImmLayout, separate_imm_above: usize) -> Self {
        let whole = policy.whole();
        let below = whole.map_or(1, |whole| whole.below).min(layout.exact_below());
        let rail = whole.map_or(0, |whole| whole.rail % MAX_RAILS);
        Self {
            largest: (below - 1).min(separate_imm_above),
            rail,
            mask: 1 << rail,
            share: whole.and_then(|whole| whole.share),
            write: ImmWrite::new(),
        }
    }
}
