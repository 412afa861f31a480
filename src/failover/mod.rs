//! Which ports and routes are usable, why not, and when they are tried next: one record for each
//! port of the process, which all connections share. It is a state machine: its callers say what
//! they have seen, and when, and it answers. It queries no adapter and reads no clock.

mod failed_routes;
mod health;
mod hold_down;

pub use failed_routes::{EXPIRY, RouteKey};
pub use health::{Cause, Change, Episodes, Happening, Moment, PortHealth, PortState};
