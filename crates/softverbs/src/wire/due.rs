//! What the service thread does later, each at its time.

use std::sync::{Mutex, PoisonError};

use crate::process::Process;

/// Items with their times, in the order in which they came.
pub(crate) struct Due<T>(Mutex<Vec<(u64, T)>>);

impl<T> Default for Due<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Due<T> {
    /// Adds an item, and wakes the service thread at its time.
    pub(super) fn push(&self, process: &Process, due: u64, item: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((due, item));
        process.service.wake_at(due);
    }

    /// Takes what is due by `now`, and wakes the service thread for the rest.
    pub(super) fn take(&self, process: &Process, now: u64) -> Vec<(u64, T)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = all.extract_if(.., |(due, _)| *due <= now).collect();
        if let Some(next) = all.iter().map(|(due, _)| *due).min() {
            process.service.wake_at(next);
        }
        due
    }
}
