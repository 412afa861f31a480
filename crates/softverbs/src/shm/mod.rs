//! Shared memory: the tables of the fabric, one segment per process, the queues and locks in them.
//! These files do not know the rules of verbs.

pub(crate) mod cq_ring;
pub(crate) mod dir;
pub(crate) mod fabric;
pub(crate) mod gids;
pub(crate) mod heap;
pub(crate) mod layout;
pub(crate) mod link_state;
pub(crate) mod map;
pub(crate) mod mutex;
pub(crate) mod peer;
pub(crate) mod recv_queue;
