//! Lines of the log that appear once, because every connection would repeat them.

use std::collections::HashSet;
use std::net::IpAddr;

use parking_lot::Mutex;

/// Subject of a line that is logged once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// `ibv_fork_init` failed.
    ForkInit,
    /// The statistics page cannot be made.
    StatsPage,
    /// NCCL's profiler is the plugin.
    Profiler,
    /// A listener has more addresses than a handle holds.
    HandleFull,
    /// The process has more ports than a HELLO holds.
    HelloFull,
    /// Queue pairs are set up without ECE.
    NoEce,
    /// How connections receive on the adapter of this name.
    Receives(String),
    /// A port does not reach itself, so it cannot flush.
    NoLoopback(String),
    /// A device's connections with a host use a rail that NCCL did not request.
    Substituted(String, Option<IpAddr>),
    /// A rail that NCCL did not request, and the requested rail, which is under another PCI root.
    FarSubstitute(String, String),
}

/// The subjects that were logged.
#[derive(Debug, Default)]
pub(crate) struct Warned(Mutex<HashSet<Subject>>);

/// Most subjects that are remembered. No job has so many hosts; beyond it nothing is logged.
const MAX: usize = 1 << 16;

impl Warned {
    /// Returns `true` the first time that it is called for `subject`.
    pub(crate) fn once(&self, subject: Subject) -> bool {
        let mut logged = self.0.lock();
        logged.len() < MAX && logged.insert(subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_comes_once_and_their_number_is_bounded() {
        let warned = Warned::default();
        let host = |n: u32| Subject::Substituted("mlx5_0".into(), Some(IpAddr::V4(n.into())));
        for subject in [Subject::NoEce, Subject::HelloFull, host(1), host(2)] {
            assert!(warned.once(subject.clone()));
            assert!(!warned.once(subject));
        }
        let more = (3..2 * MAX as u32).filter(|n| warned.once(host(*n))).count();
        assert_eq!(more, MAX - 4);
    }
}
