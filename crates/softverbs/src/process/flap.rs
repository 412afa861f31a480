//! Links that go down and up by themselves. The service threads of the processes that have the
//! device change the state; whichever is first does.

use std::sync::atomic::Ordering::Relaxed;

use crate::clock;
use crate::fault::Fault;
use crate::fault::site::Site;
use crate::process::Process;
use crate::shm::layout::LinkSlot;
use crate::shm::link_state::DOWN;

/// Advances a random number generator (`SplitMix64`) and returns its next number.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draws how long the link stays down or up, in nanoseconds.
fn draw(link: &LinkSlot, up: bool) -> u64 {
    let mut state = link.flap_seed.load(Relaxed);
    let number = random(&mut state);
    // 0 would mean that the link does not flap.
    link.flap_seed.store(state.max(1), Relaxed);
    let [low, high] = [0, 1].map(|i| link.flap_limits[i + 2 * usize::from(up)].load(Relaxed));
    low + number % (high.saturating_sub(low) + 1)
}

/// Starts with the link up. The fabric is locked.
pub(crate) fn start(link: &LinkSlot, seed: u64, now: u64) {
    let mut state = seed;
    random(&mut state);
    link.flap_seed.store(state.max(1), Relaxed);
    link.flap_next.store(now.saturating_add(draw(link, true)), Relaxed);
}

/// Ends flapping. The fabric is locked.
pub(crate) fn stop(link: &LinkSlot) {
    link.flap_seed.store(0, Relaxed);
}

/// Changes the links that are due, for the service thread.
pub(crate) fn serve(process: &Process) {
    let header = process.own.header();
    for device in header.devices.iter().take(header.device_count.load(Relaxed) as usize) {
        let index = device.link.load(Relaxed);
        let flapping = process.fabric.link(index).filter(|link| link.flap_seed.load(Relaxed) != 0);
        if let Some(link) = flapping {
            step(process, link, index);
        }
    }
}

fn step(process: &Process, link: &LinkSlot, index: u32) {
    let Some(site) = Site::new(&process.fabric, index, process.all_peers()) else { return };
    let now = clock::now();
    // Held until the link has changed: `heal` ends with the link up.
    let _guard = process.fabric.lock();
    if link.flap_seed.load(Relaxed) == 0 {
        return;
    }
    if link.flap_next.load(Relaxed) <= now {
        let up = link.flags() & DOWN != 0;
        link.flap_next.store(now.saturating_add(draw(link, up)), Relaxed);
        site.strike(if up { Fault::LinkUp } else { Fault::LinkDown });
    }
    process.service.wake_at(link.flap_next.load(Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of a link that flaps with this seed.
    fn times(seed: u64) -> Vec<u64> {
        // SAFETY: atomics may be zero.
        let link: LinkSlot = unsafe { std::mem::zeroed() };
        for (limit, value) in link.flap_limits.iter().zip([10, 20, 100, 100]) {
            limit.store(value, Relaxed);
        }
        start(&link, seed, 1000);
        assert_eq!(link.flap_next.load(Relaxed), 1100);
        (0..100).map(|i| draw(&link, i % 2 == 1)).collect()
    }

    #[test]
    fn a_seed_determines_the_times_within_their_limits() {
        for seed in [0, 1, u64::MAX] {
            let times = times(seed);
            assert_eq!(times, self::times(seed));
            assert!(times.chunks(2).all(|pair| (10..=20).contains(&pair[0]) && pair[1] == 100));
            assert!(times.iter().any(|time| *time != times[0]));
        }
        assert_ne!(times(1), times(2));
    }
}
