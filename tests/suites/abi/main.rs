//! The tables as NCCL uses them: the exported file, misuse of the interface, several inits, forks.

mod argument_checks;
mod exports;
mod fork;
mod inits;
mod interface;
#[path = "../../../versions/tests/common/net.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of the adapters use the rest")]
mod net;
