//! What fails: errors of the caller, of the peer, of adapters.

mod control_connection;
mod events;
mod failures;
mod kills;
mod violations;
