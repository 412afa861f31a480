//! The connections that a fault affects: they give rails up, or wait.

use std::fmt;

use mpib_proto::RailSet;

use crate::async_events::watch::CommWatch;
use crate::stats::Reason;

/// The connections that a fault affects.
#[derive(Debug, Default, Clone)]
pub(super) struct Affected {
    /// Those with other rails.
    carrying_on: usize,
    /// Those without.
    waiting: usize,
}

impl Affected {
    /// Condemns rails of a comm, and counts the comm if it was using one of them.
    pub(super) fn condemn(&mut self, comm: &CommWatch, which: RailSet, reason: Reason, why: &str) {
        if !comm.condemn(which, reason, why).is_empty() {
            self.count(comm);
        }
    }

    /// Counts a comm that has lost a rail.
    pub(super) fn count(&mut self, comm: &CommWatch) {
        match comm.rails_in_use(|_| true) {
            RailSet::EMPTY => self.waiting += 1,
            _ => self.carrying_on += 1,
        }
    }

    /// Counts a comm that keeps its last rail.
    pub(super) fn wait(&mut self) {
        self.waiting += 1;
    }

    /// Returns whether no connection has lost a rail or waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.carrying_on + self.waiting == 0
    }
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = |n: usize| format!("{n} connection{}", if n == 1 { "" } else { "s" });
        let carrying_on = |verb| format!("{} carr{verb} on over other rails", connections(self.carrying_on));
        let carrying_on = carrying_on(if self.carrying_on == 1 { "ies" } else { "y" });
        match (self.carrying_on, self.waiting) {
            (_, 0) => f.write_str(&carrying_on),
            (0, n) => write!(f, "{} without another rail must wait for it", connections(n)),
            (_, n) => write!(f, "{carrying_on}, {} without another rail must wait for it", connections(n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_in_words() {
        let text = |carrying_on, waiting| Affected { carrying_on, waiting }.to_string();
        assert_eq!(text(0, 0), "0 connections carry on over other rails");
        assert_eq!(text(1, 0), "1 connection carries on over other rails");
        assert_eq!(text(0, 2), "2 connections without another rail must wait for it");
        assert_eq!(
            text(12, 1),
            "12 connections carry on over other rails, 1 connection without another rail must wait for it"
        );
    }
}
