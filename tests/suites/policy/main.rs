//! Settings and hints: what they decide.

mod agent_client;
mod hinted;
mod settings;
mod shares;
mod shares_util;
