//! The product's own files.

#[path = "../../../src/device/hold_down.rs"]
mod hold_down;
#[path = "../../../src/device/port_life/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "a part of it is the plugin's")]
pub(crate) mod port_life;
