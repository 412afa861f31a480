//! A TCP proxy between the ends of a connection, which acts as a middlebox: it passes bytes on,
//! swallows them, or resets connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mpib_proto::{Addr, Handle};
use socket2::SockRef;

/// The two sides of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// That of the end that connects to the proxy.
    Connector,
    /// That of the listener behind the proxy.
    Acceptor,
}

/// What becomes of a connection in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// A RST at these sides.
    Reset(&'static [Side]),
    /// A FIN at these sides.
    Close(&'static [Side]),
    /// A changed byte: the last one, which belongs to a tag.
    Change,
}

/// A proxy for all connections to one listener.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Both sides of each connection: connector's, acceptor's.
    pairs: Mutex<Vec<[TcpStream; 2]>>,
    /// By side: whether what it sends is swallowed, and how many bytes of it were.
    swallows: [AtomicBool; 2],
    swallowed: [AtomicUsize; 2],
    /// Which of the pieces that are passed on breaks its connection, and how.
    break_at: Mutex<Option<(usize, Break)>>,
    /// Pieces so far.
    pieces: AtomicUsize,
    /// The sides whose bytes were passed on, in order; repetitions are left out.
    sent: Mutex<Vec<Side>>,
}

impl Proxy {
    /// A proxy before the listener of `handle`, on this host.
    pub fn before(handle: &Handle) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, handle.port()));
        let shared = Arc::<Shared>::default();
        let proxy = Self { port, shared: Arc::clone(&shared) };
        // Ends with the process.
        thread::spawn(move || {
            for connector in listener.incoming() {
                let (connector, acceptor) = (connector.unwrap(), TcpStream::connect(to).unwrap());
                let copy = |stream: &TcpStream| stream.try_clone().unwrap();
                shared.pairs.lock().unwrap().push([copy(&connector), copy(&acceptor)]);
                let ways = [
                    (Side::Connector, copy(&connector), copy(&acceptor)),
                    (Side::Acceptor, acceptor, connector),
                ];
                for (side, from, to) in ways {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || pass_on(side, from, to, &shared));
                }
            }
        });
        proxy
    }

    /// The handle that leads through the proxy.
    pub fn handle(&self, handle: &Handle) -> Handle {
        let here = Addr::new(Ipv4Addr::LOCALHOST.into(), 8).unwrap();
        Handle::new(handle.secret().clone(), self.port, &[here]).unwrap()
    }

    /// Resets all connections at these sides. The other side hears nothing more.
    pub fn reset(&self, sides: &[Side]) {
        self.swallow();
        for pair in self.shared.pairs.lock().unwrap().iter() {
            for (side, stream) in [Side::Connector, Side::Acceptor].iter().zip(pair) {
                if sides.contains(side) {
                    reset(stream);
                }
            }
        }
    }

    /// Breaks a connection at the piece of bytes with this number, from 1. Connections after it work.
    pub fn break_at(&self, piece: usize, how: Break) {
        *self.shared.break_at.lock().unwrap() = Some((piece, how));
    }

    /// Returns whether that has happened.
    pub fn has_broken(&self) -> bool {
        self.shared.break_at.lock().unwrap().is_none()
    }

    /// Returns the sides that have sent so far, in turn.
    pub fn sent(&self) -> Vec<Side> {
        self.shared.sent.lock().unwrap().clone()
    }

    /// From now on no byte is passed on, and no connection ends.
    pub fn swallow(&self) {
        [Side::Connector, Side::Acceptor].iter().for_each(|side| self.swallow_of(*side));
    }

    /// From now on no byte that this side sends is passed on.
    pub fn swallow_of(&self, side: Side) {
        self.shared.swallows[side as usize].store(true, Ordering::SeqCst);
    }

    /// Returns how many bytes of this side were swallowed.
    pub fn swallowed(&self, side: Side) -> usize {
        self.shared.swallowed[side as usize].load(Ordering::SeqCst)
    }
}

/// Sends a RST, also if another descriptor of the socket is open.
pub fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // The kernel resets a TCP connection that is dissolved.
    // SAFETY: an open socket, and an address of that length.
    let rc = unsafe {
        libc::connect(stream.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Resets the connected sockets of this process whose local address `fits` accepts, as `ss -K` does.
/// Returns their number.
pub fn reset_sockets(fits: impl Fn(SocketAddr) -> bool) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let of = |fd: i32| {
        // SAFETY: the descriptor may be closed meanwhile: then this fails, and nothing is done.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let addr = SockRef::from(&socket).local_addr().ok()?.as_socket()?;
        let is_connected = SockRef::from(&socket).peer_addr().is_ok();
        let fits = is_connected && fits(SocketAddr::new(addr.ip().to_canonical(), addr.port()));
        fits.then(|| socket.try_clone_to_owned().ok())?
    };
    let found: Vec<_> = fds.filter_map(of).collect();
    let number = found.len();
    found.into_iter().for_each(|socket| reset(&socket.into()));
    number
}

impl Shared {
    /// Counts a piece. Returns how it breaks its connection, if it does.
    fn break_now(&self) -> Option<Break> {
        let piece = self.pieces.fetch_add(1, Ordering::SeqCst) + 1;
        let mut break_at = self.break_at.lock().unwrap();
        break_at.take_if(|(at, _)| *at == piece).map(|(_, how)| how)
    }

    fn sends(&self, side: Side) {
        let mut sent = self.sent.lock().unwrap();
        if sent.last() != Some(&side) {
            sent.push(side);
        }
    }
}

fn pass_on(side: Side, mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut chunk = [0; 4096];
    loop {
        let read = from.read(&mut chunk);
        if shared.swallows[side as usize].load(Ordering::SeqCst) {
            match read {
                Ok(n @ 1..) => {
                    shared.swallowed[side as usize].fetch_add(n, Ordering::SeqCst);
                    continue;
                }
                _ => return,
            }
        }
        if let Ok(n @ 1..) = read {
            let at = |broken: &Side| if *broken == side { &from } else { &to };
            match shared.break_now() {
                Some(Break::Reset(sides)) => return sides.iter().map(at).for_each(reset),
                Some(Break::Close(sides)) => {
                    return sides.iter().map(at).for_each(|at| drop(at.shutdown(Shutdown::Both)));
                }
                Some(Break::Change) => chunk[n - 1] ^= 1,
                None => {}
            }
            shared.sends(side);
        }
        match read {
            Ok(0) => return drop(to.shutdown(Shutdown::Write)),
            Ok(n) if to.write_all(&chunk[..n]).is_ok() => {}
            // The other direction ends, too.
            _ => return reset(&to),
        }
    }
}
