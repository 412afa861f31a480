//! Static attributes of devices and ports.

use rdma_sys as sys;

/// Puts the extended entries of this module into a new context.
pub(crate) fn fill_ops(_verbs: &mut sys::verbs_context) {}
