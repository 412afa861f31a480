//! Codes of warnings, of the checks of `mpib doctor` and of alerts: what each stands for, and what to
//! do.
//!
//! A WARN of the plugin ends in a code, such as `[MPIB-204]`, and so do the findings of `mpib doctor`
//! and the alerts of the agent's rules. `mpib explain MPIB-204` prints the entry, and
//! `docs/guide/codes.md` has all of them.
//!
//! ```
//! use nccl_net_mpib_agent_iface::codes::Code;
//!
//! let code = Code::of_log("init: no RDMA device found (does ibv_devices list one?)");
//! assert_eq!((code.to_string(), Code::named("mpib-201")), ("MPIB-201".into(), Some(code)));
//! ```

mod table;

use std::fmt;

pub use table::{GROUPS, RETIRED};

/// What stands before the number.
const PREFIX: &str = "MPIB-";

/// A code and its entry. A number belongs to one entry for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// Its number.
    pub number: u16,
    /// What it stands for.
    pub of: Of,
    /// The text names another fault, which has a code if the text has one.
    pub(crate) is_general: bool,
    /// Why it appears, in one line. May have links of Markdown.
    pub why: &'static str,
    /// What to do.
    pub what: &'static str,
}

/// What a code stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Lines of the log and findings of the doctor with this text. `…` stands for a value.
    Text(&'static str),
    /// The findings of this check of `mpib doctor` that no text explains.
    Check(&'static str),
    /// The alert rule of this name.
    Alert(&'static str),
    /// Lines of the log that no text explains.
    Others,
}

/// Codes under one heading.
pub type Group = (&'static str, &'static [Code]);

impl Code {
    /// Returns all codes.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        GROUPS.iter().flat_map(|(_, codes)| codes.iter().copied())
    }

    /// Returns the code with this name; the prefix may be left out, and case does not count.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let has_prefix = name.get(..PREFIX.len()).is_some_and(|head| head.eq_ignore_ascii_case(PREFIX));
        let number = if has_prefix { &name[PREFIX.len()..] } else { name };
        Self::all().find(|code| code.digits() == number)
    }

    /// Returns the code of a warning: the one that it ends in, else that of the cause that it names.
    #[must_use]
    pub fn of_log(text: &str) -> Self {
        let (text, code) = Self::take(text);
        code.or_else(|| Self::of_text(text)).unwrap_or(table::OTHERS)
    }

    /// Returns the code of a finding of this check.
    #[must_use]
    pub fn of_check(check: &str, text: &str) -> Option<Self> {
        Self::of_text(text)
            .or_else(|| Self::all().find(|code| matches!(code.of, Of::Check(id) if id == check)))
    }

    /// Returns the code of the alert rule of this name.
    #[must_use]
    pub fn of_alert(name: &str) -> Option<Self> {
        Self::all().find(|code| matches!(code.of, Of::Alert(of) if of == name))
    }

    /// Takes the code from the end of a text, if the text has one there.
    #[must_use]
    pub fn take(text: &str) -> (&str, Option<Self>) {
        let parts = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
        match parts.and_then(|(text, name)| Some((text, Self::named(name)?))) {
            Some((text, code)) => (text, Some(code)),
            None => (text, None),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        let fits = |code: &Self| matches!(code.of, Of::Text(wanted) if contains(text, wanted));
        let mut general = None;
        for code in Self::all().filter(fits) {
            if !code.is_general {
                return Some(code);
            }
            general = general.or(Some(code));
        }
        general
    }

    /// Returns what the code stands for, as the manual shows it.
    #[must_use]
    pub fn subject(&self) -> String {
        match self.of {
            Of::Text(text) => format!("`{text}`"),
            Of::Check(check) => format!("other findings of the check `{check}` of `mpib doctor`"),
            Of::Alert(name) => format!("alert `{name}`"),
            Of::Others => "any other WARN".into(),
        }
    }

    /// Returns the number as text.
    fn digits(&self) -> String {
        self.number.to_string()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.digits())
    }
}

/// Returns whether a text has the parts of `wanted` between the marks `…`, in their order.
fn contains(text: &str, wanted: &str) -> bool {
    let mut rest = text;
    wanted.split('…').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// Returns the tables of the manual, one for each group.
#[must_use]
pub fn manual() -> String {
    let mut out = String::new();
    for (heading, codes) in GROUPS {
        out += &format!("\n## {heading}\n\n| code | text | why | what to do |\n|---|---|---|---|\n");
        for code in *codes {
            let (anchor, subject) = (code.to_string().to_lowercase(), code.subject());
            out += &format!("| <a id=\"{anchor}\"></a>{code} | {subject} | {} | {} |\n", code.why, code.what);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_has_the_code_and_not_what_follows_from_it() {
        for (text, number) in [
            (
                "connect: no rail works to 192.0.2.7: sup:1 to sup:1: the probe did not complete in time (MPIB_PROBE",
                317,
            ),
            ("no rail works to x: a:1 to a:1: …; empty packets arrive, and those of 4096 bytes do not", 316),
            ("connect: no rail works to 192.0.2.7: an end has no rail to offer", 307),
            ("ports that cannot be used: a:1 (the port is not active)", 203),
            ("a connection has waited 60 s for a receive of node7: NCCL asks for it", 506),
            ("regMr: something that nobody has thought of", 100),
            ("no RDMA device found [MPIB-317]", 317),
        ] {
            assert_eq!(Code::of_log(text).number, number, "{text}");
        }
        assert_eq!(Code::of_check("bond", "of no known text").map(|code| code.of), Some(Of::Check("bond")));
        assert_eq!(Code::of_check("none", "of no known text"), None);
        assert_eq!(Code::of_alert("MpibRailDown").map(|code| code.number), Some(701));
    }

    #[test]
    fn a_code_has_one_name() {
        for code in Code::all() {
            assert_eq!(Code::named(&code.to_string()), Some(code));
            assert_eq!(Code::named(&code.digits()), Some(code));
        }
        for name in ["", "MPIB-", "MPIB-0201", "MPIB-99999", "201x", "ä"] {
            assert_eq!(Code::named(name), None, "{name}");
        }
    }

    #[test]
    fn a_text_ends_in_its_code() {
        let code = Code::of_log("no RDMA device found");
        assert_eq!(Code::take(&format!("it failed [{code}]")), ("it failed", Some(code)));
        for text in ["it failed", "it failed [MPIB-99999]", "[MPIB-201]", "a [b]", "]"] {
            assert_eq!(Code::take(text), (text, None));
        }
    }

    #[test]
    fn a_mark_stands_for_a_value() {
        assert!(contains("a 7 b", "a … b") && contains("a  b", "a … b") && contains("xab", "ab"));
        assert!(!contains("b 7 a", "a … b") && !contains("ab", "a … b"));
    }

    /// An entry that an earlier one hides would never be shown.
    #[test]
    fn each_text_has_its_code() {
        for code in Code::all() {
            if let Of::Text(text) = code.of {
                assert_eq!(Code::of_log(text).number, code.number, "{text}");
            }
        }
    }
}
