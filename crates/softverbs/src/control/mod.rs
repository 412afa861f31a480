//! What tests and tools call beside the verbs: faults, observation and counters.

pub(crate) mod counters;
pub(crate) mod faults;
pub(crate) mod gid_table;
pub(crate) mod inspect;
pub(crate) mod report;
