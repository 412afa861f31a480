//! The requests of a group's one-sided traffic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use nccl_net_versions::{Failure, Slab, Tagged};

use crate::error::{Error, Result};

/// Requests of a chunk.
const CHUNK: usize = 256;
/// Chunks at most. NCCL has up to 256 requests outstanding for each peer and context.
const CHUNKS: usize = 1 << 14;

const FREE: u8 = 0;
const IN_FLIGHT: u8 = 1;
const DONE: u8 = 2;
/// Failed. The index of the failure is added to it.
const FAILED: u8 = 3;

/// What a failed request reports.
const FAILURES: [Failure; 5] =
    [Failure::System, Failure::Internal, Failure::InvalidArgument, Failure::InvalidUsage, Failure::Remote];

/// What NCCL holds while a put or a get is in flight.
#[derive(Debug)]
pub struct Request {
    number: u32,
    state: AtomicU8,
}

/// How a request has ended.
pub(super) type Ended = Result<(), Failure>;

/// The number of a request.
pub(super) type Number = u32;

/// The requests, made in chunks when more are needed than ever before. The chunks stay where they
/// are, so NCCL's pointers are valid as long as the group.
#[derive(Debug)]
pub(super) struct Pool(Box<[OnceLock<Slab<Request>>]>);

/// What is known of the requests. Locked with the group.
#[derive(Debug, Default)]
pub(super) struct Table {
    free: Vec<Number>,
    /// By number.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// What is outstanding: one for each send, and one until all of them are posted.
    parts: u32,
    /// The rank that it concerns.
    rank: usize,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }

    /// Begins a request with one outstanding part.
    pub(super) fn begin(&self, table: &mut Table, rank: usize) -> Result<&Tagged<Request>> {
        if table.free.is_empty() {
            let chunk = table.entries.len() / CHUNK;
            let place = self.0.get(chunk).ok_or_else(|| {
                Error::Usage(format!(
                    "{} requests of one-sided traffic are outstanding, and no more fit",
                    CHUNK * CHUNKS
                ))
            })?;
            let first = table.entries.len() as Number;
            place.get_or_init(|| {
                let one = |index| Request { number: first + index as Number, state: AtomicU8::new(FREE) };
                Slab::rma(CHUNK, one)
            });
            table.entries.resize(table.entries.len() + CHUNK, Entry { parts: 0, rank: 0 });
            table.free.extend((first..first + CHUNK as Number).rev());
        }
        let number = table.free.pop().ok_or_else(|| Error::Internal("no free request".into()))?;
        let request = self.at(number)?;
        request.state.store(IN_FLIGHT, Ordering::Relaxed);
        table.entries[number as usize] = Entry { parts: 1, rank };
        Ok(request)
    }

    fn at(&self, number: Number) -> Result<&Tagged<Request>> {
        let chunk = self.0.get(number as usize / CHUNK).and_then(OnceLock::get);
        let chunk = chunk.ok_or_else(|| Error::Internal(format!("request {number} does not exist")))?;
        Ok(&chunk[number as usize % CHUNK])
    }

    /// Notes that a part of a request is done. The last one completes it.
    pub(super) fn part_done(&self, table: &mut Table, number: Number) -> Result<()> {
        let entry = table.entries.get_mut(number as usize);
        let entry = entry.ok_or_else(|| Error::Internal(format!("request {number} does not exist")))?;
        entry.parts = entry.parts.saturating_sub(1);
        if entry.parts == 0 {
            self.end(number, DONE)?;
        }
        Ok(())
    }

    /// Fails all requests that concern a rank.
    pub(super) fn fail(&self, table: &Table, rank: usize, failure: Failure) {
        let code = FAILURES.iter().position(|known| *known == failure).unwrap_or(1) as u8;
        for (number, entry) in table.entries.iter().enumerate() {
            if entry.rank == rank {
                let _ = self.end(number as Number, FAILED + code);
            }
        }
    }

    /// Ends a request that is in flight.
    fn end(&self, number: Number, state: u8) -> Result<()> {
        let cell = &self.at(number)?.state;
        let _ = cell.compare_exchange(IN_FLIGHT, state, Ordering::Release, Ordering::Relaxed);
        Ok(())
    }
}

impl Table {
    /// Adds a part to a request.
    pub(super) fn add_part(&mut self, number: Number) {
        if let Some(entry) = self.entries.get_mut(number as usize) {
            entry.parts += 1;
        }
    }

    /// Makes a request that was collected available for the next operation. One that has failed with
    /// parts outstanding is not used again: the end of such a part would be taken for one of the next
    /// operation's.
    pub(super) fn free(&mut self, number: Number) {
        if self.entries.get(number as usize).is_some_and(|entry| entry.parts == 0) {
            self.free.push(number);
        }
    }
}

impl Request {
    pub(super) fn number(&self) -> Number {
        self.number
    }

    /// Collects the request if it has ended: it is invalid from then on.
    ///
    /// # Errors
    /// The request was collected before.
    pub(super) fn collect(&self) -> Result<Option<Ended>> {
        let ended = match self.state.load(Ordering::Acquire) {
            DONE => Ok(()),
            IN_FLIGHT => return Ok(None),
            FREE => return Err(Error::Argument("the request was done before: it is no longer valid".into())),
            failed => Err(FAILURES.get(usize::from(failed - FAILED)).copied().unwrap_or(Failure::Internal)),
        };
        self.state.store(FREE, Ordering::Relaxed);
        Ok(Some(ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_ends_after_its_requests_failure_ends_no_other_request() {
        let (pool, mut table) = (Pool::new(), Table::default());
        let first = pool.begin(&mut table, 1).unwrap().number();
        pool.fail(&table, 1, Failure::Remote);
        assert_eq!(pool.at(first).unwrap().collect().unwrap(), Some(Err(Failure::Remote)));
        table.free(first);
        let second = pool.begin(&mut table, 2).unwrap();
        pool.part_done(&mut table, first).unwrap();
        assert_eq!(second.collect().unwrap(), None);
        pool.part_done(&mut table, second.number()).unwrap();
        assert_eq!(second.collect().unwrap(), Some(Ok(())));
        table.free(second.number());
        assert_eq!(pool.begin(&mut table, 2).unwrap().number(), second.number());
    }
}
