//! The section `[http]` of the configuration.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Where the server listens if nothing else is configured.
pub const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9119);

/// The HTTP server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Where it listens; `None`: at [`DEFAULT`] unless that is in use. Counts at the start only.
    pub listen: Option<Listen>,
    /// The file with the token for requests that change something.
    pub token_file: Option<PathBuf>,
    /// The web file, with TLS and passwords. Its path counts at the start only.
    pub web_config: Option<PathBuf>,
    /// Names of this host, besides those that the agent knows by itself, that requests may be sent to.
    pub hosts: Vec<String>,
    /// Whether `/metrics` has metrics for each peer.
    pub per_peer: bool,
}

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At an address.
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::At).map_err(|_| {
                format!("{text:?} is no address, expected \"off\" or, for instance, \"{DEFAULT}\"")
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}
