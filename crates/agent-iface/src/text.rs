//! Texts of foreign origin, made safe for a log line and a terminal.

/// Replaces each control character, and each that separates lines or changes the direction of text,
/// by `?`: nobody else can forge or color a line.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || is_direction(c) { '?' } else { c }).collect()
}

/// Returns whether `c` separates lines, or changes the direction of text.
fn is_direction(c: char) -> bool {
    ('\u{2028}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cannot_be_forged() {
        assert_eq!(printable("a\nb\r\x1b[31m\u{85}\u{2028}\u{202e}\u{2066}\u{2069}é"), "a?b??[31m?????é");
    }
}
