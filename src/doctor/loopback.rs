//! Tries of each port by a queue pair that is connected to itself: shared receive queues by a write,
//! and how long the verbs of a queue pair take. They change nothing: all objects end with the try.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::doctor::VerbTimes;

use crate::config::Config;
use crate::device::{Device, Nic};
use crate::error::{Result, status_text};
use crate::verbs::{
    Access, Batch, Blanks, Chain, Completion, Cq, Kind, Local, Path, Qp, QpOptions, Region, Remote, Srq,
    Timing,
};

/// `wr_id` of the receive.
const RECEIVE: u64 = 1;
/// `wr_id` of the write.
const WRITE: u64 = 2;

/// How long a write of a port to itself may take.
const PATIENCE: Duration = Duration::from_millis(500);

const TIMING: Timing = Timing { timeout: 14, retries: 3 };

/// Returns what makes the path of a port's queue pair with this number to itself. `None` if the port
/// has none now.
fn to_itself(config: &Config, nic: &Nic) -> Option<impl Fn(u32) -> Path> {
    let (port, gids) = nic.now().ok()?;
    let (pkey_index, gid) = (nic.pkey_index(config).ok()?, gids.into_iter().next()?);
    Some(move |qpn| Path::to_itself(&port, &gid, pkey_index, qpn, Access::Write))
}

/// Makes a queue pair, connects it to itself and destroys it. An adapter whose control path is slow
/// makes connections and failover slow. `None` if that fails: a check has the reason, if the plugin
/// needs such a queue pair.
pub(super) fn verb_times(config: &Config, nic: &Nic) -> Option<VerbTimes> {
    let path = to_itself(config, nic)?;
    let pd = nic.pd();
    let cq = Arc::new(Cq::new(pd.context(), 8).ok()?);
    let begun = Instant::now();
    let mut qp = Qp::new(&pd, &cq, None, QpOptions { send_depth: 1, inline: 0, receives: 1 }).ok()?;
    let created = Instant::now();
    qp.advance(&path(qp.number()), TIMING).ok()?;
    let connected = Instant::now();
    qp.destroy().ok()?;
    Some(VerbTimes {
        create_us: micros(created - begun),
        modify_us: micros(connected - created),
        destroy_us: micros(connected.elapsed()),
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Notes for each port of the devices whether a receive in a shared queue works. A port that does
/// not reach itself says nothing.
pub(super) fn try_shared_queues(config: &Config, devices: &[&Device]) {
    for nic in devices.iter().flat_map(|device| &device.rails).filter(|nic| nic.has_srq().is_ok()) {
        if let Ok(Some(why)) = receive_failure(config, nic) {
            nic.set_srq_failed(&why);
        }
    }
}

/// Returns why a receive in a shared queue failed. `None` if it did not, or if nothing arrived.
fn receive_failure(config: &Config, nic: &Nic) -> Result<Option<String>> {
    let pd = nic.pd();
    let cq = Arc::new(Cq::new(pd.context(), 8)?);
    let srq = Arc::new(Srq::new(&pd, 1)?);
    let (region, _) = Region::new(&[Arc::clone(&pd)], 2, false)?;
    let options = QpOptions { send_depth: 1, inline: 0, receives: 0 };
    let mut qp = Qp::new(&pd, &cq, Some(&srq), options)?;
    let Some(path) = to_itself(config, nic) else { return Ok(None) };
    qp.advance(&path(qp.number()), TIMING)?;
    let qp = qp.ready()?;
    let (from, to) = (region.addr(0) as u64, region.addr(1) as u64);
    let keys = region.mrs()[0];
    let local = Local { addr: from, len: 8, lkey: keys.lkey() };
    srq.post(&Blanks::new(1, RECEIVE, Some(Local { len: 1, ..local })), 1)?;
    let mut chain = Chain::default();
    if !chain.write(Some(local), Remote { addr: to, rkey: keys.rkey() }, Some(0), Some(WRITE)) {
        return Ok(None);
    }
    qp.post(&mut chain).map_err(|e| *e)?;
    let (begun, mut batch) = (Instant::now(), Batch::new());
    while begun.elapsed() < PATIENCE {
        let completions = cq.poll(&mut batch).map_err(|e| *e)?;
        if let Some(end) = completions.iter().find_map(ended) {
            return Ok(end);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

/// Returns the end of the try, if the completion is that of the receive, or of a write that did not
/// arrive.
fn ended(completion: &Completion) -> Option<Option<String>> {
    match (completion.status(), completion.wr_id()) {
        (0, _) => matches!(completion.kind(), Kind::Arrived(_)).then_some(None),
        (status, RECEIVE) if !completion.is_flushed() => {
            Some(Some(status_text(status, completion.vendor_err())))
        }
        // If the receive has failed, too, it has another completion.
        _ => None,
    }
}
