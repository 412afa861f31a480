//! How the kernel runs a process.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the kernel runs a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It runs, or sleeps until something happens.
    #[default]
    Alive,
    /// In a call of the kernel that no signal ends.
    Uninterruptible,
    /// By a signal.
    Stopped,
    /// By a debugger.
    Traced,
    /// It has ended, and its parent has not waited for it.
    Zombie,
    /// There is no such process here.
    Absent,
}

impl State {
    /// Returns the state of a process.
    pub fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(Self::Absent, |stat| Self::parse(&stat))
    }

    /// Reads the letter behind the name, which may have brackets and spaces in it.
    fn parse(stat: &str) -> Self {
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        match rest.trim_start().chars().next() {
            Some('D') => Self::Uninterruptible,
            Some('T') => Self::Stopped,
            Some('t') => Self::Traced,
            Some('Z') => Self::Zombie,
            Some('X' | 'x') => Self::Absent,
            _ => Self::Alive,
        }
    }

    /// Returns why a process in this state does nothing, behind "which"; `None` if it may do something.
    pub fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Alive => None,
            Self::Uninterruptible => Some("hangs in a call of the kernel (state D)"),
            Self::Stopped => Some("is stopped (state T)"),
            Self::Traced => Some("is stopped by a debugger (state t)"),
            Self::Zombie => Some("has ended (a zombie)"),
            Self::Absent => Some("is not there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_stands_behind_the_name() {
        let parse = |state: char| State::parse(&format!("12 (a) T (b) {state} 1 12 0"));
        let states = ['S', 'R', 'D', 'T', 't', 'Z', 'X'].map(parse);
        use State::*;
        assert_eq!(states, [Alive, Alive, Uninterruptible, Stopped, Traced, Zombie, Absent]);
        assert_eq!((State::of(std::process::id()), State::of(u32::MAX)), (Alive, Absent));
    }
}
