//! The plugin's newest C table in this process, on simulated adapters.

use std::ptr::null_mut;
use std::sync::OnceLock;

use mpib_tests::table::{Ptr, newest};

/// Initializes the plugin without a logger, which nobody would read.
pub(crate) fn init() -> Ptr {
    let mut context = null_mut();
    let code = newest().raw().init(&raw mut context, 1, null_mut(), None, None);
    assert!(code.is_success(), "init: {code}");
    context
}

/// Returns a context that lives as long as the process: it keeps the devices open.
pub(crate) fn context() -> Ptr {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    std::ptr::with_exposed_provenance_mut(*CONTEXT.get_or_init(|| init().expose_provenance()))
}
