//! The users of the web file, and whether a password is right.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The most passwords that are checked or wait for it.
const WAITING: usize = 16;
/// The most of one address: who guesses there leaves places to others.
const WAITING_OF_ADDRESS: usize = 2;

/// The users of a web file, with the hashes of their passwords.
#[derive(Debug, Default)]
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    passwords: Arc<Passwords>,
}

/// The checks of passwords, and which were right. They outlast a web file.
///
/// A check of bcrypt takes long by design. One is made at a time, in a thread that nobody else needs,
/// and a wrong password is followed by a rest of the same length: guesses take half a processor. Whose
/// password was right before waits for nobody.
#[derive(Debug, Default)]
pub(super) struct Passwords {
    /// What is left of a right password, by its hash of bcrypt: a hash with a key that only this process
    /// has.
    right: Mutex<BTreeMap<String, [u8; 32]>>,
    key: [u8; 32],
    /// The addresses that wait for a check.
    waiting: Mutex<Vec<IpAddr>>,
    turn: tokio::sync::Mutex<()>,
}

/// What a user and a password are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Verdict {
    Right,
    Wrong,
    /// Too many passwords wait for their check.
    Unchecked,
}

/// A password that is to be checked.
struct Attempt {
    password: Vec<u8>,
    hash: String,
    is_known: bool,
}

impl Users {
    pub(super) fn new(hashes: BTreeMap<String, String>, passwords: Arc<Passwords>) -> Self {
        Self { hashes, passwords }
    }

    /// Returns whether there is none: nobody is asked for a password then.
    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns what user and password of a header are worth.
    pub(super) async fn check(&self, basic: &[u8], from: IpAddr) -> Verdict {
        let Some((user, password)) = credentials(basic) else { return Verdict::Wrong };
        let known = self.hashes.get(&user);
        // An unknown user takes as long.
        let Some(hash) = known.or(self.hashes.values().next()).cloned() else { return Verdict::Wrong };
        let attempt = Attempt { password, hash, is_known: known.is_some() };
        if self.passwords.was_right(&attempt) {
            return Verdict::Right;
        }
        if !self.passwords.queue(from) {
            return Verdict::Unchecked;
        }
        // Also if the client leaves meanwhile: its next request is answered at once then.
        match tokio::spawn(self.passwords.clone().checked(attempt, from)).await {
            Ok(true) => Verdict::Right,
            _ => Verdict::Wrong,
        }
    }
}

impl Passwords {
    pub(super) fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self { key, ..Self::default() })
    }

    fn digest(&self, password: &[u8]) -> [u8; 32] {
        Sha256::new().chain_update(self.key).chain_update(password).finalize().into()
    }

    fn was_right(&self, attempt: &Attempt) -> bool {
        let digest = self.digest(&attempt.password);
        let right = self.right.lock();
        attempt.is_known && right.get(&attempt.hash).is_some_and(|right| bool::from(right[..].ct_eq(&digest)))
    }

    /// Takes a place for a check, if there is one for this address.
    fn queue(&self, from: IpAddr) -> bool {
        let mut waiting = self.waiting.lock();
        let of_address = waiting.iter().filter(|address| **address == from).count();
        let has_place = waiting.len() < WAITING && of_address < WAITING_OF_ADDRESS;
        if has_place {
            waiting.push(from);
        }
        has_place
    }

    /// Checks a password when it is its turn, and returns the place.
    async fn checked(self: Arc<Self>, attempt: Attempt, from: IpAddr) -> bool {
        let turn = self.turn.lock().await;
        // Another request of this user may have been before.
        let is_right = self.was_right(&attempt) || {
            let this = self.clone();
            tokio::task::spawn_blocking(move || this.verify(&attempt)).await.unwrap_or(false)
        };
        drop(turn);
        let mut waiting = self.waiting.lock();
        if let Some(place) = waiting.iter().position(|address| *address == from) {
            waiting.swap_remove(place);
        }
        is_right
    }

    fn verify(&self, attempt: &Attempt) -> bool {
        let began = Instant::now();
        let is_right = bcrypt::verify(&attempt.password, &attempt.hash).unwrap_or(false) && attempt.is_known;
        match is_right {
            true => drop(self.right.lock().insert(attempt.hash.clone(), self.digest(&attempt.password))),
            false => thread::sleep(began.elapsed()),
        }
        is_right
    }

    /// Forgets the passwords of users that a web file does not have.
    pub(super) fn keep(&self, users: &Users) {
        self.right.lock().retain(|hash, _| users.hashes.values().any(|known| known == hash));
    }
}

/// Returns user and password of a header "Authorization: Basic …".
fn credentials(basic: &[u8]) -> Option<(String, Vec<u8>)> {
    let bytes = STANDARD.decode(basic).ok()?;
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some((String::from_utf8(bytes[..colon].to_vec()).ok()?, bytes[colon + 1..].to_vec()))
}
