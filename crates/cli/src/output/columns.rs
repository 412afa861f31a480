//! What a width has room for: columns of a table, parts of a line, words of a text. A number is
//! whole or absent.

use std::io::IsTerminal;

use mpib_host_view::peer_process;
use ratatui::text::Span;

/// Stands for what has been left out of a name or a text.
const ELLIPSIS: char = '…';

/// One column of a table. The one with the highest `rank` is the first to be left out; rank 0 stays.
pub(crate) struct Column {
    head: &'static str,
    rank: u8,
    kind: Kind,
}

impl Column {
    pub(crate) const fn new(head: &'static str, rank: u8, kind: Kind) -> Self {
        Self { head, rank, kind }
    }
}

/// How a column uses its width.
pub(crate) enum Kind {
    /// At the right, never cut; of this width or wider.
    Number(usize),
    /// At the left, never cut; of this width or wider.
    Word(usize),
    /// At the left, of the second width, or wider if there is room; cut to the first one if need be.
    Name(usize, usize),
    /// Like `Name`, and takes what is left.
    Rest(usize),
}

/// The columns that are shown, with their widths, and how far they are from each other.
pub(crate) struct Fitted<'a, const N: usize> {
    shown: Vec<(usize, &'a Column, usize)>,
    gap: usize,
}

/// Returns the columns of the terminal; very many if stdout is none.
pub(crate) fn terminal_width() -> usize {
    let size = || ratatui::crossterm::terminal::size().ok().map(|(columns, _)| columns.into());
    std::io::stdout().is_terminal().then(size).flatten().unwrap_or(usize::from(u16::MAX))
}

/// Returns the columns of these rows that fit into a width, so far from each other.
pub(crate) fn fit<'a, const N: usize>(
    columns: &'a [Column; N],
    rows: &[&[String; N]],
    width: usize,
    gap: usize,
) -> Fitted<'a, N> {
    let longest = |i: usize, column: &Column| {
        let cells = rows.iter().map(|row| columns_of(&row[i])).max().unwrap_or(0);
        cells.max(columns_of(column.head))
    };
    let least = |(i, column): (usize, &'a Column)| match column.kind {
        Kind::Number(usual) | Kind::Word(usual) => (i, column, longest(i, column).max(usual)),
        Kind::Name(least, _) | Kind::Rest(least) => (i, column, least),
    };
    let mut shown: Vec<_> = columns.iter().enumerate().map(least).collect();
    let needed = |shown: &[(usize, &Column, usize)]| {
        shown.iter().map(|(.., width)| width + gap).sum::<usize>().saturating_sub(gap)
    };
    while needed(&shown) > width
        && let Some(place) = (0..shown.len()).max_by_key(|place| shown[*place].1.rank)
        && shown[place].1.rank > 0
    {
        shown.remove(place);
    }
    let mut rest = width.saturating_sub(needed(&shown));
    for (i, column, width) in &mut shown {
        if let Kind::Name(_, usual) = column.kind {
            let more = longest(*i, column).max(usual).saturating_sub(*width);
            *width += more.min(rest);
            rest -= more.min(rest);
        }
    }
    for (_, column, width) in &mut shown {
        if matches!(column.kind, Kind::Rest(_)) {
            *width += std::mem::take(&mut rest);
        }
    }
    Fitted { shown, gap }
}

impl<const N: usize> Fitted<'_, N> {
    /// Returns the line above the rows.
    pub(crate) fn head(&self) -> String {
        self.line(|_, column| column.head.to_owned())
    }

    /// Returns the line of a row.
    pub(crate) fn row(&self, cells: &[String; N]) -> String {
        self.line(|i, _| cells[i].clone())
    }

    fn line(&self, cell: impl Fn(usize, &Column) -> String) -> String {
        let shown = |(i, column, width): &(usize, &Column, usize)| {
            let text = cut(&cell(*i, column), *width);
            let padding = " ".repeat(width - columns_of(&text).min(*width));
            match column.kind {
                Kind::Number(_) => padding + &text,
                _ => text + &padding,
            }
        };
        self.shown.iter().map(shown).collect::<Vec<_>>().join(&" ".repeat(self.gap))
    }
}

/// Returns the host and process of a peer's name, such as `192.0.2.2:48129 (node7, pid 17999)`.
pub(crate) fn peer(name: &str) -> String {
    peer_process(name).map_or_else(|| name.to_owned(), |(host, pid)| format!("{host}/{pid}"))
}

/// Joins the parts of a line that fit into a width. The one with the highest rank is the first to be
/// left out.
pub(crate) fn fit_parts(parts: &[(u8, String)], width: usize) -> String {
    let mut shown: Vec<_> = parts.iter().filter(|(_, text)| !text.is_empty()).collect();
    let needed = |shown: &[&(u8, String)]| {
        shown.iter().map(|(_, text)| columns_of(text) + 2).sum::<usize>().saturating_sub(2)
    };
    while needed(&shown) > width
        && let Some(place) = (0..shown.len()).max_by_key(|place| shown[*place].0)
    {
        shown.remove(place);
    }
    shown.into_iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("  ")
}

/// Cuts a text behind its last word that fits.
pub(crate) fn cut_words(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let ends = text.match_indices(' ').map(|(at, _)| &text[..at]);
    let fitting = ends.take_while(|words| columns_of(words) + 2 <= width).last();
    fitting.map_or_else(String::new, |words| format!("{words} {ELLIPSIS}"))
}

/// Cuts a name. The number at its end stays: the process of a peer, the number of a port.
fn cut(name: &str, width: usize) -> String {
    if columns_of(name) <= width {
        return name.to_owned();
    }
    let tail = name.rfind(['/', ':']).map_or("", |at| &name[at..]);
    let tail = if columns_of(tail) + 2 <= width { tail } else { "" };
    let room = width.saturating_sub(columns_of(tail) + 1);
    let mut head = String::new();
    for c in name.chars() {
        head.push(c);
        if columns_of(&head) > room {
            head.pop();
            break;
        }
    }
    let head = head.trim_end_matches(|c: char| c.is_ascii_digit());
    format!("{head}{ELLIPSIS}{tail}")
}

/// Returns the columns of a terminal that a text takes.
fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_short() {
        assert_eq!(peer("192.0.2.2:48129 (node7, pid 17999)"), "node7/17999");
        assert_eq!(peer("unknown"), "unknown");
    }

    #[test]
    fn names_are_cut_between_their_numbers() {
        for (name, width, shown) in [
            ("node7/17999", 11, "node7/17999"),
            ("node17/17999", 11, "node…/17999"),
            ("a-long-host-name/17999", 12, "a-lon…/17999"),
            ("rocep1s0f0:1", 10, "rocep1s…:1"),
            ("trainer-of-mine", 8, "trainer…"),
            ("a/4294967295", 8, "a/…"),
            ("日本語/17", 7, "日…/17"),
        ] {
            assert_eq!(cut(name, width), shown, "{name} {width}");
        }
        assert_eq!(cut_words("since 01:02:03: the link went down", 20), "since 01:02:03: …");
    }
}
