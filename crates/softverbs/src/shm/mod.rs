//! What processes share: the fabric's tables, one segment per process, and the locks inside them.
//! Knows nothing of verbs rules.

pub(crate) mod cq_ring;
pub(crate) mod dir;
pub(crate) mod fabric;
pub(crate) mod gids;
pub(crate) mod heap;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod mutex;
pub(crate) mod peer;
pub(crate) mod recv_queue;
