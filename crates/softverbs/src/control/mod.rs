//! Calls besides the verbs, for tests and tools: faults, inspection, counters.

pub(crate) mod at_once;
pub(crate) mod faults;
pub(crate) mod inspect;
pub(crate) mod json;
pub(crate) mod outside;
pub(crate) mod script;
