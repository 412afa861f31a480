use half::{bf16, f16};
use proptest::prelude::*;

use super::{DataType, Division, E4M3, E5M2, Operator, Reduction};

fn reduction(data_type: DataType, operator: Operator, argument: u64) -> Reduction {
    Reduction { data_type, operator, argument, division: Division::WithSign }
}

/// Reduces two elements the way a ring does: the input is prepared, the result finished.
fn reduce(reduction: &Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    reduction.prepare(&mut a);
    reduction.prepare(&mut b);
    reduction.accumulate(&mut a, &b);
    reduction.finish(&mut a);
    a
}

/// The argument of MinMax, as the host computes it.
fn min_max(data_type: DataType, max: bool) -> u64 {
    let bits = 8 * data_type.size() as u32;
    let all = u64::MAX >> (64 - bits);
    let sign = if data_type.is_signed() { 1 << (bits - 1) } else { 0 };
    sign ^ if max { all } else { 0 }
}

/// Checks every operator of an integer type against the type's own arithmetic.
macro_rules! integers {
    ($($name:ident $type:ty, $data_type:ident;)*) => {
        proptest! { $(
            #[test]
            fn $name(a: $type, b: $type, factor: $type, divisor in 1u32..64) {
                let check = |operator, argument, expected: $type| {
                    let reduction = reduction(DataType::$data_type, operator, argument);
                    let found = reduce(&reduction, &a.to_le_bytes(), &b.to_le_bytes());
                    assert_eq!(found, expected.to_le_bytes(), "{operator:?} of {a} and {b}");
                };
                let bits = |value: $type| { let mut w = [0; 8]; w[..size_of::<$type>()].copy_from_slice(&value.to_le_bytes()); u64::from_le_bytes(w) };
                let sum = a.wrapping_add(b);
                check(Operator::Sum, 0, sum);
                check(Operator::Prod, 0, a.wrapping_mul(b));
                check(Operator::MinMax, min_max(DataType::$data_type, false), a.min(b));
                check(Operator::MinMax, min_max(DataType::$data_type, true), a.max(b));
                check(Operator::Min, 0, a.min(b));
                check(Operator::Max, 0, a.max(b));
                check(Operator::PreMulSum, bits(factor), sum.wrapping_mul(factor));
                let signed = u64::from(DataType::$data_type.is_signed());
                let by = u64::from(divisor) << 1 | signed;
                check(Operator::SumPostDiv, by, (sum as i128 / i128::from(divisor)) as $type);
            }
        )* }
    };
}
integers! {
    i8_has_its_own_arithmetic i8, I8;
    u8_has_its_own_arithmetic u8, U8;
    i32_has_its_own_arithmetic i32, I32;
    u32_has_its_own_arithmetic u32, U32;
    i64_has_its_own_arithmetic i64, I64;
    u64_has_its_own_arithmetic u64, U64;
}

/// Checks every operator of a float type against arithmetic in `f64`, rounded once.
macro_rules! floats {
    ($($name:ident $type:ty, $data_type:ident, $widen:expr, $narrow:expr;)*) => {
        proptest! { $(
            #[test]
            fn $name(a in -8.0f32..8.0, b in -8.0f32..8.0, factor in -2.0f32..2.0) {
                let (widen, narrow) = ($widen, $narrow);
                let round = |x: f64| -> $type { narrow(x) };
                let (a, b, factor) = (round(a.into()), round(b.into()), round(factor.into()));
                let mut argument = [0; 8];
                argument[..size_of::<$type>()].copy_from_slice(&factor.to_le_bytes());
                let check = |operator, argument, expected: $type| {
                    let reduction = reduction(DataType::$data_type, operator, argument);
                    let found = reduce(&reduction, &a.to_le_bytes(), &b.to_le_bytes());
                    assert_eq!(found, expected.to_le_bytes(), "{operator:?} of {a:?} and {b:?}");
                };
                let (x, y, f): (f64, f64, f64) = (widen(a), widen(b), widen(factor));
                check(Operator::Sum, 0, round(x + y));
                check(Operator::Prod, 0, round(x * y));
                check(Operator::MinMax, 0, round(x.min(y)));
                check(Operator::MinMax, 1, round(x.max(y)));
                check(Operator::Min, 0, round(x.min(y)));
                check(Operator::Max, 0, round(x.max(y)));
                let scaled: (f64, f64) = (widen(round(x * f)), widen(round(y * f)));
                check(Operator::PreMulSum, u64::from_le_bytes(argument), round(scaled.0 + scaled.1));
            }
        )* }
    };
}
floats! {
    f32_rounds_once f32, F32, |x: f32| f64::from(x), |x: f64| x as f32;
    f64_rounds_once f64, F64, |x: f64| x, |x: f64| x;
    f16_rounds_once f16, F16, |x: f16| x.to_f64(), |x: f64| f16::from_f64(x);
    bf16_rounds_once bf16, Bf16, |x: bf16| x.to_f64(), |x: f64| bf16::from_f64(x);
    e4m3_rounds_once E4M3, F8E4M3, |x: E4M3| f64::from(x.to_f32()), |x: f64| E4M3::from_f32(x as f32);
    e5m2_rounds_once E5M2, F8E5M2, |x: E5M2| f64::from(x.to_f32()), |x: f64| E5M2::from_f32(x as f32);
}

#[test]
fn a_division_without_sign_bit_takes_the_sign_of_the_type() {
    let by_three =
        Reduction { division: Division::Plain, ..reduction(DataType::I32, Operator::SumPostDiv, 3) };
    let found = reduce(&by_three, &(-8i32).to_le_bytes(), &(-2i32).to_le_bytes());
    assert_eq!(found, (-3i32).to_le_bytes());
    let unsigned = Reduction { data_type: DataType::U32, ..by_three };
    let found = reduce(&unsigned, &u32::MAX.to_le_bytes(), &0u32.to_le_bytes());
    assert_eq!(found, (u32::MAX / 3).to_le_bytes());
}

#[test]
fn float8_numbers_survive_a_conversion() {
    for bits in 0..=255u8 {
        let (a, b) = (E4M3(bits), E5M2(bits));
        if a.to_f32().is_finite() {
            assert_eq!(E4M3::from_f32(a.to_f32()), a, "{a:?} is {}", a.to_f32());
        }
        if b.to_f32().is_finite() {
            assert_eq!(E5M2::from_f32(b.to_f32()), b, "{b:?} is {}", b.to_f32());
        }
    }
}

#[test]
fn float8_numbers_have_the_values_of_the_specification() {
    assert_eq!(E4M3(0x7e).to_f32(), 448.0);
    assert_eq!(E4M3(0x08).to_f32(), 2f32.powi(-6));
    assert_eq!(E4M3(0x01).to_f32(), 2f32.powi(-9));
    assert!(E4M3(0x7f).to_f32().is_nan());
    assert_eq!(E5M2(0x7b).to_f32(), 57344.0);
    assert_eq!(E5M2(0x01).to_f32(), 2f32.powi(-16));
    assert_eq!(E5M2(0xfc).to_f32(), f32::NEG_INFINITY);
    assert!(E5M2(0x7d).to_f32().is_nan());
}

#[test]
fn float8_conversions_round_to_even_and_saturate() {
    assert_eq!(E4M3::from_f32(1.0625), E4M3::from_f32(1.0), "a tie goes to the even neighbour");
    assert_eq!(E4M3::from_f32(1.1875), E4M3::from_f32(1.25));
    assert_eq!(E4M3::from_f32(1e9), E4M3(0x7e));
    assert_eq!(E4M3::from_f32(f32::NEG_INFINITY), E4M3(0xfe));
    assert_eq!(E5M2::from_f32(f32::INFINITY), E5M2(0x7b));
    assert_eq!(E4M3::from_f32(2f32.powi(-11)), E4M3(0), "half of the smallest number goes to zero");
    assert_eq!(E4M3::from_f32(f32::NAN), E4M3(0x7f));
}

#[test]
fn reductions_work_on_many_elements_and_leave_a_part_of_one_alone() {
    let sum = reduction(DataType::F32, Operator::Sum, 0);
    let ones: Vec<u8> = [1f32; 5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut into = ones.clone();
    into.extend([7, 7]);
    let mut from = ones;
    from.extend([9, 9]);
    sum.accumulate(&mut into, &from);
    let expected: Vec<u8> = [2f32; 5].iter().flat_map(|x| x.to_le_bytes()).chain([7, 7]).collect();
    assert_eq!(into, expected);
}
