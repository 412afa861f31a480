//! The plugin's own source files under every schedule of threads: they are compiled once more, with
//! loom's locks and atomics in the place of the standard library's.

#[path = "../../../crates/agent-iface/tests/explore/mod.rs"]
mod explore;

/// What `crate::sync` is in the plugin.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

    /// A lock as parking_lot has it: without poisoning.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

mod comm_flags;
mod failover;
mod mailbox;
mod port_life;
mod registrations;
mod request_cell;
