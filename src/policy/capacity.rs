//! The capacity of a device in its split mode: the speed and the number of connections that NCCL
//! sees.

use std::sync::Arc;

use super::{SplitMode, Stripes};
use crate::config::Config;
use crate::device::{Device, Nic};
use crate::proto::SHARE_ONE;
use crate::verbs::DeviceLimits;

/// Entries of a completion queue for each stripe with which the stripes surely share one.
const STRIPE_COMPLETIONS: usize = 2048;

/// Returns the speed in Mb/s that transfers of a device can reach. Plain rails add up. SOUT and SUP
/// add up in advanced mode, and with a fixed share that uses both. In vanilla mode the faster one
/// counts, because a connection uses only one.
pub fn speed(device: &Device, config: &Config) -> u32 {
    let speed = |rail: usize| device.rails.get(rail).map_or(0, |n| n.port().speed);
    let both = speed(0).saturating_add(speed(1));
    match SplitMode::new(config, device.is_sout_sup) {
        SplitMode::BySpeed | SplitMode::Measured => {
            device.rails.iter().fold(0, |sum, n| n.port().speed.saturating_add(sum))
        }
        SplitMode::Isolated => speed(0).max(speed(1)),
        SplitMode::Fixed(0) => speed(0),
        SplitMode::Fixed(share) if share >= SHARE_ONE => speed(1),
        SplitMode::Fixed(_) | SplitMode::Hinted => both,
    }
}

/// Returns how many connections the HCAs of a device have queues for. On each rail a flush needs
/// one more queue pair. Each stripe has one SRQ at a receiver. The stripes of a rail share a
/// completion queue.
pub fn max_connections(device: &Device, config: &Config) -> u32 {
    let flush = usize::from(device.rails.iter().any(|nic| nic.flushes(config)));
    // A peer may use fewer rails, which then get more stripes.
    let plain = (1..=device.rails.len()).map(|n| Stripes::plain(config.ib_qps, config.ib_split, n));
    let widest = |of: fn(Stripes) -> usize| plain.clone().map(of).max().unwrap_or(1);
    let of_rail = |rail: usize| match rail {
        _ if !device.is_sout_sup => (widest(Stripes::qps), widest(|s| s.stripes)),
        0 => (usize::from(config.sout_qp), 1),
        _ => (usize::from(config.sup_qp), 1),
    };
    let most = |(rail, nic): (usize, &Arc<Nic>)| {
        let (qps, stripes) = of_rail(rail);
        most_on(nic.limits(), nic.has_srq().is_ok(), qps + flush, stripes)
    };
    let fewest = device.rails.iter().enumerate().map(most).min().unwrap_or(0);
    u32::try_from(fewest).unwrap_or(u32::MAX)
}

/// Returns how many connections an HCA has queues for, if each needs so many queue pairs and
/// stripes there.
fn most_on(limits: &DeviceLimits, has_srq: bool, qps: usize, stripes: usize) -> usize {
    let srqs = if has_srq { limits.max_srq } else { u32::MAX };
    let each_own = limits.max_cqe as usize / stripes.max(1) < STRIPE_COMPLETIONS;
    let cqs = if each_own { stripes } else { 1 };
    let needs = [(limits.max_qp, qps), (limits.max_cq, cqs), (srqs, stripes)];
    needs.into_iter().map(|(has, each)| has as usize / each.max(1)).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::open_all;

    #[test]
    fn the_scarcest_queues_limit_the_connections() {
        crate::connect::tests::ports();
        let devices = open_all().unwrap();
        let context = devices.into_iter().find_map(|(_, context)| context.ok()).unwrap();
        let mut limits = context.limits().unwrap();
        (limits.max_qp, limits.max_cq, limits.max_srq) = (1000, 300, 100);
        let (shallow, deep) = (2 * STRIPE_COMPLETIONS as u32 - 1, 4 * STRIPE_COMPLETIONS as u32);
        for (has_srq, qps, stripes, max_cqe, most) in [
            (true, 4, 1, deep, 100),
            (true, 20, 1, deep, 50),
            (true, 4, 4, deep, 25),
            (false, 3, 1, deep, 300),
            (false, 3, 2, deep, 300),
            (false, 4, 4, deep, 250),
            (false, 4, 2, shallow, 150),
        ] {
            limits.max_cqe = max_cqe;
            assert_eq!(most_on(&limits, has_srq, qps, stripes), most, "{qps} queue pairs, {stripes} stripes");
        }
        limits.max_srq = 0;
        assert_eq!(most_on(&limits, false, 5, 1), 200);
    }
}
