//! What each rank contributes to a collective and what it must receive, element by element.

use serde::{Deserialize, Serialize};

use super::{Collective, Operator, Test};

/// One repetition of a test on one rank.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The test.
    pub test: Test,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// The repetition.
    pub round: u32,
    /// The test's place among the tests of the communicator.
    pub place: u32,
}

/// A wrong element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// The repetition.
    pub round: u32,
    /// Index of the element.
    pub index: usize,
    /// The bits that arrived.
    pub found: u64,
    /// The bits that were expected.
    pub expected: u64,
}

/// A byte that no correct result is made of throughout.
pub const UNTOUCHED: u8 = 0xa5;

impl Case {
    /// Returns the root of this repetition.
    pub fn root(self) -> u32 {
        (self.place + self.round) % self.ranks
    }

    /// Returns how many elements the rank contributes.
    pub fn contributed(self) -> usize {
        match self.test.collective {
            Collective::ReduceScatter => self.test.count * self.ranks as usize,
            _ => self.test.count,
        }
    }

    /// Returns how many elements the rank receives.
    pub fn received(self) -> usize {
        match self.test.collective {
            Collective::AllGather => self.test.count * self.ranks as usize,
            Collective::Reduce if self.rank != self.root() => 0,
            _ => self.test.count,
        }
    }

    /// Returns the number that a rank contributes at an index. Numbers do not repeat at any distance,
    /// so data at a wrong place is wrong, and so is data of another rank, repetition or test.
    fn number(self, rank: u32, index: usize) -> f64 {
        let source = u64::from(rank) << 48 ^ u64::from(self.place) << 32 ^ u64::from(self.round);
        let mixed = mix(mix(source) ^ index as u64);
        // Products of eight ranks stay in the smallest type.
        let product = self.test.collective.reduces() && self.test.operator == Operator::Prod;
        if product { (1 + mixed % 2) as f64 } else { (mixed % self.test.element.numbers()) as f64 }
    }

    /// Returns the bytes that the rank contributes.
    pub fn contribution(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.contributed() * self.test.element.size());
        let element = self.test.element;
        (0..self.contributed())
            .for_each(|i| element.push(element.encode(self.number(self.rank, i)), &mut bytes));
        bytes
    }

    /// Returns the number that the rank must receive at an index.
    fn expected(self, index: usize) -> f64 {
        let before = (self.rank + self.ranks - 1) % self.ranks;
        match self.test.collective {
            Collective::AllGather => self.number((index / self.test.count) as u32, index % self.test.count),
            Collective::Broadcast => self.number(self.root(), index),
            Collective::SendRecv | Collective::PutSignal => self.number(before, index),
            Collective::ReduceScatter => self.reduced(self.rank as usize * self.test.count + index),
            Collective::AllReduce | Collective::AllReduceInPlace | Collective::Reduce => self.reduced(index),
        }
    }

    fn reduced(self, index: usize) -> f64 {
        let numbers = (0..self.ranks).map(|rank| self.number(rank, index));
        match self.test.operator {
            Operator::Sum => numbers.sum(),
            Operator::Prod => numbers.product(),
            Operator::Max => numbers.fold(0.0, f64::max),
            Operator::Min => numbers.fold(f64::INFINITY, f64::min),
            Operator::Avg => numbers.sum::<f64>() / f64::from(self.ranks),
        }
    }

    /// Compares every element that the rank has received. Returns how many are wrong, and the first.
    pub fn compare(self, bytes: &[u8]) -> (usize, Option<Wrong>) {
        let element = self.test.element;
        let (mut wrong, mut first) = (0, None);
        for index in 0..self.received() {
            let expected = element.kept(element.encode(self.expected(index)));
            let found = element.read(bytes, index);
            if found != expected {
                wrong += 1;
                first.get_or_insert(Wrong { round: self.round, index, found, expected });
            }
        }
        (wrong, first)
    }
}

/// Returns a number whose bits all depend on every bit of `value` (the finalizer of SplitMix64).
pub(super) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;

    fn case(collective: Collective, operator: Operator, element: DataType) -> Case {
        let test = Test { collective, element, operator, count: 50, times: 1 };
        Case { test, rank: 1, ranks: 2, round: 3, place: 0 }
    }

    /// Returns the contributions of both ranks.
    fn both(case: Case) -> [Vec<u8>; 2] {
        [0, 1].map(|rank| Case { rank, ..case }.contribution())
    }

    #[test]
    fn a_sum_of_floats_is_compared_element_by_element() {
        let case = case(Collective::AllReduce, Operator::Sum, DataType::F32);
        let [a, b] = both(case);
        let float = |bytes: &[u8], i: usize| f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        let sums = (0..50).map(|i| float(&a, i) + float(&b, i));
        let mut sums: Vec<u8> = sums.flat_map(f32::to_le_bytes).collect();
        assert_eq!(case.compare(&sums), (0, None));
        sums[4 * 7] ^= 1;
        let (wrong, first) = case.compare(&sums);
        assert_eq!((wrong, first.unwrap().index), (1, 7));
    }

    #[test]
    fn the_average_of_integers_drops_the_fraction() {
        let case = case(Collective::ReduceScatter, Operator::Avg, DataType::U8);
        let [a, b] = both(case);
        // The second rank receives the second half.
        let averages: Vec<u8> = (50..100).map(|i| (a[i] + b[i]) / 2).collect();
        assert_eq!(case.compare(&averages), (0, None));
    }

    #[test]
    fn gathered_parts_are_in_the_order_of_ranks() {
        let case = case(Collective::AllGather, Operator::Sum, DataType::Bf16);
        let [a, b] = both(case);
        assert_ne!(a, b);
        assert_eq!(case.compare(&[a.clone(), b.clone()].concat()), (0, None));
        assert!(case.compare(&[b, a].concat()).0 > 0);
    }

    #[test]
    fn only_the_root_receives_a_reduction() {
        let case = case(Collective::Reduce, Operator::Max, DataType::I64);
        assert_eq!((case.root(), case.received()), (1, 50));
        assert_eq!(Case { rank: 0, ..case }.received(), 0);
        let [a, b] = both(case);
        let max = |i| DataType::I64.read(&a, i).max(DataType::I64.read(&b, i));
        let all: Vec<u8> = (0..50).flat_map(|i| max(i).to_le_bytes()).collect();
        assert_eq!(case.compare(&all), (0, None));
    }

    #[test]
    fn data_of_another_place_repetition_or_test_is_wrong_in_every_type() {
        for element in DataType::ALL {
            let test = Test { count: 4096, ..case(Collective::SendRecv, Operator::Sum, element).test };
            let case = Case { test, ..case(Collective::SendRecv, Operator::Sum, element) };
            let sent = |case: Case| Case { rank: 0, ..case }.contribution();
            let right = sent(case);
            assert_eq!(case.compare(&right), (0, None));
            for len in [512, 1024, 2048] {
                let mut swapped = right.clone();
                let (one, other) = swapped.split_at_mut(len);
                one.swap_with_slice(&mut other[..len]);
                assert!(case.compare(&swapped).0 > 0, "{element:?}: parts of {len} bytes are swapped");
            }
            for old in [Case { round: case.round - 1, ..case }, Case { place: case.place + 1, ..case }] {
                assert!(case.compare(&sent(old)).0 > 0, "{element:?}: {old:?}");
            }
        }
    }

    #[test]
    fn bytes_that_were_not_written_are_wrong() {
        for element in DataType::ALL {
            for collective in Collective::ALL {
                let case = case(collective, Operator::Sum, element);
                let bytes = vec![UNTOUCHED; case.received() * element.size()];
                assert_eq!(case.compare(&bytes).0, case.received(), "{element:?} {collective:?}");
            }
        }
    }
}
