//! The users of the web file, and whether a password is right.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

/// The users, and which passwords were right.
///
/// A check of bcrypt takes long by design. One is made at a time, in a thread that nobody else needs,
/// and a wrong password is followed by a rest of the same length: guesses take half a processor. Whose
/// password was right before waits for nobody.
#[derive(Debug, Default)]
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// What is left of a right password: its hash with a key that only this process has.
    right: Mutex<BTreeMap<String, [u8; 32]>>,
    key: [u8; 32],
    turn: Turn,
}

/// Who checks a password.
#[derive(Debug, Clone)]
struct Turn(Arc<Semaphore>);

impl Default for Turn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Users {
    pub(super) fn new(hashes: BTreeMap<String, String>) -> io::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self { hashes, key, ..Self::default() })
    }

    /// Returns whether there is none: nobody is asked for a password then.
    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns whether user and password of a header are right.
    pub(super) async fn accepts(&self, basic: &[u8]) -> bool {
        let Some((user, password)) = credentials(basic) else { return false };
        let digest: [u8; 32] = Sha256::new().chain_update(self.key).chain_update(&password).finalize().into();
        let was_right =
            || self.right.lock().get(&user).is_some_and(|right| bool::from(right[..].ct_eq(&digest)));
        if was_right() {
            return true;
        }
        // It fails if it was closed, which nobody does.
        let Ok(turn) = self.turn.0.clone().acquire_owned().await else { return false };
        // Another request of this user may have been before.
        if was_right() {
            return true;
        }
        let known = self.hashes.get(&user);
        // An unknown user takes as long.
        let Some(hash) = known.or(self.hashes.values().next()).cloned() else { return false };
        let is_known = known.is_some();
        let check = tokio::task::spawn_blocking(move || {
            // Also if the client has left meanwhile.
            let _turn = turn;
            let began = Instant::now();
            let is_right = bcrypt::verify(password, &hash).unwrap_or(false) && is_known;
            if !is_right {
                thread::sleep(began.elapsed());
            }
            is_right
        });
        let is_right = check.await.unwrap_or(false);
        if is_right {
            self.right.lock().insert(user, digest);
        }
        is_right
    }
}

/// Returns user and password of a header "Authorization: Basic …".
fn credentials(basic: &[u8]) -> Option<(String, Vec<u8>)> {
    let bytes = STANDARD.decode(basic).ok()?;
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some((String::from_utf8(bytes[..colon].to_vec()).ok()?, bytes[colon + 1..].to_vec()))
}
