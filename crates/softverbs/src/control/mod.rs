//! Calls besides the verbs, for tests and tools: faults, inspection, counters, the report at exit.

pub(crate) mod faults;
pub(crate) mod inspect;
pub(crate) mod json;
pub(crate) mod report;
