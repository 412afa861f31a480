//! Mutated inputs, the same ones for the same seed: for toolchains that have no libFuzzer.

use mpib_tests::rng::Rng;

/// Numbers near the limits of their types.
const EDGES: [u64; 12] = [0, 1, 7, 8, 63, 64, 127, 128, 255, 0xffff, 0xffff_ffff, u64::MAX];
/// Most bytes of a mutated input.
const MAX_LEN: usize = 4096;

/// Returns one of the inputs, changed in one to four places.
pub fn mutate(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut data = inputs[rng.below(inputs.len())].clone();
    for _ in 0..=rng.below(4) {
        change(&mut data, &inputs[rng.below(inputs.len())], rng);
    }
    data.truncate(MAX_LEN);
    data
}

fn change(data: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let at = rng.below(data.len() + 1);
    let until = at + rng.below((data.len() - at).min(16) + 1);
    match rng.below(8) {
        0 => data.truncate(at),
        1 => drop(data.drain(at..until)),
        2 => data.insert(at, rng.draw() as u8),
        3 => data.extend_from_within(at..until),
        // The end of another input.
        4 => {
            let from = rng.below(other.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&other[from..]);
        }
        5 => {
            let width = rng.pick(&[1, 2, 4, 8]);
            let bytes = rng.pick(&EDGES).to_le_bytes();
            data[at..].iter_mut().zip(&bytes[..width]).for_each(|(place, byte)| *place = *byte);
        }
        6 => data[at..until].iter_mut().for_each(|byte| *byte = rng.draw() as u8),
        _ => data[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << rng.below(8)),
    }
}
