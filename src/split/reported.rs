//! Weights by the speeds that ports report. They follow those of this end's ports.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mpib_proto::MAX_RAILS;
use parking_lot::Mutex;

use crate::device::{Nic, PortMeter, SCALE_ONE};

/// Weights that fit into one word.
const PER_WORD: usize = 4;

/// What the ports of a connection's rails report, as weights. The thread of the adapters' events may
/// renew them between two messages. A message that reads half of each set is cut by valid weights,
/// too.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    words: [AtomicU64; MAX_RAILS / PER_WORD],
    renewals: AtomicU32,
}

impl Reported {
    /// Makes the weights for the speeds of both ends of each rail in Mb/s.
    pub(crate) fn new(speeds: &[(u32, u32)]) -> Self {
        let reported = Self::default();
        reported.renew(speeds);
        reported
    }

    /// Replaces the weights.
    pub(super) fn renew(&self, speeds: &[(u32, u32)]) {
        for (word, four) in self.words.iter().zip(of_speeds(speeds).as_chunks::<PER_WORD>().0) {
            let packed = four.iter().rev().fold(0, |word, weight| word << 16 | u64::from(*weight));
            word.store(packed, Ordering::Relaxed);
        }
        self.renewals.fetch_add(1, Ordering::Release);
    }

    /// Returns how often the weights were replaced.
    #[inline]
    pub(super) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Acquire)
    }

    /// Returns the weights of all rails, 0 for those that the connection does not have.
    pub(super) fn now(&self) -> [u16; MAX_RAILS] {
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        std::array::from_fn(|rail| (words[rail / PER_WORD] >> (rail % PER_WORD * 16)) as u16)
    }
}

/// Returns the speed of a rail from those of its two ends.
pub(super) fn slower_end((ours, theirs): &(u32, u32)) -> u32 {
    *ours.min(theirs)
}

/// Returns the weights of plain rails from the speeds of their two ends in Mb/s. The slower end
/// counts. A speed of 0 is unknown, and then all rails weigh the same.
fn of_speeds(speeds: &[(u32, u32)]) -> [u16; MAX_RAILS] {
    let known = speeds.iter().all(|pair| slower_end(pair) > 0);
    let largest = speeds.iter().map(slower_end).max().unwrap_or(0);
    // Halved until all fit into 16 bits. The proportions stay exact to 1 in 2^15.
    let halvings = (u32::BITS - largest.leading_zeros()).saturating_sub(u16::BITS);
    let mut weights = [0; MAX_RAILS];
    for (place, pair) in weights.iter_mut().zip(speeds) {
        *place =
            if known { u16::try_from(slower_end(pair) >> halvings).unwrap_or(u16::MAX).max(1) } else { 1 };
    }
    weights
}

/// The connections whose weights follow the speeds of this end's ports.
#[derive(Debug, Default)]
pub(crate) struct Followers(Mutex<Vec<Follower>>);

/// One connection.
#[derive(Debug)]
struct Follower {
    reported: Weak<Reported>,
    /// This end's port of each rail.
    nics: Vec<Arc<Nic>>,
    /// The last known speeds of both ends of each rail in Mb/s.
    speeds: Vec<(u32, u32)>,
}

impl Followers {
    /// Renews `reported` on events until it is dropped. `nics` has this end's port of each rail,
    /// `speeds` the present speeds of both ends.
    pub(crate) fn add(&self, reported: &Arc<Reported>, nics: Vec<Arc<Nic>>, speeds: Vec<(u32, u32)>) {
        let mut followers = self.0.lock();
        // Only when the list would grow: the cost per connection then does not depend on their number.
        if followers.len() == followers.capacity() {
            followers.retain(|f| f.reported.strong_count() > 0);
        }
        followers.push(Follower { reported: Arc::downgrade(reported), nics, speeds });
    }

    /// Renews the weights of each connection that uses the adapter with this
    /// [`Context::id`](crate::verbs::Context::id). Returns the ports whose speed has changed, with
    /// the new one in Mb/s. A port that is down keeps its speed.
    pub(crate) fn renew(&self, context: usize) -> Vec<(String, u32)> {
        // Without the lock: a query may wait for the adapter, and set-up for the lock.
        let now: Vec<(String, Option<u32>)> = self.nics_of(context).iter().map(present_speed).collect();
        let mut changed: Vec<(String, u32)> = Vec::new();
        self.renew_each(|nics, speeds| {
            for (nic, (ours, _)) in nics.iter().zip(speeds) {
                let speed = now.iter().find(|(name, _)| name == nic.name()).and_then(|(_, speed)| *speed);
                if let Some(speed) = speed.filter(|speed| speed != ours) {
                    *ours = speed;
                    changed.push((nic.name().to_owned(), speed));
                }
            }
        });
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Renews the weights of all connections after a port's scale has changed.
    pub(crate) fn rescale(&self) {
        self.renew_each(|_, _| {});
    }

    /// Changes the speeds of each connection, and renews its weights.
    fn renew_each(&self, mut change: impl FnMut(&[Arc<Nic>], &mut [(u32, u32)])) {
        self.0.lock().retain_mut(|Follower { reported, nics, speeds }| {
            let Some(reported) = reported.upgrade() else { return false };
            change(nics, speeds);
            reported.renew(&scaled(speeds, nics));
            true
        });
    }

    /// Returns the ports of one adapter that connections use, each once.
    fn nics_of(&self, context: usize) -> Vec<Arc<Nic>> {
        let mut all: Vec<Arc<Nic>> = Vec::new();
        for nic in self.0.lock().iter().flat_map(|follower| &follower.nics) {
            let is_new = all.iter().all(|known| known.name() != nic.name());
            if is_new && nic.context().id() == context {
                all.push(Arc::clone(nic));
            }
        }
        all
    }
}

/// Returns the speeds of rails as the scales of their ports change them.
pub(super) fn scaled(speeds: &[(u32, u32)], nics: &[Arc<Nic>]) -> Vec<(u32, u32)> {
    let scaled = |speed: u32, nic: &Nic| match scale(nic.meter()) {
        SCALE_ONE => speed,
        scale => (u64::from(speed) * u64::from(scale) / u64::from(SCALE_ONE)).max(1) as u32,
    };
    let known = |speed: u32, nic: &Nic| if speed == 0 { 0 } else { scaled(speed, nic) };
    speeds.iter().zip(nics).map(|((ours, theirs), nic)| (known(*ours, nic), known(*theirs, nic))).collect()
}

/// Returns the scale of a port that is in use. A drained one is in use only if all are drained.
pub(super) fn scale(port: &PortMeter) -> u16 {
    match port.scale() {
        0 => SCALE_ONE,
        scale => scale,
    }
}

/// Returns the name of a port with its speed, if it can be used.
fn present_speed(nic: &Arc<Nic>) -> (String, Option<u32>) {
    (nic.name().to_owned(), nic.now().ok().map(|(port, _)| port.speed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_as_they_were_renewed() {
        let all: Vec<(u32, u32)> = (1..=8).map(|n| (n, 100)).collect();
        let weights = Reported::new(&all);
        assert_eq!(weights.now(), [1, 2, 3, 4, 5, 6, 7, 8]);
        weights.renew(&[(100_000, 400_000), (50_000, 25_000)]);
        assert_eq!(weights.now(), [50_000, 12_500, 0, 0, 0, 0, 0, 0]);
        weights.renew(&[(0, 1), (5, 5)]);
        assert_eq!(weights.now()[..3], [1, 1, 0]);
        // A tiny weight still gets data.
        assert_eq!(Reported::new(&[(u32::MAX, u32::MAX), (1, 1)]).now()[..3], [u16::MAX, 1, 0]);
    }
}
