//! The identity of a host in a handle.

/// The kernel and the network namespace of a process.
///
/// The two parts are separate because they answer different questions: a loopback address leads to
/// the listener only within its network namespace, while the bridges of a host also join namespaces
/// (containers) of the same kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostId {
    /// A hash of the kernel's boot id; 0 if it is unknown.
    pub boot: u32,
    /// A hash of boot id and network namespace; 0 if it is unknown.
    pub network: u32,
}

impl HostId {
    /// Returns whether processes with these ids may share a kernel: unknown ids may.
    pub fn may_share_kernel(self, other: Self) -> bool {
        may_be_same(self.boot, other.boot)
    }

    /// Returns whether processes with these ids may share a network namespace: unknown ids may.
    pub fn may_share_network(self, other: Self) -> bool {
        self.may_share_kernel(other) && may_be_same(self.network, other.network)
    }
}

fn may_be_same(a: u32, b: u32) -> bool {
    a == b || a == 0 || b == 0
}
