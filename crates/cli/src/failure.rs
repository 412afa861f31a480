//! Failures in words, and the exit code of each kind.

use std::{fmt, process::ExitCode};

use nccl_net_host::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of failure. Each has its own exit code for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The tool itself failed: no memory, no socket, no process.
    Tool,
    /// The options contradict each other or do not fit this plugin.
    Usage,
    /// The plugin cannot be loaded or lacks the requested table.
    Load,
    /// A call of the plugin returned an error.
    Call,
    /// Wrong data or a wrong size arrived.
    Data,
    /// Nothing completed for too long, or a call did not return.
    Timeout,
    /// A worker process died.
    Died,
    /// The other end failed, or the connection to it was lost.
    Peer,
    /// The reader of stdout has closed it: there is nothing left to do, and nothing to report.
    #[serde(skip)]
    Closed,
}

impl Kind {
    /// Returns the process's exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Tool => 1,
            Self::Usage => 2,
            Self::Load => 3,
            Self::Call => 4,
            Self::Data => 5,
            Self::Timeout => 6,
            Self::Died => 7,
            Self::Peer => 8,
        }
    }

    /// Returns the rank among failures of several ends with one cause: the lowest rank is the
    /// cause.
    pub const fn rank(self) -> u8 {
        match self {
            Self::Died => 0,
            Self::Data => 1,
            Self::Usage | Self::Load => 2,
            Self::Call => 3,
            Self::Timeout => 4,
            Self::Tool => 5,
            Self::Peer => 6,
            Self::Closed => 7,
        }
    }
}

/// Exit codes for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  everything requested was measured, and every checked byte was right
  1  the tool itself failed (memory, sockets, processes)
  2  invalid options, alone or with this plugin
  3  the plugin cannot be loaded, lacks the table, or has no such device
  4  a call of the plugin returned an error
  5  wrong data or a wrong size arrived
  6  nothing completed for --timeout seconds, or a call did not return
  7  a worker process died (signal or exit status in the message)
  8  the other end failed, or the connection to it was lost";

/// A failure with its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, JsonSchema)]
pub struct Failure {
    /// The kind, which determines the exit code.
    pub kind: Kind,
    /// What failed, why, and what to do.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// Makes a failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Puts the place of the failure in front of the text.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Prints the failure on stderr.
    pub fn print(&self) {
        if self.kind != Kind::Closed {
            self.message.lines().for_each(|line| eprintln!("mpib: {}", printable(line)));
        }
    }

    /// Prints the failure; returns the process's exit code.
    pub fn end(&self) -> ExitCode {
        self.print();
        self.exit_code()
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.exit_code())
    }
}

/// Prints the failure, if it is one; returns the process's exit code.
pub fn ended(outcome: Result<(), Failure>) -> ExitCode {
    outcome.map_or_else(|failure| failure.end(), |()| ExitCode::SUCCESS)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::File { .. } | Error::Load { .. } | Error::NoFunction(_) => Kind::Load,
            Error::Unsupported(_) => Kind::Usage,
            Error::Misuse(_) => Kind::Tool,
            Error::TimedOut { .. } => Kind::Timeout,
            _ => Kind::Call,
        };
        let advice = match &error {
            Error::Load { reason, .. } => missing_library(reason),
            _ => None,
        };
        let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
        Self::new(kind, format!("{error}{advice}"))
    }
}

/// Puts a text on one line without control characters, those of the direction of text included: it
/// may come from another machine.
pub fn printable(text: &str) -> String {
    let controls = |c: char| {
        let directs = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() || directs
    };
    text.chars().map(|c| if controls(c) { ' ' } else { c }).collect()
}

/// Returns what to do if the dynamic linker did not find a library that the plugin needs.
fn missing_library(reason: &str) -> Option<String> {
    let (before, _) = reason.split_once(": cannot open shared object file")?;
    // The plugin's own file exists: its path has been resolved before.
    let name = before.rsplit(": ").next()?;
    Some(format!(
        "the plugin needs {name}, which is not on this system: install the package that has it; to search another \
         folder, add it to LD_LIBRARY_PATH"
    ))
}

/// Adds the failed action to an I/O error of the tool.
pub trait Context<T> {
    /// Makes a [`Kind::Tool`] failure: "cannot WHAT: why".
    fn tool(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn tool(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(Kind::Tool, format!("cannot {what}: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_control_a_terminal() {
        assert_eq!(printable("a\x1b[31m\nb\u{202e}c\u{2067}d é"), "a [31m b c d é");
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let reason = "libfoo.so.1: cannot open shared object file: No such file or directory";
        let load = |reason: String| Failure::from(Error::Load { path: "/x.so".into(), reason });
        let failure = load(reason.into());
        assert_eq!(failure.kind, Kind::Load);
        let text = failure.message;
        assert!(text.contains("needs libfoo.so.1") && text.contains("the package that has it"), "{text}");
        assert!(load(format!("dlopen: {reason}")).message.contains("needs libfoo.so.1"));
        let text = load("/x.so: undefined symbol: ibv_foo".into()).message;
        assert_eq!(text, "/x.so: dlopen failed: /x.so: undefined symbol: ibv_foo");
    }
}
