//! Dialling a connection again: where an end can be reached, and the first message of a new TCP
//! connection that replaces a broken one.

use super::auth::redial_tag;
use super::wire::{DecodeError, Layout, Reader, Writer};
use super::{Addr, ListenerId, Nonce, Role, Secret, TAG_BYTES, Tag, same_tag};

/// Most addresses of a CALLBACK.
pub(crate) const MAX_CALLBACK_ADDRS: usize = 16;

/// Where the process of an end accepts connections that replace a broken one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Callback {
    /// The public name of the process's listener for re-dials.
    pub id: ListenerId,
    /// The TCP port of that listener, not 0.
    pub port: u16,
    /// Its addresses, at most 16.
    pub addrs: Vec<Addr>,
    /// The hash of the proof that the connection has ended in that process.
    pub ended: Tag,
}

/// The first message of a connection to a listener for re-dials.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Redial {
    /// The listener's public name.
    pub id: ListenerId,
    /// The token of the connection's first HELLO, by which the connection is found.
    pub token: Nonce,
    /// The end that dials. The new connection replaces the broken one.
    pub from: Role,
    /// The challenge of this end, random.
    pub challenge: Nonce,
    /// The HMAC of the fields above under the connection's key.
    pub tag: Tag,
}

impl Callback {
    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.id).u16(self.port);
        out.list(&self.addrs, MAX_CALLBACK_ADDRS, "addresses", |out, addr| addr.write(out));
        out.bytes(&self.ended);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = from.array("listener id")?;
        let port = from.u16("port")?;
        if port == 0 {
            return Err(DecodeError::Range { what: "port", found: 0, expected: "1 to 65535" });
        }
        let addrs = from.list(MAX_CALLBACK_ADDRS, "addresses", Addr::read)?;
        Ok(Self { id, port, addrs, ended: from.array("hash of the end")? })
    }
}

impl Redial {
    /// Bytes of the payload.
    pub(super) const BYTES: usize = size_of::<ListenerId>() + 2 * size_of::<Nonce>() + 1 + TAG_BYTES;

    /// Makes the message of an end that has the connection's key.
    pub fn new(key: &Secret, id: ListenerId, token: Nonce, from: Role, challenge: Nonce) -> Self {
        let mut redial = Self { id, token, from, challenge, tag: Tag::default() };
        redial.tag = redial_tag(key, &redial.fields());
        redial
    }

    /// Returns whether the sender knew the connection's key. The comparison takes the same time for
    /// any bytes.
    pub fn is_by_holder_of(&self, key: &Secret) -> bool {
        same_tag(&self.tag, &redial_tag(key, &self.fields()))
    }

    /// Returns the fields that the tag covers.
    fn fields(&self) -> Vec<u8> {
        [&self.id[..], &self.token, &[self.from as u8], &self.challenge].concat()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.fields()).bytes(&self.tag);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: from.array("listener id")?,
            token: from.array("token")?,
            from: if from.flag("end")? { Role::Acceptor } else { Role::Connector },
            challenge: from.array("challenge")?,
            tag: from.array("tag")?,
        })
    }
}
