//! Which steps the connections of PAT have, and what is in them.
//!
//! PAT is a set of binomial trees, one for each rank. Data of a rank passes connections to ranks at
//! distances of powers of two; "dimension" d is the connection at distance 2^d. The data that is
//! `s` ranks away uses the dimension of the lowest set bit of `s`. Steps aggregate the data of
//! several ranks if it is small. The host counts the steps of each connection for its proxy
//! threads, so their number is NCCL's. The order of the steps and of the data in them is free: both
//! ends are softcuda's.

/// How many ranks' data NCCL aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aggregation {
    ranks: usize,
    /// Distances of 0 to `factor` times `delta` are handled together.
    factor: usize,
    delta: usize,
    /// Data of at most this many ranks is in a step.
    per_step: usize,
}

/// How aggregated data is distributed to steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Every step is as full as it can be.
    Full,
    /// Steps are as many as if no distance were beyond the last rank: reduce-scatter from 2.26 on.
    Spread,
}

impl Aggregation {
    /// Returns the aggregation of a channel with `part` bytes of each rank and steps of `step` bytes.
    pub(crate) fn of(ranks: usize, part: usize, step: usize) -> Self {
        /// Steps of a connection's buffers.
        const DEPTH: usize = 8;
        let mut factor = 1;
        while step / (part * factor) >= 2 && factor < ranks / 2 {
            factor *= 2;
        }
        let per_step = factor;
        let mut depth = DEPTH;
        while depth > 1 && factor < ranks / 2 {
            factor *= 2;
            depth /= 2;
        }
        Self { ranks, factor, delta: ranks.next_power_of_two() / factor, per_step }
    }

    /// Returns the steps of each dimension, with the distances in each step.
    pub(crate) fn steps(&self, packing: Packing) -> Vec<Vec<Vec<usize>>> {
        let dimensions = self.ranks.next_power_of_two().trailing_zeros();
        (0..dimensions).map(|dimension| self.dimension(dimension, packing)).collect()
    }

    fn dimension(&self, dimension: u32, packing: Packing) -> Vec<Vec<usize>> {
        let bit = 1 << dimension;
        if bit >= self.delta {
            // Every odd multiple of the bit, all together.
            let odd = (bit..self.ranks).step_by(2 * bit).collect();
            return self.pack(odd, self.factor * self.delta / (2 * bit), packing);
        }
        let firsts = (bit..self.delta.min(self.ranks)).step_by(2 * bit);
        let together = |first: usize| (first..self.ranks).step_by(self.delta).collect();
        firsts.flat_map(|first| self.pack(together(first), self.factor, packing)).collect()
    }

    /// Distributes distances. There would be `possible` ones with more ranks.
    fn pack(&self, distances: Vec<usize>, possible: usize, packing: Packing) -> Vec<Vec<usize>> {
        match packing {
            Packing::Full => distances.chunks(self.per_step).map(<[usize]>::to_vec).collect(),
            Packing::Spread => {
                let steps = (possible / self.per_step).max(1).min(distances.len());
                let step = |first| distances.iter().copied().skip(first).step_by(steps).collect();
                (0..steps).map(step).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_distance_is_in_one_step_of_its_dimension(
            ranks in 2usize..70,
            part in 1usize..10_000,
            step in 512usize..100_000,
            packing in prop::sample::select(&[Packing::Full, Packing::Spread][..]),
        ) {
            let aggregation = Aggregation::of(ranks, part, step);
            let mut seen = BTreeSet::new();
            for (dimension, steps) in aggregation.steps(packing).into_iter().enumerate() {
                for step in steps {
                    prop_assert!(!step.is_empty() && step.len() <= aggregation.per_step);
                    for distance in step {
                        prop_assert_eq!(distance.trailing_zeros() as usize, dimension);
                        prop_assert!(seen.insert(distance), "{} twice", distance);
                    }
                }
            }
            prop_assert_eq!(seen.into_iter().collect::<Vec<_>>(), (1..ranks).collect::<Vec<_>>());
        }

        #[test]
        fn aggregated_data_fits_in_a_step(
            ranks in 2usize..70,
            part in 1usize..10_000,
            step in 512usize..100_000,
        ) {
            let aggregation = Aggregation::of(ranks, part, step);
            prop_assert!(aggregation.per_step == 1 || aggregation.per_step * part <= step);
        }
    }

    #[test]
    fn large_data_is_not_aggregated_in_a_step() {
        let steps = Aggregation::of(4, 1 << 20, 1 << 16).steps(Packing::Full);
        assert_eq!(steps, [vec![vec![1], vec![3]], vec![vec![2]]]);
    }

    #[test]
    fn small_data_of_eight_ranks_is_aggregated() {
        let steps = Aggregation::of(8, 8, 1 << 16).steps(Packing::Full);
        assert_eq!(steps, [vec![vec![1, 3, 5, 7]], vec![vec![2, 6]], vec![vec![4]]]);
    }
    #[test]
    fn spread_steps_are_as_many_as_on_a_power_of_two_of_ranks() {
        // Two of four aggregated ranks' data fit in a step.
        let aggregation = Aggregation::of(9, 1 << 14, 1 << 15);
        let full = aggregation.steps(Packing::Full);
        let spread = aggregation.steps(Packing::Spread);
        assert_eq!(full[0], [[1, 5], [3, 7]]);
        assert_eq!(spread[0], [[1], [5], [3], [7]]);
        assert_eq!((&full[1], &spread[1]), (&vec![vec![2, 6]], &vec![vec![2], vec![6]]));
    }
}
