//! The partition of a port's connections: an entry of the port's P_Key table.

use crate::config::Config;
use crate::verbs::{Context, Port};

/// The number of the partition in a P_Key. The top bit marks full members.
const NUMBER: u16 = 0x7fff;

/// Whether the P_Key is of the partition with this number.
pub(super) fn is_of(key: u16, value: u16) -> bool {
    key & NUMBER == value & NUMBER
}

/// Returns the index of the configured partition in the port's P_Key table, as the table is now. The
/// error is the reason why the port cannot be used.
pub(super) fn index(context: &Context, port: &Port, config: &Config) -> Result<u16, String> {
    let wanted = match (config.pkey_value, config.pkey_index) {
        // A port always has the first entry.
        (None, 0) => return Ok(0),
        (None, index) => format!("NCCL_IB_PKEY={index} is not an entry of its P_Key table"),
        (Some(value), _) => format!("NCCL_IB_PKEY_VALUE={value:#06x} is not in its P_Key table"),
    };
    let fits = |index: u16, key: u16| match config.pkey_value {
        Some(value) => is_of(key, value),
        None => index == config.pkey_index && key & NUMBER != 0,
    };
    let mut others = Vec::new();
    for index in 0..port.pkeys {
        match context.pkey(port.number, index).map_err(|e| e.to_string())? {
            key if fits(index, key) => return Ok(index),
            key if key & NUMBER == 0 => {}
            key => others.push(format!("{key:#06x} at {index}")),
        }
    }
    Err(format!("{wanted}, which has {}", others.join(", ")))
}
