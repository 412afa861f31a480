//! What the plugin would do on this host, for `mpib doctor`. `docs/guide/doctor.md` is the manual.
//!
//! `border` has the C functions, `report` collects the facts, `checks` rates them, and `selected` says
//! what the filters select beside what was probably meant. The sentences are those of the log, made by
//! the same code.

pub(crate) mod border;
#[forbid(unsafe_code)]
mod checks;
#[forbid(unsafe_code)]
mod loopback;
#[forbid(unsafe_code)]
mod report;
#[forbid(unsafe_code)]
mod routes;
#[forbid(unsafe_code)]
mod selected;

pub(crate) use report::report;
pub(crate) use routes::routes;
