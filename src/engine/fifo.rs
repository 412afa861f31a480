//! The sender's FIFO of CTS entries, as the receiver's NIC fills it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::proto::{CTS_BYTES, CTS_SEQ_OFFSET, Cts, MAX_RAILS, MAX_RECVS, Sequence};

/// In the place of an entry that has not come.
pub(super) const NO_CTS: Cts =
    Cts { addr: 0, size: 0, rkeys: [0; MAX_RAILS], tag: 0, count: 0, index: 0, seq: 0 };

/// Puts the entries of the group with number `seq` into `group`; how many there are, `None` while one of them has not come.
pub(super) fn group(
    fifo: &[AtomicU64],
    seq: Sequence,
    group: &mut [Cts; MAX_RECVS],
) -> Result<Option<usize>> {
    let Some(first) = entry(fifo, seq, 0)? else { return Ok(None) };
    let count = usize::from(first.count);
    for (i, place) in group.iter_mut().enumerate().take(count) {
        let cts = match i {
            0 => first,
            _ => match entry(fifo, seq, i)? {
                Some(cts) => cts,
                None => return Ok(None),
            },
        };
        if usize::from(cts.count) != count || usize::from(cts.index) != i {
            return Err(Error::Protocol(format!(
                "CTS entry {i} of a group of {count} says that it is number {} of {}",
                cts.index, cts.count
            )));
        }
        *place = cts;
    }
    Ok(Some(count))
}

/// Entry `index` of the group with number `seq`; `None` while it has not come.
fn entry(fifo: &[AtomicU64], seq: Sequence, index: usize) -> Result<Option<Cts>> {
    let start = seq.cts_offset(index) / 8;
    let words = &fifo[start..start + CTS_BYTES / 8];
    // The running number comes last, so what stands before it is there when it is.
    let number = u64::from_le(words[CTS_SEQ_OFFSET / 8].load(Ordering::Acquire));
    if number < seq.number() {
        return Ok(None);
    }
    if number > seq.number() {
        return Err(Error::Protocol(format!(
            "a CTS entry has running number {number}, expected {}",
            seq.number()
        )));
    }
    let mut bytes = [0; CTS_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    Cts::decode(&bytes).map(Some).map_err(|e| Error::Protocol(e.to_string()))
}
