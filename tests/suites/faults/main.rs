//! What fails: errors of the caller, of the peer, of adapters, of the process and its limits.

mod callbacks;
mod control_connection;
mod events;
mod failures;
mod interruptions;
mod kills;
mod limits;
mod loggers;
mod process;
mod violations;
