//! Asks the kernel's routing tables whether an interface leads to a peer's address, with rules by
//! the source address, as the RDMA core will ask when a queue pair is connected.
//!
//! The request is one message of rtnetlink, written here as bytes: a library of route messages
//! would be more code than it saves. The kernel answers within the call that sends the request, so
//! nothing waits.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use mpib_proto::NO_ROUTE;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::address::gid_addr;
use crate::verbs::Gid;

/// Bytes of `struct nlmsghdr` and of `struct rtmsg`.
const HEADER: usize = 16;
const ROUTE: usize = 12;

/// Returns why no packet with the address of a local RoCE GID reaches the address in the peer's, if
/// the kernel has no route for it on the GID's interface. `None` if there is a route, and if it is
/// unknown: the addresses are link-local, or the kernel refuses the request.
pub(crate) fn unrouted(local: &Gid, interface: &str, peer: [u8; 16]) -> Option<String> {
    let (from, to) = (local.addr(), gid_addr(peer));
    if local.is_link_local() || from.is_ipv4() != to.is_ipv4() {
        return None;
    }
    let index = if_nametoindex(interface).ok()?;
    let missing = match look_up(Some(from), index, to) {
        Answer::Missing => true,
        // Linux takes a route of another interface for IPv6 unless the request has no source.
        Answer::Route { interface } if from.is_ipv6() && interface != index => {
            matches!(look_up(None, index, to), Answer::Missing)
        }
        Answer::Route { .. } | Answer::Unknown => false,
    };
    missing.then(|| format!("{NO_ROUTE}{from} ({interface}) to {to}"))
}

/// Returns whether a reason of PROBED is one of [`unrouted`].
pub(crate) fn is_unrouted(reason: &str) -> bool {
    reason.starts_with(NO_ROUTE)
}

/// What the kernel has on a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// A route on this interface.
    Route {
        interface: u32,
    },
    Missing,
    Unknown,
}

/// Requests the route from an address on an interface to a destination.
fn look_up(from: Option<IpAddr>, interface: u32, to: IpAddr) -> Answer {
    let mut reply = [0; 1024];
    let kernel = NetlinkAddr::new(0, 0);
    let mut exchange = || -> nix::Result<usize> {
        let (flags, protocol) = (SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
        let socket: OwnedFd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        sendto(socket.as_raw_fd(), &request(from, interface, to), &kernel, MsgFlags::empty())?;
        recv(socket.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT)
    };
    exchange().map_or(Answer::Unknown, |len| answer(reply.get(..len).unwrap_or_default()))
}

/// Returns RTM_GETROUTE for these addresses. With `RTM_F_FIB_MATCH` the kernel answers from its
/// tables alone: without it, it assumes that a destination without a route is on the link.
fn request(from: Option<IpAddr>, interface: u32, to: IpAddr) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let to_octets = octets(to);
    let bits = |len: usize| u8::try_from(8 * len).unwrap_or(u8::MAX);
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut out = vec![0; HEADER];
    let from_bits = from.map_or(0, |_| bits(to_octets.len()));
    // Table, protocol, scope and type follow the type of service.
    out.extend([u8::try_from(family).unwrap_or(0), bits(to_octets.len()), from_bits, 0, 0, 0, 0, 0]);
    out.extend(libc::RTM_F_FIB_MATCH.to_ne_bytes());
    let mut attribute = |kind: u16, value: &[u8]| {
        let len = u16::try_from(4 + value.len()).unwrap_or(0);
        out.extend(len.to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
    };
    attribute(libc::RTA_DST, &to_octets);
    if let Some(from) = from {
        attribute(libc::RTA_SRC, &octets(from));
    }
    attribute(libc::RTA_OIF, &interface.to_ne_bytes());
    let len = u32::try_from(out.len()).unwrap_or(0);
    out[..4].copy_from_slice(&len.to_ne_bytes());
    out[4..6].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    out[6..8].copy_from_slice(&u16::try_from(libc::NLM_F_REQUEST).unwrap_or(0).to_ne_bytes());
    out
}

/// Reads the kernel's answer.
fn answer(reply: &[u8]) -> Answer {
    let word = |at: usize| Some(u32::from_ne_bytes(reply.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    match half(4) {
        Some(kind) if i32::from(kind) == libc::NLMSG_ERROR => {
            let code = word(HEADER).map_or(0, |raw| raw.cast_signed().wrapping_neg());
            match Errno::from_raw(code) {
                Errno::ENETUNREACH | Errno::EHOSTUNREACH => Answer::Missing,
                _ => Answer::Unknown,
            }
        }
        Some(libc::RTM_NEWROUTE) => {
            let mut at = HEADER + ROUTE;
            while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
                if kind == libc::RTA_OIF {
                    return word(at + 4).map_or(Answer::Unknown, |interface| Answer::Route { interface });
                }
                // The length includes the attribute's own four bytes; attributes begin at multiples
                // of four.
                at += usize::from(len).max(4).next_multiple_of(4);
            }
            Answer::Unknown
        }
        _ => Answer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> Vec<u8> {
        let mut reply = vec![0; HEADER + 4];
        reply[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        reply[HEADER..].copy_from_slice(&(-(errno as i32)).to_ne_bytes());
        reply
    }

    #[test]
    fn only_an_unreachable_destination_counts_as_missing() {
        for errno in [Errno::ENETUNREACH, Errno::EHOSTUNREACH] {
            assert_eq!(answer(&error(errno)), Answer::Missing);
        }
        // The source address is not local, the interface does not exist, a policy forbids it.
        for errno in [Errno::EINVAL, Errno::ENODEV, Errno::EACCES, Errno::EPERM] {
            assert_eq!(answer(&error(errno)), Answer::Unknown);
        }
    }

    #[test]
    fn a_route_has_its_interface() {
        let mut reply = vec![0; HEADER + ROUTE];
        reply[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        // An attribute of five bytes and its padding, then the interface.
        for part in [&9u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &[1; 5], &[0; 3]] {
            reply.extend(part);
        }
        assert_eq!(answer(&reply), Answer::Unknown);
        for part in [&8u16.to_ne_bytes()[..], &libc::RTA_OIF.to_ne_bytes(), &7u32.to_ne_bytes()] {
            reply.extend(part);
        }
        assert_eq!(answer(&reply), Answer::Route { interface: 7 });
        for len in 0..reply.len() {
            assert_eq!(answer(&reply[..len]), Answer::Unknown, "{len} bytes");
        }
    }

    /// The loopback interface leads to itself, and nowhere else.
    #[test]
    fn the_kernel_answers() {
        let lo = if_nametoindex("lo").unwrap();
        for (from, near, far) in [
            ("127.0.0.1", "127.0.0.5", "192.0.2.1"),
            // Without a source address.
            ("", "127.0.0.5", "192.0.2.1"),
        ] {
            let from = from.parse().ok();
            assert_eq!(look_up(from, lo, near.parse().unwrap()), Answer::Route { interface: lo });
            assert_eq!(look_up(from, lo, far.parse().unwrap()), Answer::Missing);
        }
        // There is no such interface.
        let (from, to) = ("127.0.0.1".parse().ok(), "127.0.0.5".parse().unwrap());
        assert_eq!(look_up(from, 0x7fff_ffff, to), Answer::Unknown);
    }
}
