//! The order in which a connector tries the addresses of a handle, by what it knows of both hosts.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use mpib_proto::{Addr, Handle, HostId};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::interfaces::{Interface, in_groups};

/// How long an address is tried before the next one of its group is tried as well.
const STAGGER: Duration = Duration::from_millis(15);
/// How long the last address of a group is tried before the next group is tried as well, and the
/// address that worked for this host before is tried alone.
const GROUP_STAGGER: Duration = Duration::from_millis(100);

/// An address to be tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) addr: SocketAddr,
    /// Not before this while others are in progress.
    pub(super) next_at: Instant,
}

/// The addresses of a handle that a connector tries, in order.
#[derive(Debug)]
pub(super) struct Targets {
    pub(super) targets: Vec<Target>,
    /// Those that lead to this host although the listener is on another one.
    pub(super) skipped: Vec<SocketAddr>,
}

impl Targets {
    /// Returns the addresses of a handle in the order in which they are tried from `now` on.
    /// `worked` is the address by which this host was reached before, `local` are the interfaces of
    /// this host.
    pub(super) fn of(
        handle: &Handle,
        (here, local): (HostId, &[Interface]),
        worked: Option<IpAddr>,
        now: Instant,
    ) -> Self {
        let skips = |ip| leads_here(ip, handle.host(), here, local);
        let worked = worked.filter(|ip| !skips(*ip)).map(|ip| SocketAddr::new(ip, handle.port()));
        let mut next_at = now;
        let mut targets = Vec::new();
        let mut push = |addr, pause| {
            targets.push(Target { addr, next_at });
            next_at += pause;
        };
        worked.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
        let mut skipped = Vec::new();
        for group in in_groups(handle, local.iter().map(|i| i.addr)) {
            let (out, mut group): (Vec<_>, Vec<_>) = group.into_iter().partition(|addr| skips(addr.ip()));
            skipped.extend(out);
            group.retain(|addr| Some(*addr) != worked);
            let last = group.pop();
            group.into_iter().for_each(|addr| push(addr, STAGGER));
            last.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
        }
        Self { targets, skipped }
    }
}

/// Returns whether `ip`, an address of a listener on the host `there`, leads to a process of this
/// host instead: a loopback address, an address of this host, or one of a bridge inside of this
/// host.
fn leads_here(ip: IpAddr, there: HostId, here: HostId, local: &[Interface]) -> bool {
    let own = ip.is_loopback() || local.iter().any(|i| i.addr.ip() == ip);
    let bridged = || local.iter().any(|i| i.addr.same_subnet(ip) && i.is_inner());
    own && !here.may_share_network(there) || !here.may_share_kernel(there) && bridged()
}

/// Hosts that are remembered. One more forgets all: their addresses are found again.
const HOSTS_MAX: usize = 4096;

/// By the addresses of a host's handles, the one that was the first to answer.
#[derive(Debug, Default)]
pub(super) struct KnownAddresses(Mutex<HashMap<Box<[Addr]>, IpAddr>>);

impl KnownAddresses {
    /// Returns the address of a host that was the first to answer the last time.
    pub(super) fn of(&self, host: &[Addr]) -> Option<IpAddr> {
        self.0.lock().get(host).copied()
    }

    /// Prefers the address of a host that follows this one: a connection to it broke.
    pub(super) fn prefer_next(&self, host: &[Addr], broke: IpAddr) {
        let at = host.iter().position(|addr| addr.ip() == broke);
        let next = at.and_then(|at| host.get((at + 1) % host.len()));
        next.into_iter().for_each(|next| self.add(host, next.ip()));
    }

    /// Remembers the address of a host that was the first to answer.
    pub(super) fn add(&self, host: &[Addr], answered: IpAddr) {
        let mut hosts = self.0.lock();
        if let Some(known) = hosts.get_mut(host) {
            *known = answered;
            return;
        }
        if hosts.len() == HOSTS_MAX {
            hosts.clear();
        }
        hosts.insert(host.into(), answered);
    }
}

/// Reads the id of this host. A part that cannot be read is unknown.
///
/// The boot id names the running kernel: unlike a host name, an address or a machine id, no two
/// running hosts share it, not even clones of one disk image. Containers of a host have the same
/// boot id, and may have another network: the inode of the network namespace distinguishes them.
/// NCCL hashes the same two for its own question whether two ranks share a host.
pub(super) fn here() -> HostId {
    let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return HostId::default() };
    let network = std::fs::metadata("/proc/self/ns/net").map(|meta| meta.ino().to_le_bytes());
    HostId { boot: hash(&[&boot]), network: network.map_or(0, |inode| hash(&[&boot, &inode])) }
}

/// Returns a hash that is never 0.
fn hash(parts: &[&[u8]]) -> u32 {
    let mut sha = Sha256::new();
    parts.iter().for_each(|part| sha.update(part));
    let digest: [u8; 32] = sha.finalize().into();
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: [u8; 4], prefix: u8) -> Interface {
        Interface { name: name.into(), index: 0, addr: Addr::new(ip.into(), prefix).unwrap() }
    }

    /// The addresses in the order in which they are tried, each with its time in milliseconds.
    fn order(handle: &Handle, known: &KnownAddresses) -> Vec<(String, u128)> {
        let local = [interface("eth0", [10, 0, 0, 1], 24), interface("eth1", [10, 0, 1, 1], 24)];
        let now = Instant::now();
        let target = |t: Target| (t.addr.ip().to_string(), t.next_at.duration_since(now).as_millis());
        let here = (HostId::default(), &local[..]);
        Targets::of(handle, here, known.of(handle.addrs()), now).targets.into_iter().map(target).collect()
    }

    //= protocol.md: the address that worked for a host is tried first
    #[test]
    fn the_address_that_worked_comes_first_and_the_others_are_staggered() {
        let addr = |ip: [u8; 4]| Addr::new(ip.into(), 24).unwrap();
        let far = addr([172, 16, 0, 9]);
        let addrs = [far, addr([10, 0, 1, 9]), addr([127, 0, 0, 1]), addr([10, 0, 0, 9])];
        let (handle, known) = (Handle::new([0; 16], 7, &addrs).unwrap(), KnownAddresses::default());
        let at = |times: [(&str, u128); 4]| times.map(|(ip, ms)| (ip.to_owned(), ms)).to_vec();
        let first = [("10.0.1.9", 0), ("10.0.0.9", 15), ("172.16.0.9", 115), ("127.0.0.1", 215)];
        assert_eq!(order(&handle, &known), at(first));
        known.add(handle.addrs(), far.ip());
        let then = [("172.16.0.9", 0), ("10.0.1.9", 100), ("10.0.0.9", 115), ("127.0.0.1", 215)];
        assert_eq!(order(&handle, &known), at(then));
        // A host with other addresses is another one.
        let other = Handle::new([0; 16], 7, &addrs[..3]).unwrap();
        assert_eq!(order(&other, &known)[0].0, "10.0.1.9");
    }

    //= protocol.md: addresses that lead to the connector's own host are tried only if the listener is there
    #[test]
    fn addresses_that_lead_to_this_host_are_for_listeners_of_this_host() {
        let local = [
            interface("lo", [127, 0, 0, 1], 8),
            interface("docker0", [172, 17, 0, 1], 16),
            interface("eth0", [10, 0, 0, 1], 24),
        ];
        let addr = |ip: [u8; 4]| Addr::new(ip.into(), 24).unwrap();
        let [far, bridge, container, own, loopback] =
            [[10, 0, 0, 9], [172, 17, 0, 1], [172, 17, 0, 2], [10, 0, 0, 1], [127, 0, 0, 1]].map(addr);
        let all = [far, bridge, container, own, loopback];
        let id = |boot, network| HostId { boot, network };
        let tried = |there: HostId| -> Vec<IpAddr> {
            let handle = Handle::new([0; 16], 7, &all).unwrap().on(there);
            let worked = Some(loopback.ip());
            let Targets { targets, skipped } =
                Targets::of(&handle, (id(1, 2), &local), worked, Instant::now());
            assert_eq!(targets.len() + skipped.len(), all.len());
            let ips = targets.iter().map(|t| t.addr.ip());
            all.iter().map(Addr::ip).filter(|ip| ips.clone().any(|t| t == *ip)).collect()
        };
        let ips = |addrs: &[Addr]| addrs.iter().map(Addr::ip).collect::<Vec<_>>();
        // Another host, a container of this host, this host, and one that is unknown.
        assert_eq!(tried(id(9, 9)), ips(&[far]));
        assert_eq!(tried(id(1, 3)), ips(&[far, container]));
        assert_eq!(tried(id(1, 2)), ips(&all));
        assert_eq!(tried(id(0, 0)), ips(&all));
    }

    #[test]
    fn the_last_answer_of_each_host_is_known_and_memory_is_bounded() {
        let addr = |n: u32| Addr::new(IpAddr::from(n.to_be_bytes()), 24).unwrap();
        let (known, ip) = (KnownAddresses::default(), |n| addr(n).ip());
        let (one, two) = ([addr(1), addr(2)], [addr(1), addr(3)]);
        assert_eq!(known.of(&one), None);
        known.add(&one, ip(1));
        known.add(&one, ip(2));
        known.add(&two, ip(1));
        assert_eq!((known.of(&one), known.of(&two)), (Some(ip(2)), Some(ip(1))));
        known.prefer_next(&one, ip(2));
        known.prefer_next(&two, ip(9));
        assert_eq!((known.of(&one), known.of(&two)), (Some(ip(1)), Some(ip(1))));
        known.prefer_next(&one, ip(1));
        assert_eq!(known.of(&one), Some(ip(2)));
        for n in 0..2 * HOSTS_MAX as u32 {
            known.add(&[addr(n + 10)], ip(n + 10));
            assert!(known.0.lock().len() <= HOSTS_MAX);
        }
    }

    #[test]
    fn this_host_has_an_id_that_stays() {
        let host = here();
        assert_eq!(host, here());
        assert!(host.boot != 0 && host.network != 0 && host.boot != host.network, "{host:?}");
    }

    #[test]
    fn unknown_hosts_may_be_the_same_and_others_are_not() {
        let id = |boot, network| HostId { boot, network };
        let share = |a: HostId, b: HostId| (a.may_share_kernel(b), a.may_share_network(b));
        assert_eq!(share(id(1, 2), id(1, 2)), (true, true));
        assert_eq!(share(id(1, 2), id(1, 3)), (true, false));
        assert_eq!(share(id(1, 2), id(4, 2)), (false, false));
        assert_eq!(share(id(1, 2), id(0, 0)), (true, true));
        assert_eq!(share(id(1, 0), id(1, 3)), (true, true));
    }
}
