//! The clock that measures goodput and operations.

pub(crate) use nccl_net_mpib_agent_iface::stats::monotonic as now;
