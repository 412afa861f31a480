//! NCCL's profiler table: its operations in the statistics page.

use std::sync::atomic::Ordering;

use nccl_net_mpib_agent_iface::stats::Operations;
use nccl_net_versions::{Communicator, Event, ProfilerPlugin};

use super::Plugin;
use crate::operations;
use crate::process::Process;
use crate::warned::Subject;

/// The variable that names NCCL's profiler. From 2.28 on NCCL looks for one in the library of the network
/// without it, too.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";

/// Returns the place of the communicator of a context.
fn profiled(context: usize) -> Option<(Operations, usize)> {
    Process::global().stats.operations().zip(context.checked_sub(1))
}

impl ProfilerPlugin for Plugin {
    fn profile(communicator: &Communicator<'_>) -> Option<usize> {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty())?;
        let process = Process::global();
        let operations = process.stats.profile();
        if process.warned.once(Subject::Profiler) {
            let what = match operations {
                Some(_) => "records NCCL's operations in the statistics page",
                None => "has no statistics page (MPIB_STATS=0?), so it records nothing",
            };
            let name = name.display();
            tracing::info!(target: "init", "the plugin is NCCL's profiler, by {VARIABLE}={name}, and {what}");
        }
        let operations = operations?;
        let name = communicator.name.and_then(|name| name.to_str().ok()).unwrap_or_default();
        let (id, rank, ranks) = communicator.place.unwrap_or_default();
        let place = operations.open(id, name, (rank, ranks), communicator.has_messages());
        if place.is_none() {
            tracing::info!(
                target: "init",
                "the statistics page has no room for another communicator; mpib stats will not show its operations"
            );
        }
        // Connections report rarely while nobody listens.
        process.profiler_seen.store(true, Ordering::Relaxed);
        place.map(|place| place + 1)
    }

    fn end_profile(context: usize) {
        if let Some((operations, place)) = profiled(context) {
            operations.close(place);
        }
    }

    fn begin(context: usize, event: &Event<'_>) -> usize {
        profiled(context).map_or(0, |(all, place)| operations::begin(all, place, event))
    }

    fn end(event: usize) {
        if let Some(all) = Process::global().stats.operations() {
            operations::end(all, event);
        }
    }
}
