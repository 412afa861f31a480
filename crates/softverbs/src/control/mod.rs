//! What tests and tools call beside the verbs: faults, observation and counters.

pub(crate) mod faults;
pub(crate) mod inspect;
pub(crate) mod json;
pub(crate) mod report;
