//! The trait that a profiler plugin implements.

use core::ffi::CStr;

use crate::{Event, Plugin};

/// A profiler plugin.
///
/// NCCL passes its contexts and events back as pointers. Here they are numbers: an implementation finds
/// what they stand for, and a number that NCCL has from another process does no harm.
///
/// Operations begin in the threads of the application, everything else in NCCL's progress threads, which
/// must not wait. An event may begin in one thread and end in another one. NCCL ignores failures.
pub trait ProfilerPlugin: Plugin {
    /// Begins to profile a communicator. Returns the context; `None`: NCCL reports nothing of it.
    fn profile(communicator: &Communicator<'_>) -> Option<usize>;

    /// Ends that.
    fn end_profile(context: usize);

    /// Begins an event. Returns its number, which events below it and its end have; 0: NCCL does not
    /// report its end, and may leave out the events below it.
    fn begin(context: usize, event: &Event<'_>) -> usize;

    /// Ends an event.
    fn end(event: usize);
}

/// A communicator that is to be profiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Communicator<'a> {
    /// Version of the table.
    pub version: u32,
    /// Its id, rank and number of ranks (v4 and later).
    pub place: Option<(u64, u32, u32)>,
    /// Its name, if the application has named it (v4 and later).
    pub name: Option<&'a CStr>,
}

impl Communicator<'_> {
    /// Returns whether NCCL reports [`Event::Message`]: v3 and later.
    pub const fn has_messages(&self) -> bool {
        self.version >= 3
    }
}
