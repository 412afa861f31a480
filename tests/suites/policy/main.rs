//! Settings and hints: what they decide.

mod agent_client;
mod agent_panic;
mod hinted;
mod host;
mod measured;
mod own_agent;
mod settings;
mod shares;
mod shares_util;
