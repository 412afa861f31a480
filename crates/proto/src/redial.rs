//! Dialling a connection again: where an end can be reached, and the first message of a new TCP
//! connection that replaces a broken one.

use super::auth::redial_tag;
use super::wire::{Codec, DecodeError, Layout, Nested, Reader, Writer, layout, list, within};
use super::{Addr, ListenerId, Nonce, Role, Secret, TAG_BYTES, Tag, same_tag};

/// Most addresses of a CALLBACK.
pub const MAX_CALLBACK_ADDRS: usize = 16;

layout! {
    /// Where the process of an end accepts connections that replace a broken one.
    pub struct Callback {
        /// The public name of the process's listener for re-dials.
        pub id: ListenerId = "listener id",
        /// The TCP port of that listener, not 0.
        pub port: u16 = within("port", 1..=u16::MAX as u64, "1 to 65535"),
        /// Its addresses, at most 16.
        pub addrs: Vec<Addr> = list("addresses", MAX_CALLBACK_ADDRS, Nested),
        /// The hash of the proof that the connection has ended in that process.
        pub ended: Tag = "hash of the end",
    }
}

layout! {
    /// The first message of a connection to a listener for re-dials.
    pub struct Redial {
        /// The listener's public name.
        pub id: ListenerId = "listener id",
        /// The token of the connection's first HELLO, by which the connection is found.
        pub token: Nonce = "token",
        /// The end that dials. The new connection replaces the broken one.
        pub from: Role = Nested,
        /// The challenge of this end, random.
        pub challenge: Nonce = "challenge",
        /// The HMAC of the fields above under the connection's key.
        pub tag: Tag = "tag",
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
        let mut out = Writer::default();
        self.write(&mut out);
        out.bytes.truncate(Self::BYTES - TAG_BYTES);
        out.bytes
    }
}
