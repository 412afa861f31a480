//! What stands first in the text for people: the verdict, and every failure in a few lines.

use nccl_net_mpib_agent_iface::doctor::{Check, Level};

use super::{
    Verdict,
    text::{level, printable, with_code},
};
use crate::output::{
    colour::{BAD, GOOD, WARN, paint},
    table::{Table, left},
    units::counted,
};

/// Most lines of verdict and failures in a file. A terminal may wrap them.
const LINES: usize = 5;
/// Most bytes of a failure's text here.
const SHORT: usize = 240;
/// Most failures of one kind that are shown here.
const SHOWN: usize = 3;

/// The first lines.
pub(super) struct Head {
    pub(super) text: String,
    /// Whether the failures are whole: nothing is cut or left out.
    pub(super) is_whole: bool,
}

/// The failures of one kind.
struct Kind<'a> {
    id: &'a str,
    failures: Vec<&'a Check>,
}

impl Head {
    /// Makes the lines of a host. `place` stands in front of the verdict.
    pub(super) fn of(place: &str, verdict: Verdict, checks: &[Check]) -> Self {
        let mut kinds: Vec<Kind<'_>> = Vec::new();
        for check in checks.iter().filter(|check| check.level == Level::Fail) {
            match kinds.iter_mut().find(|kind| kind.is_of(check)) {
                Some(kind) => kind.failures.push(check),
                None => kinds.push(Kind { id: &check.id, failures: vec![check] }),
            }
        }
        let is_whole = kinds.iter().all(Kind::is_whole);
        Self { text: self::verdict(place, verdict, checks) + &failures(&kinds), is_whole }
    }
}

/// Formats the verdict with the number of its reasons. `place` stands in front of it.
pub(super) fn verdict(place: &str, verdict: Verdict, checks: &[Check]) -> String {
    let count = |level| checks.iter().filter(|c| c.level == level).count();
    let why = match verdict {
        Verdict::Usable => String::new(),
        Verdict::Losses => format!(": {}", counted(count(Level::Warn), "warning")),
        Verdict::NotUsed => ": NCCL would not open the plugin".into(),
        Verdict::Unusable => format!(": {}", counted(count(Level::Fail), "failure")),
    };
    format!("{place}{}{why}\n", verdict.painted())
}

impl Verdict {
    /// Returns the word in its colour.
    pub(super) fn painted(self) -> String {
        let style = match self {
            Self::Usable => GOOD,
            Self::Losses => WARN,
            Self::NotUsed | Self::Unusable => BAD,
        };
        paint(style, self.word())
    }
}

/// Formats a row for each kind, with what to do; in one line if there are many, and the last ones
/// together if there are more.
fn failures(kinds: &[Kind<'_>]) -> String {
    let room = LINES - 1;
    let arrow = if kinds.len() * 2 > room { " -> " } else { "\n-> " };
    let mut table = Table::new([left("").least(4), left("").least(9), left("")]);
    let alone = if kinds.len() > room { room - 1 } else { kinds.len() };
    let (first, others) = kinds.split_at(alone);
    for kind in first {
        let remedy = kind.remedy();
        let remedy = if remedy.is_empty() { remedy } else { format!("{arrow}{remedy}") };
        table.row([level(Level::Fail), kind.id.to_owned(), kind.text() + &remedy]);
    }
    if !others.is_empty() {
        let of = |kind: &Kind<'_>| match kind.remedy() {
            remedy if remedy.is_empty() => format!("{}: {}", kind.id, kind.text()),
            remedy => format!("{}: {} -> {remedy}", kind.id, kind.text()),
        };
        let all: Vec<String> = others.iter().map(of).collect();
        table.row([level(Level::Fail), "others".into(), all.join("; ")]);
    }
    table.text()
}

impl Kind<'_> {
    /// Whether a failure is of this kind.
    fn is_of(&self, check: &Check) -> bool {
        self.id == check.id && self.failures[0].code == check.code
    }

    /// Returns the texts of the first failures with their code, and the number of all if there are
    /// several.
    fn text(&self) -> String {
        let shown: Vec<String> = self.failures.iter().take(SHOWN).map(|check| short(&check.text)).collect();
        let text = match self.failures.len() {
            1 => shown.concat(),
            n if n <= SHOWN => format!("{n}: {}", shown.join("; ")),
            n => format!("{n}: {}; and {} more", shown.join("; "), n - SHOWN),
        };
        with_code(text, self.failures[0])
    }

    /// Returns what to do about them, each remedy once.
    fn remedy(&self) -> String {
        let mut all: Vec<String> = Vec::new();
        for remedy in self.failures.iter().take(SHOWN).filter_map(|check| check.remedy.as_ref()) {
            let remedy = printable(remedy);
            if !all.contains(&remedy) {
                all.push(remedy);
            }
        }
        all.join("; ")
    }

    fn is_whole(&self) -> bool {
        self.failures.len() <= SHOWN && self.failures.iter().all(|check| check.text.len() <= SHORT)
    }
}

/// Cuts a text between words.
pub(super) fn short(text: &str) -> String {
    let text = printable(text);
    if text.len() <= SHORT {
        return text;
    }
    let end = (0..=SHORT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let end = text[..end].rfind(' ').unwrap_or(end);
    format!("{} …", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(checks: Vec<Check>) -> (Vec<String>, bool) {
        let verdict = Verdict::of(&checks);
        let head = Head::of("", verdict, &checks);
        let text = anstream::adapter::strip_str(&head.text).to_string();
        (text.lines().map(str::to_owned).collect(), head.is_whole)
    }

    fn fail(id: &str, text: &str) -> Check {
        Check::new(id, Level::Fail, text).remedy(format!("mend {id}"))
    }

    //= doctor.md: verdict and failures stand in the first five lines
    #[test]
    fn every_failure_stands_in_the_first_five_lines() {
        let ids = ["a", "b", "c", "d", "e", "f"];
        for kinds in 0..=ids.len() {
            for of_each in [1, 2, 9] {
                let mut checks =
                    vec![Check::new("verbs", Level::Ok, "good"), Check::new("rates", Level::Warn, "bad")];
                for id in &ids[..kinds] {
                    checks.extend((0..of_each).map(|i| fail(id, &format!("{id}{i} is broken"))));
                }
                let (lines, is_whole) = lines(checks);
                assert!(lines.len() <= LINES, "{lines:#?}");
                let text = lines.join("\n");
                for id in &ids[..kinds] {
                    assert!(text.contains(&format!("{id}0 is broken")), "{id}: {text}");
                    assert_eq!(text.matches(&format!("mend {id}")).count(), 1, "{id}: {text}");
                    assert_eq!(text.contains("; and 6 more"), of_each == 9, "{text}");
                }
                assert_eq!(is_whole, of_each < 9 || kinds == 0);
                let verdict = match kinds * of_each {
                    0 => "usable with losses: 1 warning".to_owned(),
                    1 => "unusable: 1 failure".into(),
                    n => format!("unusable: {n} failures"),
                };
                assert_eq!(lines[0], verdict);
            }
        }
    }

    #[test]
    fn one_failure_has_its_remedy_in_the_next_line() {
        let (found, is_whole) = lines(vec![fail("settings", "a\nb")]);
        assert_eq!(
            found,
            ["unusable: 1 failure", "fail  settings   a b [MPIB-224]", "                 -> mend settings"]
        );
        assert!(is_whole);
        let (found, is_whole) = lines(vec![fail("devices", &"wörd ".repeat(100))]);
        assert!(
            found[1].ends_with("wörd … [MPIB-225]") && found[1].len() < SHORT + 40 && !is_whole,
            "{found:?}"
        );
    }
}
