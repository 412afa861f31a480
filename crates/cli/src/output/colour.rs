//! Colours. Texts have them always: [`super::print`] removes them where they are not wanted.

use anstyle::{AnsiColor, Style};

/// As it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Worth knowing.
pub const NOTE: Style = AnsiColor::Cyan.on_default();
/// Something is lost.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// It does not work.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Colours a text.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colour_ends_with_its_text() {
        assert_eq!(paint(WARN, "warn"), "\x1b[33mwarn\x1b[0m");
    }
}
