//! A device as reports show it.

use nccl_net_host::Properties;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The properties that `mpib` reports and checks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// `name`
    pub name: String,
    /// `speed`, Mb/s.
    pub speed: i32,
    /// `maxRecvs`
    pub max_recvs: i32,
    /// Bits of `NCCL_PTR_*`.
    pub ptr_support: i32,
    /// `maxP2pBytes`; 1 GiB if the version has no such field, as NCCL's core assumes.
    pub max_bytes: usize,
}

impl From<Properties> for Device {
    fn from(properties: Properties) -> Self {
        Self {
            max_bytes: properties.max_bytes(),
            name: properties.name.unwrap_or_default(),
            speed: properties.speed,
            max_recvs: properties.max_recvs,
            ptr_support: properties.ptr_support,
        }
    }
}
