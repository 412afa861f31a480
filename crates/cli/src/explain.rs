//! `mpib explain`: what a code or a setting means. The codes are those of their table, the settings
//! those of the manual's table, which the plugin's table of settings makes.

use clap::Args;
use nccl_net_mpib_agent_iface::codes::Code;

use crate::failure::{Failure, Kind};
use crate::output::{self, printable, table::paragraph};

/// The page with the table of settings.
const CONFIGURATION: &str = include_str!("../../../docs/guide/configuration.md");

/// Says what a code of a warning, a check or an alert means, or a setting
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A code such as MPIB-201, or a variable such as MPIB_SPLIT
    #[arg(value_name = "CODE|SETTING")]
    subject: String,
}

/// Prints the entry.
pub(crate) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let subject = args.subject.trim();
    let entry = Code::named(subject).map(|code| of_code(&code)).or_else(|| of_setting(subject));
    let text = entry.ok_or_else(|| {
        let text = format!(
            "{}: expected a code such as MPIB-201, or a setting such as MPIB_SPLIT; docs/guide/codes.md and \
             docs/guide/configuration.md have all of them",
            printable(subject)
        );
        Failure::new(Kind::Usage, text)
    })?;
    output::print(&text)
}

fn of_code(code: &Code) -> String {
    let mut out = paragraph(0, &format!("{code}: {}", plain(&code.subject())));
    out += &paragraph(2, &format!("why: {}", plain(code.why)));
    out += &paragraph(2, &format!("what to do: {}", plain(code.what)));
    out
}

/// Returns the entry of a setting. Case does not count.
fn of_setting(name: &str) -> Option<String> {
    let rows = CONFIGURATION.split_once("<!-- settings -->")?.1.split_once("<!-- end of settings -->")?.0;
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches("| ").trim_end_matches('|');
        line.split(" | ").map(|cell| plain(cell.trim())).collect()
    };
    // Those without the heads of the columns.
    let settings = rows.lines().filter(|line| line.trim().starts_with("| `"));
    let row = settings.map(cells).find(|row| row[0].eq_ignore_ascii_case(name))?;
    let [name, values, default, meaning, differs @ ..] = &row[..] else { return None };
    let mut out = paragraph(0, &format!("{name}: {values}; default {default}"));
    out += &paragraph(2, meaning);
    if let Some(differs) = differs.first().filter(|text| !text.is_empty()) {
        out += &paragraph(2, &format!("beside NCCL 2.32: {differs}"));
    }
    Some(out)
}

/// Returns a line of Markdown without marks of code and with the page behind each link.
pub(crate) fn plain(markdown: &str) -> String {
    let mut out = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once("](") {
        let (page, after) = link.split_once(')').unwrap_or((link, ""));
        let (before, words) = before.rsplit_once('[').unwrap_or((before, ""));
        out += before;
        // A link whose words are the page has no other address than its place there.
        out += &if page.starts_with(words) { page.to_owned() } else { format!("{words} ({page})") };
        rest = after;
    }
    (out + rest).replace(['`', '\\'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_their_pages() {
        for (markdown, text) in [
            ("no link", "no link"),
            (
                "`a`; see [reach.md](reach.md#x), then [why](stats.md).",
                "a; see reach.md#x, then why (stats.md).",
            ),
            ("one of [a, b]", "one of [a, b]"),
        ] {
            assert_eq!(plain(markdown), text);
        }
    }
}
