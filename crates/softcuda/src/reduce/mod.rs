//! What kernels compute: the types and the operators of reductions.

mod element;
mod float8;
#[cfg(test)]
mod tests;

use element::Element;
pub use float8::{E4M3, E5M2};

/// A type of elements, in NCCL's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// `ncclInt8`.
    I8,
    /// `ncclUint8`.
    U8,
    /// `ncclInt32`.
    I32,
    /// `ncclUint32`.
    U32,
    /// `ncclInt64`.
    I64,
    /// `ncclUint64`.
    U64,
    /// `ncclFloat16`.
    F16,
    /// `ncclFloat32`.
    F32,
    /// `ncclFloat64`.
    F64,
    /// `ncclBfloat16`.
    Bf16,
    /// `ncclFloat8e4m3`.
    F8E4M3,
    /// `ncclFloat8e5m2`.
    F8E5M2,
}

impl DataType {
    /// Every type, in NCCL's order. Releases before 2.24 lack the last two.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
    ];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns the argument of [`Operator::MinMax`]: the sign bit of a signed type, for the maximum
    /// with all bits flipped.
    const fn min_max_argument(self, is_max: bool) -> u64 {
        let bits = 8 * self.size() as u32;
        let sign = if self.is_signed() { 1 << (bits - 1) } else { 0 };
        let all = if is_max { u64::MAX >> (64 - bits) } else { 0 };
        sign ^ all
    }

    const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I32 | Self::I64)
    }
}

/// An operator of NCCL's device code. Its argument is part of a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The minimum or the maximum, which the argument chooses.
    MinMax,
    /// The sum of elements that are first multiplied by the argument.
    PreMulSum,
    /// The sum, divided by the argument at the end.
    SumPostDiv,
    /// The maximum, without an argument: 2.18.
    Max,
    /// The minimum, without an argument: 2.18.
    Min,
}

impl Operator {
    /// Every operator, in NCCL's order: from 2.19 on.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::MinMax, Self::PreMulSum, Self::SumPostDiv];
    /// Every operator, in NCCL's order: 2.18.
    pub const OLD: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::PreMulSum, Self::SumPostDiv];
}

/// What the argument of [`Operator::SumPostDiv`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// The divisor. The type has the sign.
    Plain,
    /// The divisor times two, plus one if the elements are signed. Releases whose functions serve
    /// the signed and the unsigned type at once.
    WithSign,
}

/// An operator with its argument, for elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// The elements' type.
    pub data_type: DataType,
    /// The operator.
    pub operator: Operator,
    /// The operator's argument in the work.
    pub argument: u64,
    /// The meaning of the argument of a division.
    pub division: Division,
}

impl Reduction {
    /// Returns the reduction of a collective that only copies bytes.
    pub const COPY: Self =
        Self { data_type: DataType::I8, operator: Operator::Sum, argument: 0, division: Division::Plain };

    /// Returns the size of an element in bytes.
    pub const fn size(&self) -> usize {
        self.data_type.size()
    }

    /// Prepares elements of the user's input: the multiplication of `PreMulSum`.
    pub fn prepare(&self, elements: &mut [u8]) {
        if self.operator == Operator::PreMulSum {
            self.with_type(Multiply { elements, factor: self.argument });
        }
    }

    /// Reduces elements into `into`.
    pub fn accumulate(&self, into: &mut [u8], from: &[u8]) {
        let argument = match self.operator {
            Operator::Max => self.data_type.min_max_argument(true),
            Operator::Min => self.data_type.min_max_argument(false),
            _ => self.argument,
        };
        self.with_type(Accumulate { operator: self.operator, argument, into, from });
    }

    /// Completes elements of the result: the division of `SumPostDiv`.
    pub fn finish(&self, elements: &mut [u8]) {
        if self.operator == Operator::SumPostDiv {
            let (divisor, signed) = match self.division {
                Division::Plain => (self.argument, self.data_type.is_signed()),
                Division::WithSign => (self.argument >> 1, self.argument & 1 == 1),
            };
            self.with_type(Divide { elements, divisor, signed });
        }
    }

    fn with_type(&self, job: impl Job) {
        match self.data_type {
            // The bits of a sum and a product are the same with and without sign, and the argument
            // of `MinMax` flips the sign bit of signed elements.
            DataType::I8 | DataType::U8 => job.run::<u8>(),
            DataType::I32 | DataType::U32 => job.run::<u32>(),
            DataType::I64 | DataType::U64 => job.run::<u64>(),
            DataType::F16 => job.run::<half::f16>(),
            DataType::F32 => job.run::<f32>(),
            DataType::F64 => job.run::<f64>(),
            DataType::Bf16 => job.run::<half::bf16>(),
            DataType::F8E4M3 => job.run::<E4M3>(),
            DataType::F8E5M2 => job.run::<E5M2>(),
        }
    }
}

/// A computation over elements of any type.
trait Job {
    fn run<T: Element>(self);
}

struct Accumulate<'a> {
    operator: Operator,
    argument: u64,
    into: &'a mut [u8],
    from: &'a [u8],
}

impl Job for Accumulate<'_> {
    fn run<T: Element>(self) {
        let argument = self.argument;
        match self.operator {
            Operator::Sum | Operator::PreMulSum | Operator::SumPostDiv => {
                zip(self.into, self.from, T::add);
            }
            Operator::Prod => zip(self.into, self.from, T::multiply),
            Operator::MinMax | Operator::Max | Operator::Min => {
                zip(self.into, self.from, |a: T, b: T| a.min_max(b, argument));
            }
        }
    }
}

struct Multiply<'a> {
    elements: &'a mut [u8],
    factor: u64,
}

impl Job for Multiply<'_> {
    fn run<T: Element>(self) {
        let factor = T::get(&self.factor.to_le_bytes());
        each(self.elements, |element: T| element.multiply(factor));
    }
}

struct Divide<'a> {
    elements: &'a mut [u8],
    divisor: u64,
    signed: bool,
}

impl Job for Divide<'_> {
    fn run<T: Element>(self) {
        each(self.elements, |element: T| element.divide(self.divisor, self.signed));
    }
}

fn each<T: Element>(elements: &mut [u8], map: impl Fn(T) -> T) {
    for place in elements.chunks_exact_mut(T::SIZE) {
        map(T::get(place)).put(place);
    }
}

fn zip<T: Element>(into: &mut [u8], from: &[u8], reduce: impl Fn(T, T) -> T) {
    for (place, other) in into.chunks_exact_mut(T::SIZE).zip(from.chunks_exact(T::SIZE)) {
        reduce(T::get(place), T::get(other)).put(place);
    }
}
