//! Proofs of a handle's secret, and the tags of control frames.
//!
//! The secret never crosses the wire. The connector's HELLO carries a tag under the secret, which
//! shows that a process with the handle made the HELLO. The answer of the listener carries a proof
//! over the whole HELLO and over a challenge of the listener, which shows that the listener has the
//! secret and has read that HELLO. All later frames carry a tag under keys that depend
//! on both challenges: the first frame of the connector under these keys is its own proof.
//!
//! Every function is HMAC-SHA256 with a different label. Tags are cut to 16 bytes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::message::kind;
use super::wire::{Codec, DecodeError, Layout, Nested, Reader, Writer, layout};
use super::{Ends, HEADER_BYTES, Nonce, PROTOCOL_VERSION, Release, Role};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// A truncated HMAC.
pub type Tag = [u8; TAG_BYTES];
/// The public name of a listener.
pub type ListenerId = [u8; 8];

type Prf = Hmac<Sha256>;

fn keyed(key: &[u8]) -> Prf {
    // `from_core` hashes longer keys: a key of any length is valid.
    Prf::new_from_slice(key).unwrap_or_else(|_| Prf::new(&Default::default()))
}

/// Returns the HMAC of `parts` under the key of `prf`.
fn hmac(prf: &Prf, parts: &[&[u8]]) -> [u8; 32] {
    let mut prf = prf.clone();
    parts.iter().for_each(|part| prf.update(part));
    prf.finalize().into_bytes().into()
}

/// Returns the first bytes of `bytes`.
fn cut<const N: usize>(bytes: [u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// Returns both halves of `bytes`.
fn halves(bytes: [u8; 32]) -> [[u8; 16]; 2] {
    let mut out = [[0; 16]; 2];
    out.as_flattened_mut().copy_from_slice(&bytes);
    out
}

/// A secret that both ends have: that of a handle, or the key of a connection for re-dials. The key
/// schedule of its HMACs is computed once.
#[derive(Clone)]
pub struct Secret {
    bytes: Nonce,
    prf: Prf,
    id: ListenerId,
}

impl Secret {
    /// Returns the bytes.
    pub fn bytes(&self) -> &Nonce {
        &self.bytes
    }

    /// Returns the public name of the listener with this secret.
    pub fn id(&self) -> &ListenerId {
        &self.id
    }
}

impl From<Nonce> for Secret {
    fn from(bytes: Nonce) -> Self {
        let prf = keyed(&bytes);
        let id = cut(hmac(&prf, &[b"MPIB id"]));
        Self { bytes, prf, id }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.bytes.ct_eq(&other.bytes).into()
    }
}

impl Eq for Secret {}

/// The public name; the secret is never shown.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("id", &self.id).finish_non_exhaustive()
    }
}

layout! {
    /// What a connector claims in its HELLO: that it knows the secret of the listener with this id.
    #[derive(Copy, Default)]
    pub struct Claim {
        /// The connector's release. The tag does not cover it.
        pub release: Release = Nested,
        /// The listener.
        pub id: ListenerId = "listener id",
        /// A random number per connection, by which the listener recognizes several tries of one
        /// connector. It is the connector's challenge, too.
        pub token: Nonce = "token",
        /// The HMAC of the version, the id and the token under the secret.
        pub tag: Tag = "tag",
    }
}

impl Claim {
    /// Makes the claim of a connector to the listener with this secret.
    pub fn new(secret: &Secret, token: Nonce) -> Self {
        Self::of_version(secret, token, PROTOCOL_VERSION)
    }

    /// As [`new`](Self::new), in a HELLO of this version.
    pub fn of_version(secret: &Secret, token: Nonce, version: u16) -> Self {
        Self { release: Release::ours(), id: secret.id, token, tag: Self::tag(secret, version, &token) }
    }

    /// Returns whether a HELLO of `version` is for the listener with this secret, and its sender
    /// knew the secret. The comparison of the tag takes the same time for any bytes.
    pub fn is_for(&self, secret: &Secret, version: u16) -> bool {
        self.id == secret.id && same_tag(&self.tag, &Self::tag(secret, version, &self.token))
    }

    fn tag(secret: &Secret, version: u16, token: &Nonce) -> Tag {
        cut(hmac(&secret.prf, &[b"MPIB hello", &version.to_le_bytes(), &secret.id, token]))
    }
}

/// Returns the tag of a REDIAL under the connection's key.
pub(super) fn redial_tag(key: &Secret, fields: &[u8]) -> Tag {
    cut(hmac(&key.prf, &[b"MPIB redial", fields]))
}

/// Compares two tags in a time that does not depend on their bytes.
pub fn same_tag(a: &Tag, b: &Tag) -> bool {
    a.ct_eq(b).into()
}

/// Returns what a process reveals when the connection with this token has ended there. `secret` is
/// known to that process alone.
pub fn ended_proof(secret: &Secret, token: &Nonce, role: Role) -> Tag {
    cut(hmac(&secret.prf, &[b"MPIB ended", token, &[role as u8]]))
}

/// Returns the hash by which a peer recognizes [`ended_proof`] later.
pub fn ended_commitment(proof: &Tag) -> Tag {
    cut(Sha256::digest(proof).into())
}

/// The key of the frames of one direction, with the number of frames so far.
#[derive(Clone)]
pub struct FrameKey {
    prf: Prf,
    frames: u64,
}

impl FrameKey {
    fn new(key: &[u8]) -> Self {
        Self { prf: keyed(key), frames: 0 }
    }

    fn next_tag(&mut self, body: &[u8]) -> Tag {
        let mut prf = self.prf.clone();
        prf.update(&self.frames.to_le_bytes());
        prf.update(body);
        self.frames += 1;
        cut(prf.finalize().into_bytes().into())
    }

    /// Appends the tag to a whole frame.
    pub fn seal(&mut self, frame: &mut Vec<u8>) {
        let tag = self.next_tag(&frame[HEADER_BYTES..]);
        frame.extend_from_slice(&tag);
        let len = (frame.len() - HEADER_BYTES) as u32;
        frame[..HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
    }

    /// Returns the body of a frame without its tag; `None` if the tag is wrong.
    pub(crate) fn open<'a>(&mut self, body: &'a [u8]) -> Option<&'a [u8]> {
        let (body, tag) = body.split_last_chunk::<TAG_BYTES>()?;
        let expected = self.next_tag(body);
        same_tag(tag, &expected).then_some(body)
    }
}

/// The number of frames; a key is never shown.
impl std::fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameKey").field("frames", &self.frames).finish_non_exhaustive()
    }
}

/// The first frame of a TCP connection (HELLO or REDIAL) with the secret that its sender has, or
/// claims to have.
#[derive(Debug, Clone)]
pub struct Transcript {
    secret: Secret,
    /// The SHA-256 of the frame.
    first: [u8; 32],
}

impl Transcript {
    /// Begins with the frame `first`, its length included.
    pub fn new(secret: &Secret, first: &[u8]) -> Self {
        Self { secret: secret.clone(), first: Sha256::digest(first).into() }
    }

    /// Returns the key of the frames that a connector sends behind its HELLO, before it has a
    /// challenge of the listener.
    pub fn early_key(&self) -> FrameKey {
        FrameKey::new(&hmac(&self.secret.prf, &[b"MPIB early", &self.first]))
    }

    /// Derives the session of the TCP connection that was answered with `challenge`.
    pub fn session(&self, challenge: &Nonce) -> Session {
        // Label, hash and challenge fit one block of the hash.
        let derived = |label: &[u8]| halves(hmac(&self.secret.prf, &[label, &self.first, challenge]));
        let [connector, acceptor] = derived(b"keys").map(|key| FrameKey::new(&key));
        let [proof, resume] = derived(b"proofs");
        Session { proof, keys: Ends { connector, acceptor }, resume }
    }
}

/// What both ends of a TCP connection derive from the secret, the first frame and the challenge of
/// the answer.
#[derive(Clone)]
pub struct Session {
    /// The proof of the listener, which WELCOME carries.
    pub proof: Tag,
    /// The keys of the frames that each end sends.
    pub(crate) keys: Ends<FrameKey>,
    /// The secret of a TCP connection that replaces this one.
    pub resume: Nonce,
}

impl Session {
    /// Returns the keys of the end with `role`. `early` is the key of the frames behind a HELLO, which
    /// an acceptor expects until the connector's proof.
    pub fn keys_of(&self, role: Role, early: Option<FrameKey>) -> Keys {
        let (send, recv) = (self.keys.local(role).clone(), self.keys.remote(role).clone());
        match early {
            Some(early) => Keys { send, recv: early, after_proof: Some(recv) },
            None => Keys { send, recv, after_proof: None },
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// The keys with which one end seals and opens frames.
#[derive(Debug, Clone)]
pub struct Keys {
    send: FrameKey,
    recv: FrameKey,
    /// The key of the connector's frames from its PROOF on, at an acceptor that waits for PROOF.
    after_proof: Option<FrameKey>,
}

impl Keys {
    /// Appends the tag to a whole frame.
    pub fn seal(&mut self, frame: &mut Vec<u8>) {
        self.send.seal(frame);
    }

    /// Returns the body of a frame without its tag; `None` if the tag is wrong.
    pub fn open<'a>(&mut self, body: &'a [u8]) -> Option<&'a [u8]> {
        if body.first() == Some(&kind::PROOF)
            && let Some(key) = self.after_proof.take()
        {
            self.recv = key;
        }
        self.recv.open(body)
    }
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
