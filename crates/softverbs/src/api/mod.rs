//! What programs call: the verbs, with one file for each object or task.

pub(crate) mod channel;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dmabuf;
pub(crate) mod ece;
pub(crate) mod event_queue;
pub(crate) mod events;
pub(crate) mod modify;
pub(crate) mod mr;
pub(crate) mod null;
pub(crate) mod pd;
pub(crate) mod poll;
pub(crate) mod qp;
pub(crate) mod query;
pub(crate) mod rates;
pub(crate) mod recv;
mod retry;
pub(crate) mod send;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod sysfs;
