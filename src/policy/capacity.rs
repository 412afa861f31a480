//! The capacity of a device in its split mode: the speed and the number of connections that NCCL
//! sees.

use std::sync::Arc;

use super::{SplitMode, Stripes};
use crate::config::Config;
use crate::device::{Device, Nic};
use crate::proto::SHARE_ONE;

/// Returns the speed in Mb/s that transfers of a device can reach. Plain rails add up. SOUT and SUP
/// add up in advanced mode, and with a fixed share that uses both. In vanilla mode the faster one
/// counts, because a connection uses only one.
pub fn speed(device: &Device, config: &Config) -> u32 {
    let speed = |rail: usize| device.rails.get(rail).map_or(0, |n| n.port().speed);
    let both = speed(0).saturating_add(speed(1));
    match SplitMode::new(config, device.is_sout_sup) {
        SplitMode::BySpeed => device.rails.iter().fold(0, |sum, n| n.port().speed.saturating_add(sum)),
        SplitMode::Isolated => speed(0).max(speed(1)),
        SplitMode::Fixed(0) => speed(0),
        SplitMode::Fixed(share) if share >= SHARE_ONE => speed(1),
        SplitMode::Fixed(_) | SplitMode::Hinted => both,
    }
}

/// Returns how many connections the queue pairs of a device's HCAs allow. A flush needs one more
/// queue pair on each rail.
pub fn max_connections(device: &Device, config: &Config) -> u32 {
    let flush = usize::from(device.rails.iter().any(|nic| nic.flushes(config)));
    // A peer may use fewer rails, which then get more stripes.
    let plain = (1..=device.rails.len()).map(|n| Stripes::plain(config.ib_qps, config.ib_split, n));
    let plain = plain.map(|s| s.qps() + flush).max().unwrap_or(1);
    let each = |rail: usize| match rail {
        _ if !device.is_sout_sup => plain,
        0 => usize::from(config.sout_qp) + flush,
        _ => usize::from(config.sup_qp) + flush,
    };
    let most = |(rail, nic): (usize, &Arc<Nic>)| nic.limits().max_qp as usize / each(rail).max(1);
    let fewest = device.rails.iter().enumerate().map(most).min().unwrap_or(0);
    u32::try_from(fewest).unwrap_or(u32::MAX)
}
