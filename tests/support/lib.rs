//! What the tests of the whole plugin share: a process for each test, every version's C table,
//! peers, agents, hosts in network namespaces, and a peer that breaks the protocol.
//!
//! The suites are the folders of `tests/suites`, one binary for each area.

#![allow(missing_docs, reason = "only the tests of this repository use it")]

// No test sees its host.
extern crate mpib_test_env as _;
// The verbs library of every test.
extern crate softverbs as _;

pub mod agent;
pub mod code;
pub mod env;
pub mod holdings;
pub mod hosts;
pub mod log;
pub mod memory;
pub mod misbehaving_peer;
pub mod one_sided;
pub mod pair;
pub mod paths;
pub mod peer;
pub mod process;
pub mod profiled;
pub mod proxy;
pub mod raw;
pub mod recorder;
pub mod remote_peer;
pub mod rma;
pub mod rng;
pub mod stats;
pub mod sys;
pub mod table;
pub mod vdevices;

pub use code::Code;
pub use env::{BY_SPEED, NO_PINGS, NO_WAIT, SHORT, SPLIT_ALL, TWO_RAILS, mpib, set, two_adapters};
pub use process::{has_srq, is_child, isolated, isolated_with, provider, with_and_without_srq};
pub use sys::{PEERMEM, with_sys};
