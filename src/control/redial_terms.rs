//! What the two ends of a connection know of each other to replace a broken TCP connection.

use std::sync::Arc;
use std::time::Duration;

use super::beginnings::{Beginning, Beginnings, RedialId};
use crate::error::{Error, Result};
use crate::proto::{
    Callback, Handle, Message, Nonce, Redial, Role, Secret, Tag, ended_commitment, ended_proof,
};

/// Where the connections of this process are dialled again.
#[derive(Debug, Clone)]
pub(super) struct Here {
    /// That of the listener for re-dials. Its secret stays in this process.
    pub(super) handle: Handle,
    pub(super) beginnings: Arc<Beginnings>,
}

/// How one connection is dialled again.
#[derive(Debug, Clone)]
pub(super) struct RedialTerms {
    /// This end.
    pub(super) role: Role,
    /// The token of the connection's HELLO.
    pub(super) token: Nonce,
    /// Where this end is reached.
    here: Callback,
    /// The secret of both ends, from the handshake.
    key: Option<Nonce>,
    /// Where the peer is reached; `None` until it is known, and if the peer has no failover.
    peer: Option<Callback>,
    /// How long the peer's host may be silent.
    pub(super) silence: Duration,
    /// Present while the handshake runs.
    begins: Option<Arc<Beginning>>,
}

impl RedialTerms {
    /// Makes the terms of a connection whose handshake begins.
    pub(super) fn new(role: Role, token: Nonce, here: &Here, silence: Duration) -> Self {
        let handle = &here.handle;
        let begins = Some(Arc::new(here.beginnings.begin((token, role))));
        let ended = ended_commitment(&ended_proof(handle.secret(), &token, role));
        let here = Callback { id: handle.id(), port: handle.port(), addrs: handle.addrs().into(), ended };
        Self { role, token, here, key: None, peer: None, silence, begins }
    }

    /// Ends the handshake: the connection can be dialled again, or has ended.
    pub(super) fn end_handshake(&mut self) {
        self.begins = None;
    }

    pub(super) fn set_key(&mut self, key: Nonce) {
        self.key = Some(key);
    }

    /// Returns the frame by which the peer learns where this end is reached.
    pub(super) fn callback(&self) -> Message {
        Message::Callback(self.here.clone())
    }

    pub(super) fn set_peer(&mut self, callback: Callback) {
        self.peer = Some(callback);
    }

    /// Returns whether both ends accept re-dials.
    pub(super) fn is_agreed(&self) -> bool {
        self.peer.is_some() && self.key.is_some()
    }

    pub(super) fn id(&self) -> RedialId {
        (self.token, self.role)
    }

    /// Returns the key of the connection, which both ends know and which is never sent.
    pub(super) fn key(&self) -> Option<Secret> {
        self.key.map(Secret::from)
    }

    /// Returns where the peer is reached, and the REDIAL for its listener with this challenge.
    pub(super) fn dial(&self, challenge: Nonce) -> Option<(&Callback, Message)> {
        let (peer, key) = (self.peer.as_ref()?, self.key()?);
        let redial = Redial::new(&key, peer.id, self.token, self.role, challenge);
        Some((peer, Message::Redial(redial)))
    }

    /// Returns whether these bytes show that the connection has ended in the peer's process.
    pub(super) fn is_end(&self, proof: &Tag) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.ended == ended_commitment(proof))
    }
}

/// Returns bytes that nobody can guess.
pub(super) fn random() -> Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
    Ok(nonce)
}
