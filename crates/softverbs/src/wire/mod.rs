//! What moves the data between queue pairs, and when.

pub(crate) mod bounce;
pub(crate) mod copy;
pub(crate) mod exec;
pub(crate) mod link;
pub(crate) mod mover;
pub(crate) mod reach;
pub(crate) mod respond;
pub(crate) mod send_queue;
