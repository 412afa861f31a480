//! What NCCL and the log see of devices.

use std::ffi::c_int;
use std::sync::Arc;

use nccl_net_versions::{MAX_RECVS, Properties, VDevs};

use crate::config::Config;
use crate::device::{Device, Devices, Gpu, Nic};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::split;

/// Returns the settings of the latest `init`.
pub(super) fn latest(process: &Process) -> Result<Arc<Config>> {
    process.latest().ok_or_else(|| Error::Usage("no init has succeeded before this call".into()))
}

/// Returns device `dev` and the settings. Called at each poll of a connect.
pub(crate) fn device(process: &Process, dev: usize) -> Result<(Arc<Config>, &'static Device)> {
    let config = latest(process)?;
    match process.devices.get(dev) {
        Some(device) => Ok((config, device)),
        None => Err(Error::Argument(format!(
            "device {dev}: expected 0 to {}, which are the devices of this process",
            process.devices.count().saturating_sub(1)
        ))),
    }
}

/// Describes one device for the log.
pub(crate) fn describe(device: &Device) -> String {
    let rail = |nic: &Arc<Nic>| {
        let port = nic.port();
        format!("{} {:?} {} Mb/s", nic.name(), port.link, port.speed)
    };
    let rails: Vec<String> = device.rails.iter().map(rail).collect();
    format!("{} ({})", device.name.to_string_lossy(), rails.join(" + "))
}

pub(super) fn properties(process: &Process, dev: usize) -> Result<Properties> {
    let (config, device) = device(process, dev)?;
    let rails = || device.rails.iter();
    let shown = device.shown().ok_or_else(|| Error::Internal("a device without rails".into()))?;
    let plane_id = if process.expects_planes() { process.devices.plane_id(device) } else { device.plane_id };
    let whole = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    // A message may go on any one rail alone.
    let largest = rails().map(|n| n.port().max_message).min().unwrap_or(0);
    let max_bytes = usize::try_from(whole(largest)).unwrap_or(0).max(1);
    Ok(Properties {
        name: device.name,
        pci_path: device.pci_path(process.expects_cards()),
        guid: shown.wire().guid,
        ptr_support: ptr_support(device),
        // NCCL 2.20 to 2.23 then register a buffer on a connection made for that, and expect it to
        // be registered on the others.
        reg_is_global: true,
        force_flush: config.flush == Some(true),
        speed: whole(split::speed(device, &config)),
        port: shown.wire().port.into(),
        // NCCL adds whole microseconds of it to its own table (its src/graph/tuning.cc).
        latency: config.latency_us.into(),
        max_comms: whole(split::max_connections(device, &config)),
        max_recvs: MAX_RECVS as c_int,
        device_type: 0,
        device_version: 0,
        vdevs: VDevs::new(&device.members).unwrap_or_default(),
        max_p2p_bytes: max_bytes,
        max_coll_bytes: max_bytes,
        max_multi_request_size: 1,
        rail_id: device.rail_id.unwrap_or(-1),
        plane_id: plane_id.unwrap_or(-1),
    })
}

pub(super) fn make_vdevice(devices: &Devices, devs: &VDevs) -> Result<usize> {
    let before = devices.count();
    let index = devices.merge(devs.as_slice())?;
    if let Some(device) = devices.get(index).filter(|_| index >= before) {
        tracing::info!(target: "init", "device {index} made of {:?}: {}", devs.as_slice(), describe(device));
    }
    Ok(index)
}

/// Returns why several devices stay separate although nothing is wrong with them.
///
/// NCCL regards all devices without a PCI address as ports of one adapter. From 2.27 on it then
/// finds no path from a GPU to the device that is made of them, and every communicator fails.
pub(super) fn unmerged(config: &Config, devices: &Devices, members: &[c_int]) -> Option<&'static str> {
    let on_pci = |dev: &c_int| {
        let device = usize::try_from(*dev).ok().and_then(|dev| devices.get(dev));
        device.is_none_or(Device::is_on_pci)
    };
    if members.len() < 2 {
        None
    } else if !config.merge_nics {
        Some("NCCL_IB_MERGE_NICS=0")
    } else if std::env::var_os("NCCL_NET_FORCE_MERGE").is_none() && !members.iter().any(on_pci) {
        Some(
            "none of them has a PCI address, and NCCL 2.27 and later find no path to a device made of such ones. \
             NCCL chooses among them; MPIB_HCA_SOUT and MPIB_HCA_SUP join two in every release",
        )
    } else {
        None
    }
}

/// Returns the kinds of memory that the device's adapters reach.
fn ptr_support(device: &Device) -> c_int {
    let gpu = if Gpu::here().is_direct() { nccl_net_abi::NCCL_PTR_CUDA } else { 0 };
    let dmabuf = if device.takes_dmabuf() { nccl_net_abi::NCCL_PTR_DMABUF } else { 0 };
    nccl_net_abi::NCCL_PTR_HOST | gpu | dmabuf
}
