//! Limits of a device, named as in `ibv_device_attr`. `ibv_query_device` reports the same constants
//! that the object calls enforce.

/// `max_qp`, per process.
pub(crate) const MAX_QP: u32 = 32_768;
/// `max_qp_wr`, per queue.
pub(crate) const MAX_QP_WR: u32 = 16_384;
/// `max_sge`, per work request.
pub(crate) const MAX_SGE: u32 = 32;
/// `max_inline_data` in bytes, per QP.
pub(crate) const MAX_INLINE: u32 = 1024;
/// `max_cq`, per process.
pub(crate) const MAX_CQ: u32 = 16_384;
/// `max_cqe`, per CQ.
pub(crate) const MAX_CQE: u32 = 1 << 20;
/// `max_srq`, per process.
pub(crate) const MAX_SRQ: u32 = 8_192;
/// `max_srq_wr`.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 16;
/// `max_srq_sge`.
pub(crate) const MAX_SRQ_SGE: u32 = 31;
/// `max_mr`, per process.
pub(crate) const MAX_MR: u32 = 1 << 16;
/// `max_mr_size`, bytes.
pub(crate) const MAX_MR_SIZE: u64 = 1 << 46;
/// `max_pd`, per process.
pub(crate) const MAX_PD: u32 = 1 << 16;
/// `max_qp_rd_atom` and `max_qp_init_rd_atom`.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;
/// `num_comp_vectors`.
pub(crate) const COMP_VECTORS: i32 = 4;
/// Largest message in bytes (`max_msg_sz`).
pub(crate) const MAX_MSG: u32 = 1 << 31;
/// Entries of the GID table of a port that can be in use.
pub(crate) const MAX_GIDS: usize = 32;
/// Ports per process, over all devices.
pub(crate) const MAX_DEVICES: usize = 128;
/// Larger WRITEs and READs are executed in pieces of this size, after the post returns. A piece
/// must be small enough that a thread waiting for the lock of the queue does not wait long.
pub(crate) const PIECE: u64 = 1 << 17;
