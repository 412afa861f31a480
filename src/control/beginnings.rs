//! The connections whose handshake runs. A peer that dials one of them again gets no answer: it has
//! not ended, and it cannot be replaced yet.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::proto::{Nonce, Role};

/// By what a connection of this process is found: the token of its HELLO, and this end's role. Both
/// ends may be in one process.
pub(super) type RedialId = (Nonce, Role);

/// Those of the process.
#[derive(Debug, Default)]
pub(super) struct Beginnings {
    /// How many there are of each: several connections may have one HELLO until one of them proves
    /// itself.
    running: Mutex<HashMap<RedialId, usize>>,
}

/// One of them. Its drop ends that.
#[derive(Debug)]
pub(super) struct Beginning {
    all: Arc<Beginnings>,
    id: RedialId,
}

impl Beginnings {
    pub(super) fn begin(self: &Arc<Self>, id: RedialId) -> Beginning {
        *self.running.lock().entry(id).or_default() += 1;
        Beginning { all: Arc::clone(self), id }
    }

    pub(super) fn includes(&self, id: &RedialId) -> bool {
        self.running.lock().contains_key(id)
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        let mut running = self.all.running.lock();
        if let Some(n) = running.get_mut(&self.id) {
            *n -= 1;
            if *n == 0 {
                running.remove(&self.id);
            }
        }
    }
}
