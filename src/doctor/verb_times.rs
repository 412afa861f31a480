//! Times the verbs of a queue pair on each port. An adapter whose control path is slow makes
//! connections and failover slow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::doctor::VerbTimes;

use crate::config::Config;
use crate::device::Nic;
use crate::error::Result;
use crate::verbs::{Access, Cq, Path, Qp, QpOptions, Timing};

/// Makes a queue pair, connects it to itself and destroys it. `None` if that fails: a check has the
/// reason, if the plugin needs such a queue pair.
pub(super) fn verb_times(config: &Config, nic: &Nic) -> Option<VerbTimes> {
    measure(config, nic).ok().flatten()
}

fn measure(config: &Config, nic: &Nic) -> Result<Option<VerbTimes>> {
    let (Ok((port, gids)), Ok(pkey_index)) = (nic.now(), nic.pkey_index(config)) else { return Ok(None) };
    let Some(gid) = gids.first() else { return Ok(None) };
    let pd = nic.pd();
    let cq = Arc::new(Cq::new(pd.context(), 8)?);
    let begun = Instant::now();
    let mut qp = Qp::new(&pd, &cq, None, QpOptions { send_depth: 1, inline: 0, receives: 1 })?;
    let created = Instant::now();
    let path = Path::to_itself(&port, gid, pkey_index, qp.number(), Access::Write);
    qp.advance(&path, Timing { timeout: 14, retries: 3 })?;
    let connected = Instant::now();
    qp.destroy()?;
    Ok(Some(VerbTimes {
        create_us: micros(created - begun),
        modify_us: micros(connected - created),
        destroy_us: micros(connected.elapsed()),
    }))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
