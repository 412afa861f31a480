//! Every schedule of a model's threads, for the models of this crate and of the plugin.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Schedules explored.
pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) -> usize {
    let count: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    count.load(Ordering::Relaxed)
}
