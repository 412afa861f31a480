//! What a device can hold, in the words of `ibv_device_attr`. One place, so that what
//! `ibv_query_device` says is what the object calls enforce.

/// `max_qp`, per process.
pub(crate) const MAX_QP: u32 = 4096;
/// `max_qp_wr`, per queue.
pub(crate) const MAX_QP_WR: u32 = 16_384;
/// `max_sge`, per work request.
pub(crate) const MAX_SGE: u32 = 32;
/// Bytes of inline data that a QP can be asked for.
pub(crate) const MAX_INLINE: u32 = 1024;
/// `max_cq`, per process.
pub(crate) const MAX_CQ: u32 = 4096;
/// `max_cqe`, per CQ.
pub(crate) const MAX_CQE: u32 = 1 << 20;
/// `max_srq`, per process.
pub(crate) const MAX_SRQ: u32 = 1024;
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
pub(crate) const MAX_MSG: u64 = 1 << 31;
/// Entries of a port's GID table that can be used.
pub(crate) const MAX_GIDS: usize = 32;
/// Devices of one process.
pub(crate) const MAX_DEVICES: usize = 32;
/// Larger WRITEs and READs are carried out in pieces of so many bytes, not when they are posted but after it. Small enough
/// that whoever waits for a queue that is at work on one does not wait long.
pub(crate) const PIECE: u64 = 1 << 17;
