//! The requester's memory of a work request.

use rdma_sys::ibv_wc_status as wc;
use rdma_sys::ibv_wr_opcode as op;

use crate::api::qp::Qp;
use crate::log::fault;
use crate::process::Process;
use crate::shm::recv_queue::Sge;
use crate::wire::access::{self, LOCAL_WRITE};
use crate::wire::copy::Pieces;
use crate::wire::send_queue::{INLINE, Wqe};

/// Checks the local scatter/gather list and returns its addresses.
pub(crate) fn gather(
    process: &Process,
    qp: &Qp,
    wqe: &Wqe,
    sges: &[Sge],
    inline: &[u8],
) -> Result<Pieces, u32> {
    let mut pieces = Pieces::new();
    if wqe.flags & INLINE != 0 {
        let len = usize::try_from(wqe.len).unwrap_or(0).min(inline.len());
        pieces.push(inline.as_ptr().expose_provenance() as u64, len as u64);
        return Ok(pieces);
    }
    let comes_back = wqe.opcode >= op::IBV_WR_RDMA_READ;
    let access = if comes_back { LOCAL_WRITE } else { 0 };
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        match access::check(&process.own, sge.lkey, qp.pd.id, sge.addr, u64::from(sge.len), access) {
            Ok(addr) => pieces.push(addr, u64::from(sge.len)),
            Err(why) => {
                fault!(
                    "QP {:#x}, wr_id {:#x}: lkey {:#x}, {} bytes at {:#x}: {why}",
                    qp.qpn,
                    wqe.wr_id,
                    sge.lkey,
                    sge.len,
                    sge.addr
                );
                return Err(wc::IBV_WC_LOC_PROT_ERR);
            }
        }
    }
    Ok(pieces)
}
