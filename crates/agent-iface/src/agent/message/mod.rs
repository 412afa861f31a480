//! Registration messages in both directions.
//!
//! Each message starts with a header of 8 bytes: u32 magic 0x4D504952, u16 length including the
//! header, u8 type, u8 flags.
//!
//! | type | message | payload | length |
//! |---|---|---|---|
//! | 1 | REGISTER | u32 `conn_id`, then SOUT source, SOUT destination, SUP source, SUP destination | 28 |
//! | 2 | DEREGISTER | u32 `conn_id` | 12 |
//! | 3 | ATTACH | | 8 |
//! | 128 | RESPONSE to REGISTER | u8 status, 3 reserved, u32 slot | 16 |
//! | 128 | RESPONSE to DEREGISTER or ATTACH | u8 status, 3 reserved | 12 |
//! | 129 | PORTS CHANGED | | 8 |
//!
//! Reserved bytes are written as zero and ignored by the receiver. "Source" is the end that
//! registers.
//!
//! # Memory file
//!
//! A plugin that sets [`TAKES_MEMORY`] in the flags of REGISTER, or sends ATTACH, can read slots
//! from a [memory file](super::memory). An agent that has one answers with [`IN_MEMORY`] in the
//! flags; the slot is then a slot of that file. The first such answer on a socket connection brings
//! the file's descriptor (`SCM_RIGHTS`). Agents that know no flags ignore them and answer with a
//! slot of the hint file. PORTS CHANGED is no answer: an agent sends it, to plugins with a memory
//! file only, after it has changed port entries of that file.

use std::net::Ipv4Addr;

/// First word of every message.
pub const MESSAGE_MAGIC: u32 = 0x4D50_4952;
/// Size of the longest message in bytes.
pub const MESSAGE_MAX: usize = 28;

const HEADER: usize = 8;
const REGISTER: u8 = 1;
const DEREGISTER: u8 = 2;
const ATTACH: u8 = 3;
const RESPONSE: u8 = 128;
const PORTS_CHANGED: u8 = 129;

/// Flag of REGISTER: the plugin can read slots of a memory file.
pub const TAKES_MEMORY: u8 = 1;
/// Flag of RESPONSE: the slot is in the memory file.
pub const IN_MEMORY: u8 = 1;

/// Returns the flags of a message that was decoded from the front of `bytes`.
pub fn flags(bytes: &[u8]) -> u8 {
    bytes.get(7).copied().unwrap_or_default()
}

/// Reason why bytes are not a message. Bytes that follow cannot change this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Another protocol.
    #[error("magic {0:#010x}, expected {MESSAGE_MAGIC:#010x}")]
    Magic(u32),
    /// A type that is not valid in this direction.
    #[error("message type {0}, which is not expected here")]
    Type(u8),
    /// A length that is not valid for the type.
    #[error(
        "message type {kind} of {found} bytes, expected {expected}; the length counts the header of 8 bytes"
    )]
    Length {
        /// Message type.
        kind: u8,
        /// Its length field.
        found: u16,
        /// Valid lengths, as text.
        expected: &'static str,
    },
}

/// One connection of the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Register {
    /// Unique among the connections of one process.
    pub conn_id: u32,
    /// SOUT address of the end that registers.
    pub sout_src: Ipv4Addr,
    /// SOUT address of the other end.
    pub sout_dst: Ipv4Addr,
    /// SUP address of the end that registers.
    pub sup_src: Ipv4Addr,
    /// SUP address of the other end.
    pub sup_dst: Ipv4Addr,
}

/// A message from the plugin to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A connection was made.
    Register(Register),
    /// A connection was closed.
    Deregister {
        /// The number with which it was registered.
        conn_id: u32,
    },
    /// A process without connections to register wants a memory file.
    Attach,
}

/// Outcome of a request. Every value except [`SUCCESS`](Self::SUCCESS) is a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// The request was carried out.
    pub const SUCCESS: Self = Self(0);
    /// All slots are in use.
    pub const NO_FREE_SLOT: Self = Self(1);
    /// The agent rejects the request as invalid.
    pub const INVALID_REQUEST: Self = Self(2);

    /// Returns the meaning as text.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::NO_FREE_SLOT => "no free slot",
            Self::INVALID_REQUEST => "invalid request",
            _ => "a status without a meaning in this interface",
        }
    }
}

/// A message from the agent to the plugin: one per request, in the order of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// Answers REGISTER.
    Registered {
        /// Outcome.
        status: Status,
        /// Slot of the hint, 0 to 255. Ignored unless `status` is success.
        slot: u32,
    },
    /// Answers DEREGISTER and ATTACH.
    Deregistered {
        /// Outcome.
        status: Status,
    },
    /// Answers nothing: port entries of the memory file have changed.
    PortsChanged,
}

impl Request {
    /// Encodes the message without flags. Returns a buffer and the number of bytes used in it.
    pub fn encode(&self) -> ([u8; MESSAGE_MAX], usize) {
        self.encode_with(0)
    }

    /// Encodes the message with these flags.
    pub fn encode_with(&self, flags: u8) -> ([u8; MESSAGE_MAX], usize) {
        let mut out = [0; MESSAGE_MAX];
        let len = match self {
            Self::Register(r) => {
                out[8..12].copy_from_slice(&r.conn_id.to_le_bytes());
                for (at, ip) in [(12, r.sout_src), (16, r.sout_dst), (20, r.sup_src), (24, r.sup_dst)] {
                    out[at..at + 4].copy_from_slice(&ip.octets());
                }
                head(&mut out, 28, REGISTER)
            }
            Self::Deregister { conn_id } => {
                out[8..12].copy_from_slice(&conn_id.to_le_bytes());
                head(&mut out, 12, DEREGISTER)
            }
            Self::Attach => head(&mut out, 8, ATTACH),
        };
        out[7] = flags;
        (out, len)
    }

    /// Decodes the message at the front of `bytes`. Returns it with its length in bytes, or `None`
    /// if more bytes are needed.
    ///
    /// # Errors
    /// [`Malformed`] as soon as no message can begin with these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let whole = whole(bytes, |kind, len| match (kind, len) {
            (REGISTER, 28) | (DEREGISTER, 12) | (ATTACH, 8) => Ok(()),
            (REGISTER, _) => Err("28"),
            (DEREGISTER, _) => Err("12"),
            (ATTACH, _) => Err("8"),
            _ => Err(""),
        })?;
        Ok(whole.map(|message| {
            let conn_id = || u32::from_le_bytes(four(message, 8));
            let request = match message[6] {
                REGISTER => Self::Register(Register {
                    conn_id: conn_id(),
                    sout_src: four(message, 12).into(),
                    sout_dst: four(message, 16).into(),
                    sup_src: four(message, 20).into(),
                    sup_dst: four(message, 24).into(),
                }),
                DEREGISTER => Self::Deregister { conn_id: conn_id() },
                _ => Self::Attach,
            };
            (request, message.len())
        }))
    }
}

impl Response {
    /// Encodes the message without flags. Returns a buffer and the number of bytes used in it.
    pub fn encode(&self) -> ([u8; MESSAGE_MAX], usize) {
        self.encode_with(0)
    }

    /// Encodes the message with these flags.
    pub fn encode_with(&self, flags: u8) -> ([u8; MESSAGE_MAX], usize) {
        let mut out = [0; MESSAGE_MAX];
        let len = match self {
            Self::Registered { status, slot } => {
                out[8] = status.0;
                out[12..16].copy_from_slice(&slot.to_le_bytes());
                head(&mut out, 16, RESPONSE)
            }
            Self::Deregistered { status } => {
                out[8] = status.0;
                head(&mut out, 12, RESPONSE)
            }
            Self::PortsChanged => head(&mut out, 8, PORTS_CHANGED),
        };
        out[7] = flags;
        (out, len)
    }

    /// Decodes the message at the front of `bytes`. Returns it with its length in bytes, or `None`
    /// if more bytes are needed.
    ///
    /// # Errors
    /// [`Malformed`] as soon as no message can begin with these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let whole = whole(bytes, |kind, len| match (kind, len) {
            (RESPONSE, 12 | 16) | (PORTS_CHANGED, 8) => Ok(()),
            (RESPONSE, _) => Err("12 (to DEREGISTER) or 16 (to REGISTER)"),
            (PORTS_CHANGED, _) => Err("8"),
            _ => Err(""),
        })?;
        Ok(whole.map(|message| {
            let status = || Status(message[8]);
            let response = match message.len() {
                16 => Self::Registered { status: status(), slot: u32::from_le_bytes(four(message, 12)) },
                12 => Self::Deregistered { status: status() },
                _ => Self::PortsChanged,
            };
            (response, message.len())
        }))
    }
}

fn head(out: &mut [u8; MESSAGE_MAX], len: u16, kind: u8) -> usize {
    out[..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
    out[4..6].copy_from_slice(&len.to_le_bytes());
    out[6] = kind;
    len.into()
}

/// Returns the bytes of the first message. `check` accepts a type with its length, or returns the
/// valid lengths as text; an empty text means that the type is unknown.
fn whole(
    bytes: &[u8],
    check: impl Fn(u8, u16) -> Result<(), &'static str>,
) -> Result<Option<&[u8]>, Malformed> {
    if bytes.len() >= 4 {
        let magic = u32::from_le_bytes(four(bytes, 0));
        if magic != MESSAGE_MAGIC {
            return Err(Malformed::Magic(magic));
        }
    }
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let (found, kind) = (u16::from_le_bytes([bytes[4], bytes[5]]), bytes[6]);
    check(kind, found).map_err(|expected| match expected {
        "" => Malformed::Type(kind),
        _ => Malformed::Length { kind, found, expected },
    })?;
    Ok(bytes.get(..found.into()))
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}

#[cfg(test)]
mod tests;
