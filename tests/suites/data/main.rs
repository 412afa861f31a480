//! Messages and flushes: every size, optional receives, the features alone and combined.

mod features;
mod flush;
mod flush_gpu;
mod flush_loopback;
mod flush_util;
mod inline;
mod largest_write;
mod optional;
mod optional_loss;
mod optional_mixture;
mod optional_util;
mod order;
mod receive_queues;
mod separate_immediate;
mod transfer;
