//! What a connection carries in one life, drawn from a seed: the same for both of its ends.

use mpib_tests::rng::Rng;

pub(crate) const CONNECTIONS: usize = 8;
/// Largest message.
pub(crate) const LARGEST: usize = 32 << 20;
/// Memory of a receiving connection: any one group fits.
pub(crate) const ARENA: usize = 40 << 20;
/// Most room of a receive beyond what is sent.
pub(crate) const SLACK: usize = 4096;
/// Bytes behind each receive that nobody may write.
pub(crate) const GUARD: usize = 64;
/// Places from which data is sent.
pub(crate) const SOURCES: usize = 65_536;

#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) room: usize,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    /// Where its data begins.
    pub(crate) source: usize,
}

/// One group of receives, and the order in which its sends come.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) parts: Vec<Part>,
    pub(crate) order: Vec<usize>,
}

impl Group {
    /// Bytes of the arena.
    pub(crate) fn room(&self) -> usize {
        self.parts.iter().map(|part| part.room + GUARD).sum()
    }

    /// Each part with its place in the arena, for a group at `at`.
    pub(crate) fn places(&self, mut at: usize) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().map(move |part| {
            let place = at;
            at += part.room + GUARD;
            (place, part)
        })
    }
}

fn rng(seed: u64, round: u64, connection: usize, life: usize) -> Rng {
    let mut rng = Rng::new(seed);
    for number in [round, connection as u64, life as u64] {
        rng = Rng::new(rng.draw() ^ number);
    }
    rng
}

/// How often a connection is made and closed in a round.
pub(crate) fn lives(seed: u64, round: u64, connection: usize) -> usize {
    1 + rng(seed, round, connection, usize::MAX).below(3)
}

/// The groups of one life.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: Rng,
    left: usize,
    /// So many groups that slots are used again and again; their messages are small.
    long: bool,
    /// Groups under way at the sender and at the receiver, at most.
    pub(crate) depths: [usize; 2],
}

impl Plan {
    pub(crate) fn new(seed: u64, round: u64, connection: usize, life: usize) -> Self {
        let mut rng = rng(seed, round, connection, life);
        let long = rng.below(4) == 0;
        let left = if long { 200 + rng.below(600) } else { rng.below(20) };
        let depths = [1 + rng.below(16), 1 + rng.below(16)];
        Self { rng, left, long, depths }
    }

    fn size(&mut self) -> usize {
        match self.rng.below(100) {
            0..99 if self.long => self.rng.below(4200),
            99.. if self.long => self.rng.below(1 << 20),
            0..10 => 0,
            10..40 => self.rng.below(4200),
            40..45 => self.rng.pick(&[1, 127, 128, 129, 255, 256, (2 << 20) - 1, 2 << 20, (2 << 20) + 1]),
            45..80 => self.rng.below(128 << 10),
            80..95 => self.rng.below(2 << 20),
            95..99 => self.rng.below(LARGEST + 1),
            _ => LARGEST,
        }
    }
}

impl Iterator for Plan {
    type Item = Group;

    fn next(&mut self) -> Option<Group> {
        self.left = self.left.checked_sub(1)?;
        let n = if self.rng.below(2) == 0 { 1 } else { 1 + self.rng.below(8) };
        let mut budget = LARGEST;
        let parts = (0..n).map(|i| {
            let len = self.size().min(budget);
            budget -= len;
            let slack = self.rng.pick(&[0, 0, 1, SLACK]);
            let tag = (self.rng.below(1 << 20) * 8 + i) as i32;
            Part { room: len + slack, len, tag, source: self.rng.below(SOURCES) }
        });
        let parts: Vec<_> = parts.collect();
        let mut order: Vec<_> = (0..n).collect();
        self.rng.shuffle(&mut order);
        Some(Group { parts, order })
    }
}
