//! `mpib explain`: what a code or a setting means. The codes are those of their table, the settings
//! those of the manual's table, which the plugin's table of settings makes.

use clap::Args;
use nccl_net_mpib_agent_iface::codes::Code;

use crate::failure::{Failure, Kind};
use crate::output::{self, printable, table::paragraph};

/// The page with the settings.
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
    let settings = CONFIGURATION.split_once("<!-- settings -->")?.1.split_once("<!-- end of settings -->")?.0;
    let mut sections = settings.split("### ").map(|section| section.trim().split("\n\n"));
    let (head, mut paragraphs) = sections.find_map(|mut paragraphs| {
        paragraphs.next().filter(|head| head.eq_ignore_ascii_case(name)).map(|head| (head, paragraphs))
    })?;
    let line = |paragraph: &str| plain(&paragraph.replace('\n', " "));
    let values = line(paragraphs.next()?);
    let mut out = paragraph(0, &format!("{head}: {}", values.trim_end_matches('.')));
    paragraphs.for_each(|text| out += &paragraph(2, &line(text)));
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
