//! Sockets with the options of control connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mpib_proto::Nonce;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::config::Family;
use crate::error::{Error, Result};
use crate::fork_guard::NotInherited;

const BACKLOG: i32 = 1024;

/// The socket of a connection. A forked child closes its copy at once: a copy in a child would keep
/// the connection open after the death of this process.
pub(super) type Stream = NotInherited<TcpStream>;
/// The socket of a listener, likewise.
pub(super) type ListenSocket = NotInherited<TcpListener>;

/// Listens on all interfaces, on a port that the system chooses.
pub(super) fn listen(family: Option<Family>) -> io::Result<ListenSocket> {
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    match family {
        Some(Family::V4) => listen_at(v4, false),
        Some(Family::V6) => listen_at(v6, true),
        // A host without IPv6 refuses the socket or its address.
        None => listen_at(v6, false).or_else(|_| listen_at(v4, false)),
    }
}

fn listen_at(addr: SocketAddr, only_v6: bool) -> io::Result<ListenSocket> {
    NotInherited::new(|| bound(addr, only_v6))
}

fn bound(addr: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if addr.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Begins to connect.
pub(super) fn connect(addr: SocketAddr) -> io::Result<Stream> {
    NotInherited::new(|| TcpStream::connect(addr))
}

/// Accepts the next connection of a listener.
pub(super) fn accept(listener: &ListenSocket) -> io::Result<(Stream, SocketAddr)> {
    let mut from = None;
    let stream = NotInherited::new(|| {
        let (stream, addr) = listener.accept()?;
        from = Some(canonical(addr));
        Ok(stream)
    })?;
    // `accept` has succeeded.
    from.map(|addr| (stream, addr)).ok_or_else(|| ErrorKind::NotConnected.into())
}

/// Sends small messages at once, and limits how long the peer's host may be silent: `silence` for
/// unacknowledged data, and keepalive probes from half of it on for an idle connection.
pub(super) fn tune(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // The kernel counts whole seconds. The user timeout takes precedence over the number of probes,
    // which is therefore not set.
    let seconds = |d: Duration| Duration::from_secs(d.as_secs().max(1));
    let keepalive = TcpKeepalive::new().with_time(seconds(silence / 2)).with_interval(seconds(silence / 8));
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(silence))
}

/// Makes the close of the socket a reset. The peer takes a FIN for the end of this process.
pub(super) fn reset_on_close(stream: &Stream) {
    // Fails only for a socket that is not connected any more, which sends neither.
    let _ = SockRef::from(&**stream).set_linger(Some(Duration::ZERO));
}

/// Makes the close of the socket a FIN after everything sent, the default of a new socket.
pub(super) fn close_in_order(stream: &Stream) {
    // As above.
    let _ = SockRef::from(&**stream).set_linger(None);
}

/// Appends what has come to `read`, at most 4 KiB. Returns `false` if there is nothing now, and an error
/// of kind `UnexpectedEof` at the end of the bytes.
pub(super) fn read_some(stream: &mut Stream, read: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                read.extend_from_slice(&chunk[..n]);
                return Ok(true);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
    }
}

/// Writes as much of `bytes` as the socket accepts. Returns how many.
pub(super) fn write_some(stream: &mut Stream, bytes: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match stream.write(&bytes[done..]) {
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Returns bytes that nobody can guess.
pub(super) fn random() -> Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
    Ok(nonce)
}

/// Converts an IPv4-mapped address, as a listener on both families returns it, to IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
