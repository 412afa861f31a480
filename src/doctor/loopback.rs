//! Tries shared receive queues by a write of each port to itself. It changes nothing: all objects end
//! with the try.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::device::{Device, Nic};
use crate::error::{Result, status_text};
use crate::proto::LinkLayer;
use crate::verbs::{
    Access, Batch, Chain, Completion, Cq, Kind, Local, Path, Qp, QpOptions, Region, Remote, Srq, Timing,
};

/// `wr_id` of the receive.
const RECEIVE: u64 = 1;
/// `wr_id` of the write.
const WRITE: u64 = 2;

/// How long a write of a port to itself may take.
const PATIENCE: Duration = Duration::from_millis(500);

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
    let region = Region::new(&[Arc::clone(&pd)], 2, false)?;
    let options = QpOptions { send_depth: 1, inline: 0, receives: 0 };
    let mut qp = Qp::new(&pd, &cq, Some(&srq), options)?;
    let Some(path) = path_to_itself(config, nic, qp.number()) else { return Ok(None) };
    qp.advance(&path, Timing { timeout: 14, retries: 3 })?;
    let qp = qp.ready()?;
    srq.post(&*pd.srq_receives(1, RECEIVE)?, 1)?;
    let (from, to) = (region.addr(0) as u64, region.addr(1) as u64);
    let keys = region.mrs()[0];
    let mut chain = Chain::default();
    let local = Local { addr: from, len: 8, lkey: keys.lkey() };
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

/// Returns the path of a port to itself. `None` if the port cannot be used.
fn path_to_itself(config: &Config, nic: &Nic, qpn: u32) -> Option<Path> {
    let (port, gids) = nic.now().ok()?;
    let gid = gids.first()?;
    let roce = port.link == LinkLayer::Ethernet;
    Some(Path {
        port: port.number,
        gid_index: gid.index,
        pkey_index: nic.pkey_index(config).ok()?,
        mtu: port.mtu,
        lid: if roce { 0 } else { port.lid },
        gid: (roce || port.grh_required).then_some(gid.raw),
        service_level: 0,
        traffic_class: 0,
        qpn,
        peer_psn: 0,
        psn: 0,
        access: Access::Write,
        ece: None,
    })
}
