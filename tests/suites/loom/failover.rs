//! The product's own files.

#[path = "../../../src/failover/failed_routes.rs"]
#[allow(unreachable_pub, reason = "a part of it is the plugin's")]
mod failed_routes;
#[path = "../../../src/failover/health/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is the plugin's")]
pub(crate) mod health;
#[path = "../../../src/failover/hold_down.rs"]
mod hold_down;
