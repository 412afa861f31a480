//! A link that reads any bytes in any pieces.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use mio::net::TcpStream;
use mpib_proto::{HEADER_BYTES, MAX_FRAME_BYTES, Peeked, Session, Transcript};

use super::*;
use crate::fork_guard::NotInherited;

/// Most bytes of one write to the socket: its buffer has room for them.
const MAX_PIECE: usize = 32 << 10;
/// Most bytes that a link may hold of a frame that is not whole: it reads 64 KiB at a time.
const MAX_UNREAD: usize = HEADER_BYTES + MAX_FRAME_BYTES + (64 << 10);

/// What a link has read: its messages, and the error that ends it.
type Read = (Vec<Message>, String);

fn session() -> Session {
    Transcript::new(&[5; 16].into(), b"a HELLO").session(&[6; 16])
}

/// Adds the tags that a connector's frames have. What is no frame stays unchanged, and so does what
/// follows it.
fn sealed(mut bytes: &[u8]) -> Vec<u8> {
    let mut keys = session().keys_of(Role::Connector, None);
    let mut all = Vec::new();
    while let Ok(Peeked::Whole { len }) = Peeked::at(bytes) {
        let (frame, rest) = bytes.split_at(HEADER_BYTES + len);
        let mut frame = frame.to_vec();
        keys.seal(&mut frame);
        all.extend(frame);
        bytes = rest;
    }
    all.extend(bytes);
    all
}

/// Reads the bytes in pieces. `read_before` of them came with the first frame of the connection.
fn read_in_pieces(bytes: &[u8], read_before: usize, mut next_piece: impl FnMut() -> usize) -> Read {
    let (before, mut rest) = bytes.split_at(read_before);
    let (ours, mut peer) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = std::net::TcpStream::from(OwnedFd::from(ours));
    let stream = NotInherited::new(|| Ok(TcpStream::from_std(ours))).unwrap();
    let link = Link::new(None);
    let wire = Wire::new(stream, session().keys_of(Role::Acceptor, None), before.to_vec());
    link.begin(wire, Role::Acceptor, (Ipv4Addr::LOCALHOST, 1).into(), [0; 16]).unwrap();
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(next_piece().clamp(1, rest.len().min(MAX_PIECE)));
        rest = behind;
        if peer.write_all(piece).is_err() {
            // The link has closed its socket.
            break;
        }
        link.on_ready();
        let held = link.lock().phase.wire().map_or(0, |wire| wire.unread());
        assert!(held <= MAX_UNREAD, "{held} bytes are held");
    }
    drop(peer);
    assert_ne!(link.on_ready(), ChannelState::Open, "the peer has closed the connection");
    let mut messages = Vec::new();
    loop {
        match link.try_recv() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => panic!("the link has ended without an error"),
            Err(e) => return (messages, e.to_string()),
        }
    }
}

/// Reads the same bytes whole and in pieces, and asserts that the link reads the same messages. The
/// first byte of `data` is the number of lengths that follow it, which are used in rotation.
pub fn simulated(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let Some((lengths, frames)) = rest.split_at_checked(usize::from(count % 16)) else { return };
    let bytes = &sealed(frames);
    let whole = read_in_pieces(bytes, 0, || MAX_PIECE);
    let mut lengths = lengths.iter().cycle().map(|n| 1 + usize::from(*n) * usize::from(*n) / 8);
    let pieces = read_in_pieces(bytes, 0, || lengths.next().unwrap_or(1));
    assert_eq!(whole, pieces);
    let read_before = lengths.next().unwrap_or(0).min(bytes.len());
    assert_eq!(whole, read_in_pieces(bytes, read_before, || MAX_PIECE));
}
