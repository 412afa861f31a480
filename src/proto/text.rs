//! Texts of foreign origin, made safe for a log line.

/// Replaces each control character by `?`: no peer can forge or color a line.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_direction(c) { '?' } else { c }).collect()
}

/// Returns whether `c` separates lines, or changes the direction of text.
fn is_direction(c: char) -> bool {
    ('\u{2028}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
}

/// Returns the longest head of `text` with at most `limit` bytes.
pub(crate) fn head(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_cannot_be_forged() {
        assert_eq!(printable("a\nb\r\x1b[31m\u{85}\u{2028}\u{202e}\u{2066}\u{2069}é"), "a?b??[31m?????é");
    }

    proptest! {
        #[test]
        fn a_head_is_as_long_as_it_may_be(text: String, limit in 0usize..40) {
            let head = head(&text, limit);
            prop_assert!(text.starts_with(head) && head.len() <= limit);
            // The next character does not fit.
            let next = text[head.len()..].chars().next().map_or(limit + 1, |c| head.len() + c.len_utf8());
            prop_assert!(next > limit);
        }
    }
}
