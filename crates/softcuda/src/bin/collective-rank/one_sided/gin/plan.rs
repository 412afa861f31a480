//! Where the blocks put and get, which bytes, and which values signals have in the end.

use std::ops::Range;

use softcuda::{
    gin::Add,
    rank::{Pattern, UNTOUCHED},
};

/// Blocks of a rank.
pub(super) const BLOCKS: u32 = 8;
/// Rounds of puts.
pub(super) const ROUNDS: u32 = 6;
/// Bytes of the puts of a round. The first has a weak signal and the last a strong one.
pub(super) const SIZES: [usize; 4] = [100, 1, 4101, 200_003];
/// The put that a counter counts.
pub(super) const COUNTED: usize = 2;
/// Bytes that a block gets from each other rank.
pub(super) const GOT: usize = 20_003;
/// Bytes around each put that nobody writes.
const GAP: usize = 61;
/// The number of a value among the puts of a round, behind those of memory.
pub(super) const VALUE: usize = SIZES.len();
/// Bytes of a value in each round; those behind them stay.
const VALUES: [usize; ROUNDS as usize] = [8, 4, 2, 1, 8, 7];

/// The kinds of signals. Each sender has its own ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Strong,
    Weak,
    Alone,
}

/// Bytes of an area: the puts of a block in a round.
const fn area() -> usize {
    begin(VALUE) + 8 + GAP
}

/// Returns where a put begins in its area.
pub(super) const fn begin(put: usize) -> usize {
    let (mut at, mut before) = (GAP, 0);
    while before < put {
        at += SIZES[before] + GAP;
        before += 1;
    }
    at
}

/// Returns what the strong signal of a round adds. The sums use all bits of a signal.
pub(super) fn added(round: u32) -> Add {
    Add::Value((u64::from(round) + 1) << 32 | 1)
}

/// Returns the sum of a strong signal after a round.
pub(super) fn sum(round: u32) -> u64 {
    (0..=round).map(|round| added(round).value()).sum()
}

/// Returns what is added to a word of a window in a round.
pub(super) fn added_to_word(round: u32) -> Add {
    if round == 0 { Add::One } else { Add::Value(u64::from(round) << 40) }
}

/// Returns whether a round has a signal without data.
pub(super) fn signals_alone(round: u32) -> bool {
    round % 2 == 1
}

/// A rank's part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    rank: u32,
    ranks: u32,
}

/// A put, or what a block gets (`round` is then the last one's successor).
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) block: u32,
    pub(super) round: u32,
    pub(super) put: usize,
}

impl Transfer {
    pub(super) fn pattern(self, lap: u32) -> Pattern {
        let Self { from, to, block, round, put } = self;
        let key = [u64::MAX, lap.into(), from.into(), to.into(), block.into(), round.into(), put as u64];
        Pattern::of(&key)
    }

    pub(super) fn len(self) -> usize {
        if self.put == VALUE { VALUES[self.round as usize] } else { SIZES[self.put] }
    }

    /// Returns the value of a put without memory.
    pub(super) fn value(self, lap: u32) -> u64 {
        let mut value = [0; 8];
        self.pattern(lap).fill(&mut value[..self.len()]);
        u64::from_le_bytes(value)
    }
}

impl Plan {
    pub(super) fn new(rank: u32, ranks: u32) -> Self {
        Self { rank, ranks }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns all ranks but this one.
    pub(super) fn peers(self) -> impl Iterator<Item = u32> + Clone {
        (0..self.ranks).filter(move |rank| *rank != self.rank)
    }

    /// Senders of all ranks, or receivers: the blocks.
    fn blocks(&self) -> usize {
        (self.ranks * BLOCKS) as usize
    }

    /// Returns the number of a rank's block among all ranks' blocks.
    fn index(&self, rank: u32, block: u32) -> usize {
        (rank * BLOCKS + block) as usize
    }

    /// Signals of a context.
    pub(super) fn signals(&self) -> u32 {
        3 * self.ranks * BLOCKS
    }

    /// Returns the signal of a block of a rank.
    pub(super) fn signal(&self, kind: Kind, from: u32, block: u32) -> u32 {
        (kind as u32 * self.ranks + from) * BLOCKS + block
    }

    /// Returns what a signal is in the end.
    pub(super) fn last(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Strong => sum(ROUNDS - 1),
            Kind::Weak => ROUNDS.into(),
            Kind::Alone => (0..ROUNDS).filter(|round| signals_alone(*round)).count() as u64,
        }
    }

    /// Returns what a counter is in the end.
    pub(super) fn counted(&self) -> u64 {
        u64::from(ROUNDS) * u64::from(self.ranks - 1)
    }

    // The target: a word for each block of each rank, the areas, what others get.

    fn areas(&self) -> usize {
        8 * self.blocks()
    }

    fn pool(&self) -> usize {
        self.areas() + self.blocks() * ROUNDS as usize * area()
    }

    pub(super) fn target_len(&self) -> usize {
        self.pool() + self.blocks() * (GOT + GAP)
    }

    /// Returns where the word of a block of a rank is.
    pub(super) fn word(&self, from: u32, block: u32) -> usize {
        8 * self.index(from, block)
    }

    /// Returns what is added to a word in all rounds.
    pub(super) fn added_to_words(&self) -> u64 {
        (0..ROUNDS).map(|round| added_to_word(round).value()).sum()
    }

    /// Yields the places of all words and their values in the end.
    pub(super) fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.added_to_words();
        let of = move |from| (0..BLOCKS).map(move |block| (from, block));
        (0..self.ranks)
            .flat_map(of)
            .map(move |(from, block)| (self.word(from, block), if from == self.rank { 0 } else { all }))
    }

    /// Returns where the area of a block of a rank is, and its end.
    pub(super) fn area(&self, from: u32, block: u32, round: u32) -> Range<usize> {
        let index = self.index(from, block) * ROUNDS as usize + round as usize;
        let begin = self.areas() + index * area();
        begin..begin + area()
    }

    /// Returns the areas of this rank, in which nobody puts.
    pub(super) fn own_areas(&self) -> Range<usize> {
        self.area(self.rank, 0, 0).start..self.area(self.rank, BLOCKS - 1, ROUNDS - 1).end
    }

    /// Returns where a block of a rank finds what it gets.
    pub(super) fn offered(&self, to: u32, block: u32) -> usize {
        self.pool() + self.index(to, block) * (GOT + GAP)
    }

    /// Returns what a rank gets from another one.
    pub(super) fn got(&self, from: u32, to: u32, block: u32) -> Transfer {
        Transfer { from, to, block, round: ROUNDS, put: 0 }
    }

    /// Returns the target before the first put.
    pub(super) fn target(&self, lap: u32) -> Vec<u8> {
        let mut target = vec![UNTOUCHED; self.target_len()];
        target[..self.areas()].fill(0);
        for to in self.peers() {
            for block in 0..BLOCKS {
                let pattern = self.got(self.rank, to, block).pattern(lap);
                pattern.fill(&mut target[self.offered(to, block)..][..GOT]);
            }
        }
        target
    }

    // The source: what each block puts, and where it gets.

    fn block_source(&self) -> usize {
        SIZES.iter().sum()
    }

    fn landing(&self) -> usize {
        self.blocks() * ROUNDS as usize * self.block_source()
    }

    pub(super) fn source_len(&self) -> usize {
        self.landing() + self.blocks() * (GOT + GAP)
    }

    /// Returns where the bytes of a put are.
    pub(super) fn put_from(&self, put: Transfer) -> usize {
        let index = self.index(put.to, put.block) * ROUNDS as usize + put.round as usize;
        index * self.block_source() + SIZES[..put.put].iter().sum::<usize>()
    }

    /// Returns where a block gets to, with the bytes that nobody writes.
    pub(super) fn get_to(&self, from: u32, block: u32) -> Range<usize> {
        let begin = self.landing() + self.index(from, block) * (GOT + GAP);
        begin..begin + GOT + GAP
    }

    /// Returns the source before the first put.
    pub(super) fn source(&self, lap: u32) -> Vec<u8> {
        let mut source = vec![UNTOUCHED; self.source_len()];
        for to in self.peers() {
            for (block, round) in (0..BLOCKS).flat_map(|block| (0..ROUNDS).map(move |round| (block, round))) {
                for put in 0..SIZES.len() {
                    let put = Transfer { from: self.rank, to, block, round, put };
                    put.pattern(lap).fill(&mut source[self.put_from(put)..][..put.len()]);
                }
            }
        }
        source
    }
}
