//! How a channel's part of a collective is cut into chunks.

use std::ops::Range;

use crate::protocol::Protocol;

/// Some chunks of a channel's part. A ring all-reduce has one for each rank in a round, the other
/// collectives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round {
    /// The first element.
    pub(crate) base: usize,
    /// Distance between the beginnings of chunks.
    pub(crate) stride: usize,
    /// Elements of a chunk.
    pub(crate) chunk: usize,
    /// The element after the last one of the part.
    pub(crate) limit: usize,
}

impl Round {
    /// Returns the offset and the number of elements of a chunk, which may be empty.
    pub(crate) fn piece(&self, index: usize) -> (usize, usize) {
        let offset = self.base + index * self.stride;
        (offset, self.chunk.min(self.limit.saturating_sub(offset)))
    }

    /// Returns the elements of the first chunks.
    pub(crate) fn ranges(&self, chunks: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..chunks).map(|index| {
            let (offset, count) = self.piece(index);
            offset..offset + count
        })
    }
}

/// A channel's part, as the host computes it from 2.20 on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) offset: usize,
    pub(crate) count: usize,
    pub(crate) chunk: usize,
}

impl Part {
    /// Returns rounds of one chunk each.
    pub(crate) fn single(self) -> Vec<Round> {
        let starts = (0..self.count).step_by(self.chunk);
        starts.map(|start| self.round(start, self.chunk)).collect()
    }

    /// Returns rounds of a chunk for each rank. The last one has chunks of `last` elements.
    pub(crate) fn ring(self, ranks: usize, last: impl Fn(usize) -> usize) -> Vec<Round> {
        let per_round = ranks * self.chunk;
        let starts = (0..self.count).step_by(per_round);
        let rounds = starts.map(|start| {
            let left = self.count - start;
            self.round(start, if left < per_round { last(left) } else { self.chunk })
        });
        rounds.collect()
    }

    fn round(self, start: usize, chunk: usize) -> Round {
        Round { base: self.offset + start, stride: chunk, chunk, limit: self.offset + self.count }
    }
}

/// What 2.18 and 2.19 compute a channel's chunks from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) protocol: Protocol,
    pub(crate) element: usize,
    /// Bytes of a step of the protocol's buffers.
    pub(crate) step_bytes: usize,
    pub(crate) threads: usize,
    pub(crate) channel: usize,
    pub(crate) channels: usize,
    /// Elements of the collective.
    pub(crate) count: usize,
    /// Elements of the last chunk, or of every chunk of a tree, as the host computes it.
    pub(crate) last_chunk: usize,
}

/// Threads of a warp.
const WARP: usize = 32;
/// Bytes of a line of LL that are data, and of LL128's share of a thread.
const GRAINS: [usize; 3] = [8, 60, 8];

impl Grid {
    /// Returns the elements of data of a step.
    fn step(&self) -> usize {
        let data = match self.protocol {
            Protocol::Ll => self.step_bytes / 2,
            Protocol::Ll128 => self.step_bytes * 15 / 16,
            Protocol::Simple => self.step_bytes,
        };
        data / self.element
    }

    /// Returns the elements of all threads' grains.
    fn grain(&self) -> usize {
        self.threads * (GRAINS[self.protocol as usize] / self.element)
    }

    /// Rounds a chunk of Simple up to what the threads that copy move at once.
    fn round_up(&self, chunk: usize) -> usize {
        chunk.next_multiple_of((self.threads - WARP) * 8 / self.element)
    }

    /// Returns rounds of a ring all-reduce. Channels have neighbouring parts of a round in Simple
    /// and neighbouring chunks in LL and LL128.
    pub(crate) fn ring(self, ranks: usize) -> Vec<Round> {
        const CHUNK_STEPS: usize = 4;
        let is_simple = self.protocol == Protocol::Simple;
        let largest = self.step() * if is_simple { CHUNK_STEPS } else { 1 };
        let grain = if self.protocol == Protocol::Ll128 { self.grain() / 2 } else { self.grain() };
        let pieces = self.channels * ranks;
        let round = |start: usize| {
            let left = self.count - start;
            if is_simple {
                let chunk = self.round_up(largest.min(left.div_ceil(pieces)));
                let base = start + self.channel * ranks * chunk;
                return Round { base, stride: chunk, chunk, limit: self.count };
            }
            let chunk = largest.min(left.div_ceil(pieces * grain) * grain);
            let base = start + self.channel * chunk;
            Round { base, stride: self.channels * chunk, chunk, limit: self.count }
        };
        (0..self.count).step_by(pieces * largest).map(round).collect()
    }

    /// Returns rounds of the other collectives of a ring. `chunk_steps` is for Simple; `halves` is
    /// whether LL128 takes half the grain.
    pub(crate) fn single(self, chunk_steps: usize, halves: bool) -> Vec<Round> {
        let is_simple = self.protocol == Protocol::Simple;
        let largest = self.step() * if is_simple { chunk_steps } else { 1 };
        let per_round = self.channels * largest;
        let grain = if halves { self.grain() / 2 } else { self.grain() };
        let round = |start: usize| {
            let left = self.count - start;
            let chunk = match self.protocol {
                Protocol::Simple => self.round_up(largest.min(left.div_ceil(self.channels))),
                Protocol::Ll if left < per_round => self.last_chunk,
                Protocol::Ll => largest,
                Protocol::Ll128 => largest.min(left.div_ceil(self.channels * grain) * grain),
            };
            self.chunk_at(start, chunk)
        };
        (0..self.count).step_by(per_round).map(round).collect()
    }

    /// Returns rounds of a tree.
    pub(crate) fn tree(self) -> Vec<Round> {
        let largest = if self.protocol == Protocol::Ll { self.step() } else { self.last_chunk };
        let smallest = match self.protocol {
            Protocol::Simple => (self.threads - 2 * WARP) * 8 * (8 / self.element),
            Protocol::Ll => self.grain(),
            Protocol::Ll128 => self.grain() / 8,
        };
        let per_round = self.channels * largest;
        let chunk = if per_round > self.count {
            self.count.div_ceil(self.channels * smallest) * smallest
        } else {
            largest
        };
        (0..self.count).step_by(per_round).map(|start| self.chunk_at(start, chunk)).collect()
    }

    fn chunk_at(self, start: usize, chunk: usize) -> Round {
        Round { base: start + self.channel * chunk, stride: 0, chunk, limit: self.count }
    }
}
