//! Random numbers for tests that draw their input. The log of a failure names the seed.

/// The next numbers of a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From `TEST_SEED`, or from the system; prints the seed for the log of a failure.
    pub fn from_env() -> (u64, Self) {
        let seed = match std::env::var("TEST_SEED") {
            Ok(text) => text.parse().expect("TEST_SEED is a number"),
            Err(_) => getrandom::u64().unwrap() >> 16,
        };
        eprintln!("again with TEST_SEED={seed}");
        (seed, Self(seed))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0 to `limit` - 1.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// In any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}
