//! The arrivals of a receive slot: the rails that carry the message, and its completion.

/// Returns the rails of a mask, in order.
#[inline]
pub fn rails(mask: u8) -> impl Iterator<Item = usize> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let rail = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(rail)
    })
}

/// The arrivals of one receive slot. The first one defines the mask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Arrivals {
    want: u8,
    got: u8,
}

/// The effect of one arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Other rails have not arrived yet.
    Waiting,
    /// The last rail has arrived.
    Complete,
    /// The peer has broken the protocol. The state is unchanged.
    Violation(Violation),
}

/// The contradiction of an arrival with itself or an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The mask is empty.
    #[error("an immediate names no rail")]
    Empty,
    /// The rail of the arrival is not in its mask.
    #[error("an immediate with mask {mask:#04b} came on rail {rail}, which it does not name")]
    NotNamed {
        /// Mask of the immediate.
        mask: u8,
        /// Rail of the arrival.
        rail: u8,
    },
    /// The mask differs from that of the first arrival.
    #[error("an immediate has mask {mask:#04b} after an earlier one with {learned:#04b}")]
    Changed {
        /// Mask of the first arrival.
        learned: u8,
        /// Mask of this arrival.
        mask: u8,
    },
    /// The rail has arrived before.
    #[error("rail {rail} delivered two immediates for one slot")]
    Twice {
        /// The rail.
        rail: u8,
    },
}

impl Arrivals {
    /// No arrival.
    pub const NONE: Self = Self { want: 0, got: 0 };

    /// Returns the arrivals of a message that is whole on a rail, below 8.
    #[inline]
    pub const fn whole(rail: usize) -> Self {
        let mask = 1u8.wrapping_shl(rail as u32);
        Self { want: mask, got: mask }
    }

    /// Records an arrival: its mask and its rail.
    #[inline]
    pub const fn on_arrival(&mut self, mask: u8, rail: u8) -> Step {
        if rail >= 8 || mask >> rail & 1 == 0 {
            let why = if mask == 0 { Violation::Empty } else { Violation::NotNamed { mask, rail } };
            return Step::Violation(why);
        }
        if self.want != 0 && self.want != mask {
            return Step::Violation(Violation::Changed { learned: self.want, mask });
        }
        if self.got >> rail & 1 == 1 {
            return Step::Violation(Violation::Twice { rail });
        }
        self.want = mask;
        self.got |= 1 << rail;
        if self.got == self.want { Step::Complete } else { Step::Waiting }
    }

    /// Sets the mask if nothing has arrived yet, or compares it. Returns `false`, and changes
    /// nothing, if another mask is known.
    pub const fn learn(&mut self, mask: u8) -> bool {
        if self.want == 0 {
            self.want = mask;
        }
        self.want == mask
    }

    /// Records parts of the mask that count as arrived, whichever rail carried them. Returns
    /// whether the slot is complete.
    pub const fn add(&mut self, parts: u8) -> bool {
        self.got |= parts & self.want;
        self.got == self.want
    }

    /// Returns the mask of the first arrival; 0 before it.
    pub const fn expected(&self) -> u8 {
        self.want
    }

    /// Returns the rails that have arrived.
    #[inline]
    pub const fn seen(&self) -> u8 {
        self.got
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rails_of_every_mask() {
        for mask in 0..=255u8 {
            assert!(rails(mask).eq((0..8).filter(|rail| mask >> rail & 1 == 1)), "{mask:#b}");
        }
    }

    /// Every reachable state, every mask, every rail.
    //= protocol.md: mask: the first immediate sets it, one per named rail completes the slot
    #[test]
    #[cfg_attr(miri, ignore = "miri takes many minutes for all states")]
    fn every_arrival_in_every_state() {
        for want in 0..=255u8 {
            // `got` is a non-empty subset of `want`; both are 0 before the first arrival.
            for got in (0..=255u8).filter(|g| if want == 0 { *g == 0 } else { *g != 0 && g & !want == 0 }) {
                for mask in [0, want, 1, 2, 3, 0x80, 0xff, want ^ 1] {
                    for rail in 0..=9u8 {
                        let mut a = Arrivals { want, got };
                        let named = rail < 8 && mask & (1 << rail) != 0;
                        let step = a.on_arrival(mask, rail);
                        let expected = if mask == 0 {
                            Step::Violation(Violation::Empty)
                        } else if !named {
                            Step::Violation(Violation::NotNamed { mask, rail })
                        } else if want != 0 && mask != want {
                            Step::Violation(Violation::Changed { learned: want, mask })
                        } else if got & (1 << rail) != 0 {
                            Step::Violation(Violation::Twice { rail })
                        } else if got | 1 << rail == mask {
                            Step::Complete
                        } else {
                            Step::Waiting
                        };
                        assert_eq!(step, expected, "want {want:#b} got {got:#b} mask {mask:#b} rail {rail}");
                        let changed = !matches!(step, Step::Violation(_));
                        let after = if changed {
                            Arrivals { want: mask, got: got | 1 << rail }
                        } else {
                            Arrivals { want, got }
                        };
                        assert_eq!(a, after);
                    }
                }
            }
        }
    }

    proptest! {
        /// In any order of rails only the last arrival completes the slot.
        //= protocol.md: mask: the first immediate sets it, one per named rail completes the slot
        #[test]
        fn any_order_completes_once(mask in 1u8.., order in Just((0..8u8).collect::<Vec<_>>()).prop_shuffle()) {
            let mut a = Arrivals::default();
            let rails: Vec<u8> = order.into_iter().filter(|r| mask >> r & 1 == 1).collect();
            for (i, &rail) in rails.iter().enumerate() {
                let want = if i + 1 == rails.len() { Step::Complete } else { Step::Waiting };
                prop_assert_eq!(a.on_arrival(mask, rail), want);
            }
            prop_assert_eq!((a.expected(), a.seen()), (mask, mask));
        }
    }
}
