//! Puts with signals into the windows of all other ranks.
//!
//! Everything of a size goes to the stream at once, and the stream alone keeps the order: each rank
//! puts pieces to each other one, waits for their signals, copies its window, writes over it, and
//! signals that the others may go on. What was put is overwritten as soon as the stream goes on behind
//! the puts. So a byte that comes after its signal is missing in the copy,
//! and one that comes before the signal of the round before is overwritten. Nothing else asks.

use std::time::Instant;

use softcuda::{
    DataType,
    rank::{Hub, Job, Pattern, Ran, UNTOUCHED},
};

use super::{OneSidedBench, Waited, Windowed};
use crate::{
    Result,
    cuda::{Buffer, Cuda},
    nccl::{Comm, Nccl, Put},
    run::step,
};

/// Bytes of a piece.
const SIZES: [usize; 4] = [8, 1, 4097, (1 << 20) + 3];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// Rounds with each size.
const ROUNDS: usize = 3;
/// Puts of a rank into each other rank's window in a round.
const PIECES: usize = 3;
/// Bytes around each piece that nobody writes. Pieces then lie at every alignment.
const GAP: usize = 61;

/// Returns the bytes of a window that are one rank's.
const fn slot(size: usize) -> usize {
    PIECES * (size + GAP) + GAP
}

/// Returns where a piece begins in a slot.
const fn begin(piece: usize, size: usize) -> usize {
    GAP + piece * (size + GAP)
}

/// The memory of the test.
pub(super) struct Puts<'a> {
    pub(super) memory: Windowed<'a>,
    /// Copies of the target, one for each round.
    copies: Buffer<'a>,
}

impl<'a> Puts<'a> {
    pub(super) fn new(job: &Job, nccl: &Nccl, cuda: &'a Cuda, comm: &Comm<'_>) -> Result<Self> {
        let ranks = job.ranks as usize;
        let target = ranks * slot(LARGEST);
        let memory = Windowed::new(nccl, cuda, comm, ROUNDS * PIECES * ranks * LARGEST, target)?;
        Ok(Self { memory, copies: cuda.buffer(ROUNDS * target)? })
    }
}

/// A put: all by which its bytes differ from others.
#[derive(Clone, Copy)]
struct Piece {
    lap: u32,
    size: usize,
    round: usize,
    from: u32,
    to: u32,
    piece: usize,
}

impl Piece {
    fn pattern(self) -> Pattern {
        let Self { lap, size, round, from, to, piece } = self;
        Pattern::of(&[lap.into(), size as u64, round as u64, from.into(), to.into(), piece as u64])
    }

    /// Returns where the piece lies in its sender's memory.
    fn source(self, ranks: u32) -> usize {
        ((self.round * ranks as usize + self.to as usize) * PIECES + self.piece) * self.size
    }

    /// Returns where the piece lies in its receiver's window.
    fn target(self) -> usize {
        self.from as usize * slot(self.size) + begin(self.piece, self.size)
    }
}

impl OneSidedBench<'_> {
    pub(super) fn put(&self, puts: &Puts<'_>, lap: u32, hub: &mut Hub) -> Result<Waited<Ran>> {
        let mut ran = Ran::default();
        for size in SIZES {
            step(hub, &format!("{PIECES} puts of {size} bytes, {ROUNDS} rounds, lap {lap}"))?;
            self.prepare(puts, size, lap)?;
            hub.exchange(Vec::new())?;
            let begun = Instant::now();
            for round in 0..ROUNDS {
                self.enqueue(puts, size, round)?;
            }
            if let Err(error) = self.wait()? {
                return Ok(Err(error));
            }
            ran.seconds += begun.elapsed().as_secs_f64();
            self.compare(puts, size, lap, &mut ran)?;
        }
        Ok(Ok(ran))
    }

    fn pieces(&self, lap: u32, size: usize, round: usize, piece: usize) -> impl Iterator<Item = Piece> {
        let from = self.job.rank;
        self.peers().map(move |to| Piece { lap, size, round, from, to, piece })
    }

    fn prepare(&self, puts: &Puts<'_>, size: usize, lap: u32) -> Result<()> {
        let ranks = self.job.ranks;
        let mut source = vec![0; ROUNDS * PIECES * ranks as usize * size];
        for round in 0..ROUNDS {
            for piece in (0..PIECES).flat_map(|piece| self.pieces(lap, size, round, piece)) {
                piece.pattern().fill(&mut source[piece.source(ranks)..][..size]);
            }
        }
        puts.memory.source.write(&source)?;
        puts.memory.target.write(&vec![UNTOUCHED; ranks as usize * slot(size)])
    }

    /// Adds a round to the stream.
    fn enqueue(&self, puts: &Puts<'_>, size: usize, round: usize) -> Result<()> {
        let (cuda, comm, stream) = (self.cuda, self.comm, self.stream);
        let target = &puts.memory.target;
        let put = |piece: Piece| {
            let source = puts.memory.source.pointer().wrapping_byte_add(piece.source(self.job.ranks));
            let put = Put {
                source,
                count: size,
                element: DataType::U8,
                peer: piece.to,
                window: puts.memory.target_window(),
                offset: piece.target(),
            };
            // SAFETY: the memory of `Puts::new` has room for each piece of each size, and stays.
            unsafe { comm.put(put, stream) }
        };
        let all = || (0..PIECES).flat_map(|piece| self.pieces(0, size, round, piece));
        let wait = |count| {
            let signals: Vec<_> = self.peers().map(|peer| (peer, count)).collect();
            comm.wait_signals(&signals, stream)
        };
        // As a group, the puts are under way together. Otherwise each one waits for the one before.
        let is_group = round.is_multiple_of(2);
        if is_group {
            comm.group(|| all().try_for_each(put))?;
        } else {
            all().try_for_each(put)?;
        }
        // The stream goes on when the puts no longer need their source.
        let sources = PIECES * self.job.ranks as usize * size;
        // SAFETY: a buffer of `Puts::new`, which stays.
        unsafe { cuda.fill((&puts.memory.source, round * sources), UNTOUCHED, sources, stream)? };
        if is_group {
            wait(PIECES as u32)?;
        } else {
            (0..PIECES).try_for_each(|_| wait(1))?;
        }
        let len = self.job.ranks as usize * slot(size);
        // SAFETY: buffers of `Puts::new`, which stay.
        unsafe {
            cuda.copy((&puts.copies, round * len), target, len, stream)?;
            cuda.fill((target, 0), UNTOUCHED, len, stream)?;
        }
        self.peers().try_for_each(|peer| comm.signal(peer, stream))?;
        wait(1)
    }

    /// Compares every byte of the copies.
    fn compare(&self, puts: &Puts<'_>, size: usize, lap: u32, ran: &mut Ran) -> Result<()> {
        let (to, len) = (self.job.rank, self.job.ranks as usize * slot(size));
        let copies = puts.copies.read(ROUNDS * len)?;
        for (round, copy) in copies.chunks(len).enumerate() {
            let number = lap * ROUNDS as u32 + round as u32;
            for (from, own) in (0..self.job.ranks).zip(copy.chunks(slot(size))) {
                let at = from as usize * slot(size);
                if from == to {
                    ran.untouched(own, number, at);
                    continue;
                }
                ran.untouched(&own[..GAP], number, at);
                for piece in 0..PIECES {
                    let (begin, end) = (begin(piece, size), begin(piece, size) + size);
                    let sent = Piece { lap, size, round, from, to, piece };
                    sent.pattern().compare(&own[begin..end], number, at + begin, ran);
                    ran.untouched(&own[end..end + GAP], number, at + end);
                }
            }
        }
        Ok(())
    }
}
