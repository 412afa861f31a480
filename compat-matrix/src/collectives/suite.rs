//! The communicators of `--suite`, which the matrix runs too.

use softcuda::{
    DataType,
    rank::{Collective, OneSided, Operator, Test},
};

use super::fault::Fault;
use super::plan::{Net, Plan, Variant, Window};

/// Elements of each rank in a check of the matrix: LL, and more than one chunk of LL128 or Simple.
const COUNTS: [usize; 2] = [1, 300_007];
/// Elements of each rank while rails fail: 4 MB of floats, in many messages.
const LARGE: [usize; 1] = [1_000_003];
/// All of the one-sided tests.
const ONE_SIDED: [OneSided; 3] = [OneSided::Put, OneSided::Signal, OneSided::Gin];
/// Channels of [`Entry::Channels`].
const CHANNELS: u32 = 32;

/// A communicator of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Default,
    Fused,
    Mpib,
    SlowRail,
    SlowRails,
    TwoHosts,
    GpuDirect,
    Registered,
    OneSided,
    OneSidedFlush,
    OneSidedInside,
    OneSidedLinkDown,
    OneSidedControl,
    GinControl,
    CabledWindow,
    NoWindow,
    Channels,
    Ras,
    Killed,
    LinkDown,
    NoRail,
    /// The control, which is not a part of `--suite`.
    Socket,
}

/// Returns the elements of each rank: `usual` if no rail fails.
pub(super) fn counts<'a>(variant: &Variant, usual: &'a [usize]) -> &'a [usize] {
    if variant.fault.is_some() { &LARGE } else { usual }
}

impl Entry {
    /// The entries of `--suite`.
    pub(super) const SUITE: [Self; 21] = [
        Self::Default,
        Self::Fused,
        Self::Mpib,
        Self::SlowRail,
        Self::SlowRails,
        Self::TwoHosts,
        Self::GpuDirect,
        Self::Registered,
        Self::OneSided,
        Self::OneSidedFlush,
        Self::OneSidedInside,
        Self::OneSidedLinkDown,
        Self::OneSidedControl,
        Self::GinControl,
        Self::CabledWindow,
        Self::NoWindow,
        Self::Channels,
        Self::Ras,
        Self::Killed,
        Self::LinkDown,
        Self::NoRail,
    ];

    /// Returns the network of the communicator, and its ranks.
    pub(super) fn communicator(self) -> (Net, Variant) {
        let plain = Variant::PLAIN;
        let two_hosts = || ["a", "a", "b", "b"].map(str::to_owned).to_vec();
        let direct = || Variant { gpudirect: true, dma_buf: true, capability: 80, ..Variant::PLAIN };
        let window = |network| Variant {
            window: Some(network),
            gpudirect: true,
            dma_buf: true,
            vmm: true,
            ..Variant::PLAIN
        };
        let one_sided = |network| Variant { one_sided: ONE_SIDED.to_vec(), ..window(network) };
        match self {
            Self::Default => (Net::Default, plain),
            Self::Fused => (Net::Fused, plain),
            Self::Mpib => (Net::Mpib, plain),
            Self::SlowRail => (Net::Mpib, Variant { slow: true, ..plain }),
            Self::SlowRails => (Net::Mpib, Variant { slow_rails: true, ..plain }),
            Self::TwoHosts => (Net::Mpib, Variant { ranks: 4, hosts: two_hosts(), vmm: true, ..plain }),
            Self::GpuDirect => (Net::Mpib, direct()),
            Self::Registered => (Net::Mpib, Variant { register: true, ..direct() }),
            // What the second rail carries comes later than a signal over the first one would.
            Self::OneSided => (Net::Mpib, Variant { ranks: 4, slow: true, ..one_sided(Window::Plugin) }),
            Self::OneSidedFlush => (Net::Mpib, Variant { capability: 80, ..one_sided(Window::Plugin) }),
            Self::OneSidedInside => {
                (Net::Mpib, Variant { ranks: 4, hosts: two_hosts(), ..one_sided(Window::Plugin) })
            }
            Self::OneSidedLinkDown => {
                (Net::Mpib, Variant { fault: Some(Fault::LinkDown), ..one_sided(Window::Plugin) })
            }
            Self::OneSidedControl => {
                let one_sided = vec![OneSided::Put, OneSided::Signal];
                (Net::Mpib, Variant { one_sided, ..window(Window::Ib) })
            }
            Self::GinControl => (Net::Mpib, Variant { one_sided: vec![OneSided::Gin], ..window(Window::Ib) }),
            Self::CabledWindow => (Net::Default, Variant { crossed: true, ..window(Window::Host) }),
            Self::NoWindow => (Net::Mpib, window(Window::Off)),
            Self::Channels => (Net::Mpib, Variant { channels: Some(CHANNELS), ..plain }),
            Self::Ras => (Net::Mpib, Variant { ras: true, profiler: true, ..plain }),
            Self::Killed => (Net::Mpib, Variant { killed: Some(1), ..plain }),
            Self::LinkDown => (Net::Mpib, Variant { fault: Some(Fault::LinkDown), ..plain }),
            Self::NoRail => (Net::Mpib, Variant { fault: Some(Fault::NoRail), ..plain }),
            Self::Socket => (Net::Socket, plain),
        }
    }

    /// Returns the communicator with these collectives, as the matrix runs it.
    pub(crate) fn plan(self, collectives: &[Collective]) -> Plan {
        let (net, variant) = self.communicator();
        let test = |collective, count| Test {
            collective,
            element: DataType::F32,
            operator: Operator::Sum,
            count,
            times: 1,
        };
        let counts = counts(&variant, &COUNTS);
        let tests = collectives.iter().flat_map(|c| counts.iter().map(|count| test(*c, *count)));
        Plan { net, variant, tests: tests.collect(), rates: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_of_a_check_has_both_sizes() {
        let plan = Entry::TwoHosts.plan(&[Collective::AllReduce, Collective::SendRecv]);
        let tests: Vec<_> = plan.tests.iter().map(|test| (test.collective, test.count)).collect();
        let both = |collective| COUNTS.map(|count| (collective, count));
        assert_eq!(tests, [both(Collective::AllReduce), both(Collective::SendRecv)].concat());
        assert_eq!(plan.variant.hosts(), ["a", "a", "b", "b"]);
    }

    #[test]
    fn only_the_control_does_without_the_plugin() {
        let network = |entry: Entry| entry.plan(&[]).network();
        assert_eq!(Entry::SUITE.map(network), ["MPIB"; 21]);
        assert_eq!(network(Entry::Socket), "Socket");
    }
}
