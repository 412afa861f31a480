//! How long the large parts of messages take on each rail.

use std::sync::Arc;

use crate::clock;
use crate::device::Nic;
use crate::policy::{Cut, MEASURED, Policy};
use crate::proto::{MAX_RAILS, SLOTS, Split, rails};

/// The large parts in flight of a connection that measures.
#[derive(Debug)]
pub(crate) struct Timing {
    /// By slot and rail.
    parts: Box<[Part]>,
    /// This end's port of each rail.
    ports: Box<[Arc<Nic>]>,
    /// The smallest part that is measured.
    least: usize,
    /// By rail: the bytes of its large parts in flight.
    in_flight: [u64; MAX_RAILS],
    /// By rail: when its last large part completed, in ns.
    done: [u64; MAX_RAILS],
}

/// A part in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    posted: u64,
    bytes: usize,
}

impl Timing {
    /// Returns the timing of a connection with these ports, whose parts from `least` bytes on are
    /// measured.
    fn new(ports: &[Arc<Nic>], least: usize) -> Self {
        Self {
            parts: vec![Part::default(); SLOTS * ports.len()].into(),
            ports: ports.into(),
            least,
            in_flight: [0; MAX_RAILS],
            done: [0; MAX_RAILS],
        }
    }

    /// Notes that a group's parts of these `bytes` are about to be posted on the rails of `mask`.
    /// Returns the mask of the parts that are measured.
    #[inline(never)]
    pub(crate) fn begin(&mut self, slot: u8, mask: u8, bytes: impl Fn(usize) -> usize) -> u8 {
        let (mut measured, mut now) = (0, 0);
        if rails(mask).map(&bytes).sum::<usize>() < MEASURED {
            return 0;
        }
        for rail in rails(mask).filter(|rail| bytes(*rail) >= self.least) {
            if measured == 0 {
                now = clock::now();
            }
            measured |= 1 << rail;
            let bytes = bytes(rail);
            if self.in_flight[rail] == 0 {
                self.ports[rail].meter().busy().begin(now);
            }
            self.parts[usize::from(slot) * self.ports.len() + rail] = Part { posted: now, bytes };
            self.in_flight[rail] += bytes as u64;
        }
        measured
    }

    /// Notes that a part has completed `now`. Returns its bytes and its duration: from its post, or
    /// from the completion before it on the rail if that was later.
    fn end(&mut self, slot: u8, rail: usize, now: u64) -> (usize, u64) {
        let part = std::mem::take(&mut self.parts[usize::from(slot) * self.ports.len() + rail]);
        if part.bytes == 0 {
            return (0, 0);
        }
        self.in_flight[rail] -= part.bytes as u64;
        let busy = self.ports[rail].meter().busy();
        busy.completed(part.bytes, part.posted, now);
        if self.in_flight[rail] == 0 {
            busy.end();
        }
        let since = part.posted.max(self.done[rail]);
        self.done[rail] = now;
        (part.bytes, now.saturating_sub(since))
    }

    /// Forgets the parts of a rail that is given up.
    fn forget(&mut self, rail: usize) {
        let of_rail = self.parts.iter_mut().skip(rail).step_by(self.ports.len());
        of_rail.for_each(|part| *part = Part::default());
        self.done[rail] = 0;
        if std::mem::take(&mut self.in_flight[rail]) > 0 {
            self.ports[rail].meter().busy().end();
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        (0..self.ports.len()).for_each(|rail| self.forget(rail));
    }
}

/// Cuts a send of `len` bytes by what was measured.
#[inline(never)]
pub(super) fn cut(timing: Option<&Timing>, policy: &mut Policy, len: usize, split: &mut Split) -> Cut {
    let Some(timing) = timing else { return Cut::NoRail };
    policy.cut_measured(len, &timing.in_flight, clock::now(), split)
}

/// Takes in the completion of a large part.
#[inline(never)]
pub(super) fn completed(timing: Option<&mut Timing>, policy: &mut Policy, slot: u8, rail: usize) {
    let (Some(timing), Some(measured)) = (timing, policy.measured()) else { return };
    let now = clock::now();
    let (bytes, time) = timing.end(slot, rail, now);
    // A completion that was polled before has none.
    if bytes > 0 {
        measured.add(rail, bytes, time, now);
    }
}

/// Forgets what was measured on rails that are given up.
pub(super) fn forget(timing: Option<&mut Timing>, policy: &mut Policy, which: u8) {
    let (Some(timing), Some(measured)) = (timing, policy.measured()) else { return };
    let now = clock::now();
    for rail in rails(which) {
        timing.forget(rail);
        measured.forget(rail, now);
    }
}

/// Returns the timing of a connection whose policy measures.
pub(super) fn of(policy: &mut Policy) -> Option<Box<Timing>> {
    let least = policy.least_measured();
    policy.measured().map(|measured| Box::new(Timing::new(measured.ports(), least)))
}
