//! This host's addresses, in the order in which a peer should try them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use mpib_proto::{Addr, Handle, HandleError, Secret};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike, SockaddrStorage,
    bind, recv, socket,
};
use parking_lot::Mutex;

use super::options::Options;
use crate::config::Family;
use crate::error::{Error, Result};

/// Prefixes of the names of bridges and tunnels inside of a host. Every host may have their
/// addresses.
const INNER: [&str; 8] = ["docker", "virbr", "veth", "cni", "podman", "lxcbr", "flannel", "br-"];

/// An address of an interface that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// As `ip link` shows it.
    pub(crate) name: String,
    /// Its index in the network namespace; 0 if it has just been removed.
    pub(crate) index: u32,
    /// Address and prefix length.
    pub addr: Addr,
}

impl Interface {
    /// Returns whether it is a bridge or tunnel inside of a host.
    pub(super) fn is_inner(&self) -> bool {
        INNER.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

/// Reads the addresses of all interfaces that are up and running, loopback included.
pub fn interfaces() -> Result<Vec<Interface>> {
    let all = getifaddrs().map_err(|e| Error::io("getifaddrs", e.into()))?;
    let wanted = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    Ok(all
        .filter(|i| i.flags.contains(wanted))
        .filter_map(|i| {
            let (ip, mask) = (ip_of(i.address?)?, i.netmask.and_then(ip_of));
            let prefix = match mask {
                Some(IpAddr::V4(m)) => m.to_bits().leading_ones(),
                Some(IpAddr::V6(m)) => m.to_bits().leading_ones(),
                // Point to point: the address alone.
                None if ip.is_ipv4() => 32,
                None => 128,
            };
            let index = if_nametoindex(i.interface_name.as_str()).unwrap_or(0);
            Some(Interface { name: i.interface_name, index, addr: Addr::new(ip, prefix as u8)? })
        })
        .collect())
}

fn ip_of(storage: SockaddrStorage) -> Option<IpAddr> {
    // A netmask may come without a family, and then means nothing.
    storage.family()?;
    let v4 = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

/// Returns the addresses that a handle should name, the most useful first.
///
/// Without a filter these are the addresses of SOUT's own interface. With a filter, without SOUT,
/// or if that interface has no address of the family, they are all addresses in this order: as the
/// filter orders them; one of each subnet before a second one; interfaces of adapters, other
/// networks, bridges inside of the host. Loopback is last: with it two processes of one host
/// connect without a network. IPv6 link-local addresses mean nothing without an interface and are
/// left out.
pub(crate) fn reachable(interfaces: &[Interface], options: &Options<'_>) -> Result<Vec<Addr>> {
    let own = options.sout.filter(|_| options.interfaces.is_none());
    let own = own.and_then(|ip| interfaces.iter().find(|i| i.addr.ip() == ip));
    let of_sout =
        own.map_or(Vec::new(), |own| addrs(interfaces.iter().filter(|i| i.name == own.name), options));
    let addrs = if of_sout.is_empty() { addrs(interfaces.iter(), options) } else { of_sout };
    if addrs.is_empty() { Err(nothing(interfaces, options)) } else { Ok(addrs) }
}

/// Returns the useful addresses of `interfaces`, in order.
fn addrs<'a>(interfaces: impl Iterator<Item = &'a Interface> + Clone, options: &Options<'_>) -> Vec<Addr> {
    let all = ranked(interfaces.clone(), options, &[]);
    if Handle::holds(&all) { all } else { ranked(interfaces, options, &(options.adapters)()) }
}

fn ranked<'a>(
    interfaces: impl Iterator<Item = &'a Interface>,
    options: &Options<'_>,
    adapters: &[IpAddr],
) -> Vec<Addr> {
    let mut ranked: Vec<_> = interfaces
        .filter(|i| match (options.family, i.addr.ip()) {
            (Some(Family::V6), IpAddr::V4(_)) | (Some(Family::V4), IpAddr::V6(_)) => false,
            (_, IpAddr::V6(ip)) => !ip.is_unicast_link_local(),
            _ => true,
        })
        .filter_map(|i| {
            let named = options.interfaces.as_ref().map_or(Some(0), |(_, filter)| filter.rank(&i.name))?;
            Some(((i.addr.ip().is_loopback(), named), (use_of(i, adapters), i.addr.ip().is_ipv6()), i.addr))
        })
        .collect();
    ranked.sort_by_key(|(first, second, _)| (*first, *second));
    let (mut addrs, mut seen) = (Vec::new(), Vec::new());
    for (first, second, addr) in ranked {
        if !seen.iter().any(|a: &Addr| a.ip() == addr.ip()) {
            let again = seen.iter().any(|a| a.prefix() == addr.prefix() && a.same_subnet(addr.ip()));
            seen.push(addr);
            addrs.push(((first, again, second), addr));
        }
    }
    addrs.sort_by_key(|(rank, _)| *rank);
    addrs.into_iter().map(|(_, addr)| addr).collect()
}

/// Ranks an interface's network, 0 is best: one with an adapter, any other, one with only a
/// link-local address, a bridge of the host.
fn use_of(interface: &Interface, adapters: &[IpAddr]) -> u8 {
    let link_local = matches!(interface.addr.ip(), IpAddr::V4(ip) if ip.is_link_local());
    match interface.is_inner() {
        true => 3,
        false if link_local => 2,
        false => u8::from(!adapters.contains(&interface.addr.ip())),
    }
}

/// Makes a handle with the first of `addrs` that fit, but at least one of each family. Also returns
/// those that do not fit.
pub(super) fn fitted(secret: &Secret, port: u16, addrs: &[Addr]) -> Result<(Handle, Vec<Addr>), HandleError> {
    let left = |handle: &Handle| -> Vec<Addr> {
        addrs.iter().filter(|a| !handle.addrs().contains(a)).copied().collect()
    };
    let handle = Handle::new(secret.clone(), port, addrs)?;
    let out = left(&handle);
    let other = |a: &&Addr| !handle.addrs().iter().any(|b| b.ip().is_ipv4() == a.ip().is_ipv4());
    let Some(other) = out.iter().find(other) else { return Ok((handle, out)) };
    // After the first one of all.
    let mut order = addrs.to_vec();
    order.retain(|a| a != other);
    order.insert(1, *other);
    let handle = Handle::new(secret.clone(), port, &order)?;
    let out = left(&handle);
    Ok((handle, out))
}

fn nothing(interfaces: &[Interface], options: &Options<'_>) -> Error {
    let family = options.family.map_or(String::new(), |f| format!(" of NCCL_SOCKET_FAMILY={f}"));
    let there: Vec<String> = interfaces.iter().map(|i| format!("{} {}", i.name, i.addr)).collect();
    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
    match &options.interfaces {
        Some((variable, filter)) => Error::config(
            variable,
            format!("\"{filter}\""),
            format!(
                "a filter that leaves an interface that is up and has an address{family}; up are: {there}"
            ),
        ),
        None => Error::Usage(format!(
            "no interface that is up has an address{family} for the control connections; up are: {there}"
        )),
    }
}

/// A handle's addresses as a connector tries them, in groups: those of networks that this host is
/// in, the others, loopback.
pub(super) fn in_groups(handle: &Handle, local: impl Iterator<Item = Addr> + Clone) -> Vec<Vec<SocketAddr>> {
    let near = |ip: IpAddr| local.clone().any(|a| a.same_subnet(ip));
    let mut groups = vec![Vec::new(); 3];
    for ip in handle.addrs().iter().map(Addr::ip) {
        let group = if ip.is_loopback() { 2 } else { usize::from(!near(ip)) };
        groups[group].push(SocketAddr::new(ip, handle.port()));
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// The groups of rtnetlink(7) that announce changes of interfaces and of their addresses.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// The addresses of this host's interfaces.
///
/// The kernel queues the announcement of a change on the socket before the change is visible to the
/// process that made it. A look at the socket is therefore enough, and no thread is needed.
#[derive(Debug, Default)]
pub(super) struct Interfaces(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    socket: OwnedFd,
    all: Arc<[Interface]>,
}

impl Interfaces {
    /// Returns the addresses of all interfaces that are up and running, loopback included.
    pub(super) fn now(&self) -> Result<Arc<[Interface]>> {
        let mut known = self.0.lock();
        if let Some(current) = &*known {
            if !current.changed() {
                return Ok(Arc::clone(&current.all));
            }
            // The announcements are read: a failure below must not leave the old addresses.
            *known = None;
        }
        // The socket is first: a change during the reading is announced on it.
        let socket = subscribe();
        let all: Arc<[Interface]> = interfaces()?.into();
        match socket {
            Ok(socket) => *known = Some(Known { socket, all: Arc::clone(&all) }),
            // Without announcements, as in some sandboxes, the addresses are read each time.
            Err(e) => tracing::debug!(target: "net", "no netlink socket, interfaces are read each time: {e}"),
        }
        Ok(all)
    }
}

fn subscribe() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS as u32))?;
    Ok(socket)
}

impl Known {
    /// Reads the announcements. Returns whether there were any, or some are lost.
    fn changed(&self) -> bool {
        let (mut changed, mut buffer) = (false, [0; 4096]);
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EAGAIN) => return changed,
                // ENOBUFS: the socket had no room for an announcement. It clears the error.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => changed = true,
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn interface(name: &str, ip: &str, prefix: u8) -> Interface {
        Interface { name: name.into(), index: 0, addr: Addr::new(ip.parse().unwrap(), prefix).unwrap() }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", 8),
            interface("lo", "::1", 128),
            interface("docker0", "172.17.0.1", 16),
            interface("br-1", "10.0.0.1", 8),
            interface("eth0", "fe80::1", 64),
            interface("eth0", "fd00::1", 64),
            interface("eth0", "10.0.0.1", 24),
            interface("ib0", "192.168.1.1", 24),
            interface("ib0", "169.254.3.4", 16),
        ]
    }

    fn options(filter: Option<&str>, family: Option<Family>) -> Options<'static> {
        let interfaces = filter.map(|f| ("MPIB_OOB_IF", f.parse().unwrap()));
        let second = Duration::from_secs(1);
        let (timeout, silence) = (second, second);
        Options { interfaces, sout: None, adapters: &Vec::new, family, timeout, silence, failover: None }
    }

    fn ips(filter: Option<&str>, family: Option<Family>) -> Vec<String> {
        reachable(&host(), &options(filter, family)).unwrap().iter().map(|a| a.ip().to_string()).collect()
    }

    //= configuration.md: NCCL_SOCKET_FAMILY
    #[test]
    fn networks_come_first_and_loopback_last() {
        assert_eq!(
            ips(None, None),
            ["10.0.0.1", "192.168.1.1", "fd00::1", "169.254.3.4", "172.17.0.1", "127.0.0.1", "::1"]
        );
        // The one of a network hides the same one of a bridge.
        assert_eq!(reachable(&host(), &options(None, None)).unwrap()[0].prefix(), 24);
        assert_eq!(ips(None, Some(Family::V6)), ["fd00::1", "::1"]);
    }

    /// In order, for a host with these interfaces and adapters at these addresses.
    fn order(interfaces: &[(&str, &str, u8)], adapters: &[&str]) -> Vec<String> {
        let all: Vec<_> = interfaces.iter().map(|(name, ip, prefix)| interface(name, ip, *prefix)).collect();
        let adapters: Vec<IpAddr> = adapters.iter().map(|ip| ip.parse().unwrap()).collect();
        let addrs = ranked(all.iter(), &options(None, None), &adapters);
        addrs.iter().map(|a| a.ip().to_string()).collect()
    }

    //= reach.md: the handle names one address of each subnet before a second one
    #[test]
    fn each_subnet_comes_before_a_second_address_of_one_and_adapters_come_first() {
        let host = [
            ("docker0", "172.17.0.1", 16),
            ("eth0", "10.0.0.1", 24),
            ("eth0", "10.0.0.2", 24),
            ("eth0", "10.0.1.1", 24),
            ("rdma0", "10.0.1.2", 24),
            ("rdma0", "fd00::1", 64),
            ("rdma1", "10.0.2.1", 24),
            ("lo", "127.0.0.1", 8),
        ];
        assert_eq!(
            order(&host, &["10.0.1.2", "10.0.2.1", "fd00::1"]),
            [
                "10.0.1.2",
                "10.0.2.1",
                "fd00::1",
                "10.0.0.1",
                "172.17.0.1",
                "10.0.0.2",
                "10.0.1.1",
                "127.0.0.1"
            ]
        );
        // None is known to be an adapter's.
        assert_eq!(order(&host, &[])[..4], ["10.0.0.1", "10.0.1.1", "10.0.2.1", "fd00::1"]);
        // One network in another is not the same one.
        let nested = [("a", "10.0.0.1", 8), ("b", "10.0.0.2", 24), ("c", "10.0.0.3", 24)];
        assert_eq!(order(&nested, &["10.0.0.3"]), ["10.0.0.3", "10.0.0.1", "10.0.0.2"]);
    }

    //= reach.md: the handle names one address of each subnet before a second one
    #[test]
    fn adapters_are_asked_for_where_there_is_no_room_for_all() {
        let all = |n: u8| -> Vec<Interface> {
            (0..n).map(|i| interface(&format!("eth{i}"), &format!("10.0.{i}.1"), 24)).collect()
        };
        let last = || vec![[10, 0, 15, 1].into()];
        let first = |n, adapters: &dyn Fn() -> Vec<IpAddr>| {
            let addrs = reachable(&all(n), &Options { adapters, ..options(None, None) }).unwrap();
            assert_eq!(addrs.len(), usize::from(n));
            addrs[0].ip().to_string()
        };
        assert_eq!(first(16, &last), "10.0.15.1");
        assert_eq!(first(12, &|| unreachable!("all fit")), "10.0.0.1");
    }

    //= reach.md: the handle names one address of each subnet before a second one
    #[test]
    fn a_handle_that_is_too_small_for_all_has_both_families() {
        let addr = |text: String, prefix| Addr::new(text.parse().unwrap(), prefix).unwrap();
        let v4: Vec<Addr> = (0..20).map(|i| addr(format!("10.0.{i}.1"), 24)).collect();
        let v6: Vec<Addr> = (0..20).map(|i| addr(format!("fd00:{i}::1"), 64)).collect();
        let fitted = |addrs: &[Addr]| {
            let (handle, out) = fitted(&[7; 16].into(), 9, addrs).unwrap();
            assert_eq!(handle.addrs().len() + out.len(), addrs.len());
            assert!(!out.iter().any(|a| handle.addrs().contains(a)));
            handle.addrs().to_vec()
        };
        assert_eq!(fitted(&v4[..12]), v4[..12]);
        assert_eq!(fitted(&v4), v4[..12]);
        assert_eq!(fitted(&[&v4[..3], &v6[..2]].concat()), [&v4[..3], &v6[..2]].concat());
        // 18 bytes for one of IPv6 leave 59 for IPv4, six each.
        assert_eq!(fitted(&[&v4[..], &v6[..]].concat()), [&v4[..1], &v6[..1], &v4[1..9]].concat());
        assert_eq!(fitted(&[&v6[..], &v4[..]].concat()), [&v6[..1], &v4[..1], &v6[1..3], &v4[1..3]].concat());
    }

    #[test]
    fn the_filter_orders_and_excludes() {
        assert_eq!(ips(Some("ib0,eth0"), Some(Family::V4)), ["192.168.1.1", "169.254.3.4", "10.0.0.1"]);
        assert_eq!(ips(Some("^docker,lo,ib"), None), ["10.0.0.1", "fd00::1"]);
        assert_eq!(ips(Some("=lo"), Some(Family::V4)), ["127.0.0.1"]);
    }

    #[test]
    fn without_a_filter_the_interface_of_sout_is_enough() {
        let ips = |sout: &str, filter, family| {
            let options = Options { sout: Some(sout.parse().unwrap()), ..options(filter, family) };
            reachable(&host(), &options).unwrap().iter().map(|a| a.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ips("192.168.1.1", None, None), ["192.168.1.1", "169.254.3.4"]);
        assert_eq!(
            ips("192.168.1.1", Some("eth0,ib0"), Some(Family::V4)),
            ["10.0.0.1", "192.168.1.1", "169.254.3.4"]
        );
        // It has none of this family, or is not there: all, as if it were unknown.
        assert_eq!(ips("192.168.1.1", None, Some(Family::V6)), ["fd00::1", "::1"]);
        assert_eq!(ips("192.168.9.9", None, Some(Family::V6)), ["fd00::1", "::1"]);
    }

    #[test]
    fn a_filter_that_leaves_nothing_is_an_error_that_lists_what_is_there() {
        let text = reachable(&host(), &options(Some("=eth"), Some(Family::V4))).unwrap_err().to_string();
        for part in
            ["MPIB_OOB_IF=\"=eth\"", "NCCL_SOCKET_FAMILY=AF_INET", "eth0 10.0.0.1/24", "ib0 192.168.1.1/24"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(reachable(&[], &options(None, None)).unwrap_err().to_string().contains("up are: none"));
    }

    #[test]
    fn near_addresses_are_tried_first() {
        let addrs: Vec<Addr> = ["127.0.0.1", "172.16.0.9", "10.0.0.9", "fd00::9"]
            .iter()
            .map(|ip| Addr::new(ip.parse().unwrap(), 24).unwrap())
            .collect();
        let handle = Handle::new([0; 16], 7, &addrs).unwrap();
        let local = host();
        let groups: Vec<Vec<String>> = in_groups(&handle, local.iter().map(|i| i.addr))
            .iter()
            .map(|group| group.iter().map(ToString::to_string).collect())
            .collect();
        assert_eq!(groups, [&["10.0.0.9:7", "[fd00::9]:7"][..], &["172.16.0.9:7"], &["127.0.0.1:7"]]);
    }

    #[test]
    fn this_host_has_loopback() {
        let lo = interfaces().unwrap().into_iter().find(|i| i.addr.ip().to_string() == "127.0.0.1").unwrap();
        assert_eq!((lo.name.as_str(), lo.addr.prefix()), ("lo", 8));
    }

    #[test]
    fn without_a_change_nothing_is_read_again() {
        let interfaces = Interfaces::default();
        let first = interfaces.now().unwrap();
        assert!(first.iter().any(|i| i.addr.ip().is_loopback()));
        // Another process may change an address meanwhile.
        let same = (0..100).any(|_| Arc::ptr_eq(&interfaces.now().unwrap(), &interfaces.now().unwrap()));
        assert!(same);
    }
}
