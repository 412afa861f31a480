//! The content of test messages: 64-bit words, each made from the message's number and the word's
//! position. A wrong message, a wrong offset, a missing byte and a stale byte all give different
//! words. The mix is invertible, so a mismatch is diagnosed from the word itself.

/// The distance between consecutive words before mixing. It is odd, hence invertible modulo 2^64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const STEP_INVERSE: u64 = inverse(STEP);

/// How far from the expected message's number the diagnosis searches for others.
const NEIGHBOURS: u64 = 4096;

/// Newton's iteration: each round doubles the number of correct bits.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut i = 0;
    while i < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// Returns where a message's sequence starts: splitmix64 of its number.
const fn base(message: u64) -> u64 {
    let mut x = message.wrapping_add(1).wrapping_mul(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Makes a word from its position in the sequence. `unmix` is the inverse.
const fn mix(x: u64) -> u64 {
    x ^ (x >> 32)
}

const fn unmix(word: u64) -> u64 {
    word ^ (word >> 32)
}

/// Writes words that `f` makes from each position; the last word may be cut.
fn write(buf: &mut [u8], message: u64, f: impl Fn(u64) -> u64) {
    let mut x = base(message);
    let mut words = buf.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&f(x).to_le_bytes());
        x = x.wrapping_add(STEP);
    }
    let tail = words.into_remainder();
    let last = f(x).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
}

/// Fills a buffer with a message.
pub fn fill(buf: &mut [u8], message: u64) {
    write(buf, message, mix);
}

/// Fills a buffer for a message that is to arrive: every bit is the opposite of the message's,
/// which makes every missing byte visible.
pub fn poison(buf: &mut [u8], message: u64) {
    write(buf, message, |x| !mix(x));
}

/// The first wrong byte and its likely origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Position of that byte.
    pub offset: usize,
    /// The correct byte.
    pub expected: u8,
    /// The byte in its place.
    pub found: u8,
    /// The number of wrong bytes.
    pub wrong: usize,
    /// The origin of its word.
    pub origin: Origin,
}

/// The origin of a wrong word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The poison is still there.
    NeverWritten,
    /// Another position of the same message.
    Shifted {
        /// The byte's position there.
        from: usize,
    },
    /// Another message.
    Message {
        /// The message's number.
        number: u64,
        /// The byte's position there.
        from: usize,
    },
    /// The origin is unknown.
    Unknown,
}

/// Compares a buffer with a message.
pub fn check(buf: &[u8], message: u64) -> Option<Mismatch> {
    let mut x = base(message);
    let mut differ = 0;
    let words = buf.chunks_exact(8);
    let tail = words.remainder();
    for word in words {
        differ |= u64::from_le_bytes(word.try_into().expect("chunks of eight")) ^ mix(x);
        x = x.wrapping_add(STEP);
    }
    if differ == 0 && mix(x).to_le_bytes().starts_with(tail) { None } else { diagnose(buf, message) }
}

/// Finds the mismatch; the slow path of [`check`].
fn diagnose(buf: &[u8], message: u64) -> Option<Mismatch> {
    let mut expected = vec![0; buf.len()];
    fill(&mut expected, message);
    let wrong = buf.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let offset = buf.iter().zip(&expected).position(|(a, b)| a != b)?;
    Some(Mismatch {
        offset,
        expected: expected[offset],
        found: buf[offset],
        wrong,
        origin: origin_of(buf, offset, &expected, message),
    })
}

fn origin_of(buf: &[u8], offset: usize, expected: &[u8], message: u64) -> Origin {
    let start = offset / 8 * 8;
    let end = (start + 8).min(buf.len());
    if buf[offset..end].iter().zip(&expected[offset..end]).all(|(a, b)| *a == !*b) {
        return Origin::NeverWritten;
    }
    let Ok(word) = buf[start..end].try_into().map(u64::from_le_bytes) else {
        return Origin::Unknown; // Fewer than 8 bytes identify no message.
    };
    let place = |number: u64| {
        let index = unmix(word).wrapping_sub(base(number)).wrapping_mul(STEP_INVERSE);
        usize::try_from(index).ok().and_then(|i| i.checked_mul(8)).filter(|at| *at < buf.len())
    };
    if let Some(from) = place(message) {
        return Origin::Shifted { from };
    }
    let around = message.saturating_sub(NEIGHBOURS)..message.saturating_add(NEIGHBOURS);
    around
        .into_iter()
        .find_map(|number| Some(Origin::Message { number, from: place(number)? }))
        .unwrap_or(Origin::Unknown)
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { offset, expected, found, wrong, origin } = self;
        write!(f, "byte {offset} is {found:#04x}, expected {expected:#04x} ({wrong} wrong in all); ")?;
        match origin {
            Origin::NeverWritten => write!(f, "nothing was written to it"),
            Origin::Shifted { from } => write!(f, "it is this message's data from offset {from}"),
            Origin::Message { number, from } => write!(f, "it is message {number}'s data from offset {from}"),
            Origin::Unknown => write!(f, "it is not data of this run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(len: usize, number: u64) -> Vec<u8> {
        let mut buf = vec![0; len];
        fill(&mut buf, number);
        buf
    }

    proptest! {
        #[test]
        fn what_was_filled_passes_and_any_changed_byte_is_found(
            len in 1usize..300, number: u64, at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut buf = message(len, number);
            prop_assert_eq!(check(&buf, number), None);
            let at = at.index(len);
            buf[at] ^= flip;
            let bad = check(&buf, number).expect("a byte differs");
            prop_assert_eq!((bad.offset, bad.wrong, bad.found), (at, 1, buf[at]));
        }

        #[test]
        fn no_byte_of_the_poison_is_right(len in 1usize..300, number: u64) {
            let mut buf = vec![0; len];
            poison(&mut buf, number);
            let bad = check(&buf, number).expect("all differ");
            prop_assert_eq!((bad.offset, bad.wrong, bad.origin), (0, len, Origin::NeverWritten));
        }

        #[test]
        fn a_missing_part_is_found_and_named(len in 16usize..300, number: u64, from: prop::sample::Index) {
            let mut buf = message(len, number);
            let from = from.index(len);
            let mut poisoned = vec![0; len];
            poison(&mut poisoned, number);
            buf[from..].copy_from_slice(&poisoned[from..]);
            let bad = check(&buf, number).expect("a tail is missing");
            prop_assert_eq!((bad.offset, bad.wrong, bad.origin), (from, len - from, Origin::NeverWritten));
        }

        #[test]
        fn a_shift_is_named(words in 4usize..64, number: u64, by in 1usize..3) {
            let mut buf = message(words * 8, number);
            buf.copy_within(by * 8.., 0);
            let bad = check(&buf, number).expect("shifted");
            prop_assert_eq!(bad.origin, Origin::Shifted { from: by * 8 });
        }

        #[test]
        fn another_message_is_named(len in 8usize..300, number in 100u64..1 << 40, by in 1u64..90) {
            let buf = message(len, number - by);
            let bad = check(&buf, number).expect("another message");
            prop_assert_eq!(bad.origin, Origin::Message { number: number - by, from: 0 });
        }
    }

    #[test]
    fn an_empty_message_is_right() {
        assert_eq!(check(&[], 7), None);
    }
}
