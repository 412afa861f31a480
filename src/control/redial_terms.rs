//! What the two ends of a connection know of each other to replace a broken TCP connection.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::proto::{Callback, Handle, Message, Nonce, Redial, Role};

/// By what a connection of this process is found: the token of its HELLO, and this end's role. Both
/// ends may be in one process.
pub(super) type RedialId = (Nonce, Role);

/// How one connection is dialled again.
#[derive(Debug, Clone)]
pub(super) struct RedialTerms {
    /// This end.
    pub(super) role: Role,
    /// The token of the connection's HELLO.
    pub(super) token: Nonce,
    /// Where this end is reached.
    here: Callback,
    /// Where the peer is reached; `None` until it is known, and if the peer has no failover.
    peer: Option<Callback>,
    /// How long the peer's host may be silent.
    pub(super) silence: Duration,
}

impl RedialTerms {
    /// Makes the terms of a new connection, with a random key.
    pub(super) fn new(role: Role, token: Nonce, handle: Handle, silence: Duration) -> Result<Self> {
        let here = Callback { handle, key: random()? };
        Ok(Self { role, token, here, peer: None, silence })
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
        self.peer.is_some()
    }

    pub(super) fn id(&self) -> RedialId {
        (self.token, self.role)
    }

    /// Returns the key that a re-dial of the peer must contain.
    pub(super) fn key(&self) -> &Nonce {
        &self.here.key
    }

    /// Returns the peer's addresses, and the REDIAL for its listener.
    pub(super) fn dial(&self) -> Option<(&Handle, Message)> {
        let Callback { handle, key } = self.peer.as_ref()?;
        let redial = Redial { nonce: *handle.nonce(), token: self.token, key: *key, from: self.role };
        Some((handle, Message::Redial(redial)))
    }
}

/// Returns bytes that nobody can guess.
pub(super) fn random() -> Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
    Ok(nonce)
}
