//! SEARCH and FOUND: the ends search for pairs of ports that answer.

use super::QpWiring;
use super::wire::{Codec, layout, list, text, within};
use super::wire::{DecodeError, Layout, List, Nested, Optional, Reader, Text, Within, Writer};

/// The most routes of one search.
pub const MAX_SEARCH: usize = 64;

/// The maximum length of the reason of one route.
const REASON: usize = 255;

const fn reasons() -> List<(Within, Text)> {
    list(
        "reasons",
        MAX_SEARCH,
        (within("route", 0..=MAX_SEARCH as u64 - 1, "0 to 63"), text("reason", REASON)),
    )
}

layout! {
    /// One end of a search. Both ends know its routes.
    pub struct Search {
        /// The queue pair of each route. `None`: there is a reason, or the time was up.
        pub qps: Vec<Option<QpWiring>> = list("queue pairs", MAX_SEARCH, Optional("queue pair", Nested)),
        /// The routes that the end does not try, by their place, and why.
        pub reasons: Vec<(u8, String)> = reasons(),
        /// Service level of the sender of this message.
        pub service_level: u8 = within("service level", 0..=15, "0 to 15"),
        /// Traffic class of the sender of this message.
        pub traffic_class: u8 = "traffic class",
    }
}

layout! {
    /// What a search has found, by the place of each route.
    pub struct Found {
        /// The routes that have answered.
        pub answers: u64 = "answers",
        /// The routes that are still open: another search tries them.
        pub open: u64 = "open",
        /// Why the others do not work. None: nothing answers.
        pub reasons: Vec<(u8, String)> = reasons(),
    }
}
