//! The place of a substituted rail in the PCI tree.
//!
//! NCCL decides about GPUDirect RDMA by the distance between a GPU and the NIC that it requests. The
//! plugin does not learn the GPU, so it compares the two NICs.

use std::sync::Arc;

use crate::device::Nic;
use crate::error::Result;
use crate::transport::Settings;
use crate::warned::Subject;

/// Logs once for each pair of NICs that a connection uses a NIC under another PCI root or at
/// another NUMA node than the requested ones, if NCCL may register GPU memory.
///
/// # Errors
/// `MPIB_STRICT=1`: the same text.
pub(crate) fn check_distance(settings: &Settings, requested: &[Arc<Nic>], used: &[&Arc<Nic>]) -> Result<()> {
    let others = used.iter().filter(|nic| requested.iter().all(|r| r.name() != nic.name()));
    for nic in others.filter(|nic| nic.takes_gpu_memory()) {
        let Some(place) = nic.place() else { continue };
        let places: Vec<_> = requested.iter().filter_map(|r| Some((r, r.place()?))).collect();
        let is_near = places.iter().any(|(_, other)| place.away_from(other).is_none());
        let Some((other, there)) = places.first().filter(|_| !is_near) else { continue };
        let (name, other) = (nic.name(), other.name());
        let what = format!(
            "connections go over {name} ({place}) and not over {other} ({there}), which NCCL requested: the two are under \
             different PCI roots or at different NUMA nodes. NCCL chose GPUDirect RDMA by the distance of {other} to the \
             GPU; over {name} it may be slow, and some platforms do not support it. Make the peer reachable from {other}, \
             or refuse such connections with MPIB_ROUTE=strict, or turn GPUDirect RDMA off with NCCL_NET_GDR_LEVEL=LOC"
        );
        let what = settings.config.degraded(what)?;
        if settings.process.warned.once(Subject::FarSubstitute(name.to_owned(), other.to_owned())) {
            tracing::warn!(target: "net", "{what}");
        }
    }
    Ok(())
}
