//! What the plugin would do on this host, for `mpib doctor`: `docs/guide/doctor.md` is its manual.
//!
//! `border` is the C function, `report` gathers, `checks` judges. The sentences are those of the log: each is made where the log's is.

pub mod border;
#[forbid(unsafe_code)]
mod checks;
#[forbid(unsafe_code)]
mod report;
#[forbid(unsafe_code)]
mod routes;

pub use report::report;
pub use routes::routes;
