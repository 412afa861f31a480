//! The order in which a connector tries the addresses of a handle.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::interfaces::{Interface, in_groups};
use crate::proto::{Handle, HostId};

/// How long an address is tried before the next one of its group is tried as well.
const STAGGER: Duration = Duration::from_millis(15);
/// How long the last address of a group is tried before the next group is tried as well, and the
/// address that worked for this host before is tried alone.
const GROUP_STAGGER: Duration = Duration::from_millis(100);

/// An address to be tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) addr: SocketAddr,
    /// Not before this.
    pub(super) from: Instant,
    /// Not before this while others are in progress.
    pub(super) next_at: Instant,
}

/// The addresses of a handle that a connector tries, in order.
#[derive(Debug)]
pub(super) struct Targets {
    pub(super) targets: VecDeque<Target>,
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
        let mut targets = VecDeque::new();
        let mut push = |addr, pause| {
            targets.push_back(Target { addr, from: now, next_at });
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

#[cfg(test)]
mod tests {
    use super::super::known_addresses::KnownAddresses;
    use super::*;
    use crate::proto::Addr;

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

    //= reach.md: the address that worked for a host is tried first
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

    //= reach.md: addresses that lead to the connector's own host are tried only if the listener is there
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
}
