//! New keys in CTS entries. An adapter that was opened again has registered all memory anew, so the
//! entries that the sender has hold keys of the rail's last life. The receiver writes them again,
//! and sends UP when they are in place: only then does the sender use the rail.

use crate::error::Fast;
use crate::proto::{SLOTS, Sequence, rails};
use crate::transport::recv::RecvState;

impl RecvState {
    /// Renews the keys of these rails in the entries of all groups whose data is outstanding. The
    /// entries are written again if a key has changed.
    pub(super) fn renew_cts(&mut self, which: u8) -> Fast<()> {
        let mut offered: Vec<_> = self.cts.next().predecessors().collect();
        offered.retain(|seq| self.is_outstanding(*seq));
        for seq in offered {
            if self.renew_entries(seq, which) {
                self.renewal.first = Some(self.renewal.first_of(seq));
            }
        }
        match self.renewal.first {
            Some(first) if self.unwritten.is_none() => {
                self.cts.rewrite(first);
                self.write_cts_again()
            }
            _ => Ok(()),
        }
    }

    /// Renews the keys of these rails in the entries of a group, as this end keeps them. Returns
    /// whether one has changed.
    fn renew_entries(&self, seq: Sequence, which: u8) -> bool {
        self.cts.stage(&self.comm, seq);
        let slot = &self.slots[usize::from(seq.slot()) % SLOTS];
        let mut changed = false;
        for (place, buffer) in slot.buffers().iter().enumerate().filter(|(_, buffer)| buffer.len > 0) {
            for rail in rails(which) {
                // NCCL keeps a buffer registered until its receive is complete.
                if let Some(keys) = self.comm.rails[rail].nic.keys_of(*buffer) {
                    changed |= self.cts.set_key(&self.comm, (seq, place), rail, keys.rkey());
                }
            }
        }
        changed
    }

    /// Sends UP if it waits and the sender has the new keys.
    pub(super) fn try_up(&mut self) -> Fast<()> {
        if self.renewal.first.is_some() && self.unwritten.is_none() && self.cts.is_rewritten(&self.comm) {
            self.renewal.first = None;
        }
        if self.renewal.first.is_some() {
            return Ok(());
        }
        self.recovery.up().map_or(Ok(()), |up| self.comm.send_message(up))
    }
}
