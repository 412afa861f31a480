//! Kernels as jobs of a stream.

use crate::{
    launch::Launch,
    stream::Job,
    unknown::{Unknown, end_rank},
};

/// Returns a job that does what a kernel does.
pub(crate) fn job(launch: &Launch) -> Job {
    end_rank(&Unknown::new("kernel", &launch.kernel))
}
