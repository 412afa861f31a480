//! The sockets on the cables: IPv6 multicast, which needs no address but the link-local one that each
//! interface has, and does not leave the cable.

use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::announcement::{Announcement, MOST};
use crate::failure::{Context, Failure};

/// Link-local scope, transient, "MPIB".
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4d50, 0x4942);
/// Most packets that are read from a socket at a time.
const BURST: usize = 32;

/// A socket for each end.
#[derive(Debug)]
pub(super) struct Links {
    sockets: Vec<(UdpSocket, SocketAddrV6)>,
    /// By end: why the last announcement was not sent.
    unsent: Vec<Option<String>>,
    /// What was received and is no announcement, once.
    refused: Vec<String>,
}

impl Links {
    /// `ends`: the names and numbers of the interfaces.
    pub(super) fn open(ends: &[(&str, u32)], port: u16) -> Result<Self, Failure> {
        let open = |(name, index): &(&str, u32)| {
            let group = SocketAddrV6::new(GROUP, port, 0, *index);
            let socket = UdpSocket::bind(group).tool(format!("use UDP port {port} of {name}"))?;
            let member = socket
                .join_multicast_v6(&GROUP, *index)
                .and_then(|()| socket.set_multicast_loop_v6(false))
                .and_then(|()| socket.set_nonblocking(true));
            member.tool(format!("join an IPv6 group on {name}"))?;
            Ok((socket, group))
        };
        let sockets = ends.iter().map(open).collect::<Result<_, Failure>>()?;
        Ok(Self { sockets, unsent: vec![None; ends.len()], refused: Vec::new() })
    }

    /// Sends an announcement at an end. Why none can be sent is kept: it may be so for a moment.
    pub(super) fn send(&mut self, end: usize, name: &str, announcement: &Announcement) {
        let (socket, group) = &self.sockets[end];
        let why = match socket.send_to(&announcement.encode(), group) {
            Ok(_) => return self.unsent[end] = None,
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => format!(
                "{name} has no IPv6 link-local address, which mpib setup needs: sysctl \
                 net.ipv6.conf.{name}.disable_ipv6=0"
            ),
            Err(e) => format!("cannot send on {name}: {e}"),
        };
        self.unsent[end] = Some(why);
    }

    /// Waits for announcements, for so long at most, and hands over each with the place of its end.
    pub(super) fn receive(
        &mut self,
        wait: Duration,
        mut take: impl FnMut(usize, Announcement),
    ) -> Result<(), Failure> {
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(|(socket, _)| socket.as_fd()).collect();
        let mut polled: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::POLLIN)).collect();
        match poll(&mut polled, wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e).tool("wait for the other host"),
        }
        let mut packet = [0; MOST + 1];
        for (end, (socket, _)) in self.sockets.iter().enumerate() {
            for _ in 0..BURST {
                let Ok((len, _)) = socket.recv_from(&mut packet) else { break };
                match Announcement::decode(&packet[..len.min(MOST)]) {
                    Ok(announcement) => take(end, announcement),
                    Err(why) if !self.refused.contains(&why) && self.refused.len() < BURST => {
                        self.refused.push(why)
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Returns what stands in the way: what could not be sent, and what was received and is no
    /// announcement.
    pub(super) fn troubles(&self) -> Vec<String> {
        let refused = self.refused.iter().map(|why| format!("received: {why}"));
        self.unsent.iter().flatten().cloned().chain(refused).collect()
    }
}
