//! The order in which a connector tries the addresses of a handle.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::interfaces::in_groups;
use crate::proto::{Addr, Handle};

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

/// Returns the addresses of a handle in the order in which they are tried from `now` on. `worked` is
/// the address by which this host was reached before, `local` are the addresses of this host.
pub(super) fn in_order(
    handle: &Handle,
    local: impl Iterator<Item = Addr> + Clone,
    worked: Option<IpAddr>,
    now: Instant,
) -> VecDeque<Target> {
    let worked = worked.map(|ip| SocketAddr::new(ip, handle.port()));
    let mut next_at = now;
    let mut targets = VecDeque::new();
    let mut push = |addr, pause| {
        targets.push_back(Target { addr, from: now, next_at });
        next_at += pause;
    };
    worked.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
    for mut group in in_groups(handle, local) {
        group.retain(|addr| Some(*addr) != worked);
        let last = group.pop();
        group.into_iter().for_each(|addr| push(addr, STAGGER));
        last.into_iter().for_each(|addr| push(addr, GROUP_STAGGER));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::super::known_addresses::KnownAddresses;
    use super::*;

    /// The addresses in the order in which they are tried, each with its time in milliseconds.
    fn order(handle: &Handle, known: &KnownAddresses) -> Vec<(String, u128)> {
        let local =
            [Addr::new([10, 0, 0, 1].into(), 24).unwrap(), Addr::new([10, 0, 1, 1].into(), 24).unwrap()];
        let now = Instant::now();
        let target = |t: Target| (t.addr.ip().to_string(), t.next_at.duration_since(now).as_millis());
        in_order(handle, local.into_iter(), known.of(handle.addrs()), now).into_iter().map(target).collect()
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
}
