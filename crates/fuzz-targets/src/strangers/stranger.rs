//! One socket of a stranger.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mpib_proto::{HEADER_BYTES, Keys, Message, Nonce, Peeked, Role, Secret, Session, Transcript};
use mpib_tests::proxy::reset;
use mpib_tests::raw::{dial, welcome};

/// How long a stranger waits for an answer. A process answers the second of two connections with one
/// HELLO after 100 ms, and dials again as soon.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);
/// In how long a process usually finds that a connection was reset.
pub(super) const NOTICED: Duration = Duration::from_millis(2);

pub(super) struct Stranger {
    stream: TcpStream,
    read: Vec<u8>,
    /// Whether anything was sent.
    is_new: bool,
    /// Its first frame until the answer comes.
    begun: Option<Begun>,
    welcomed: Option<Welcomed>,
}

struct Begun {
    transcript: Transcript,
    token: Nonce,
    from: Role,
}

struct Welcomed {
    session: Session,
    keys: Keys,
    token: Nonce,
}

impl Stranger {
    pub(super) fn dial(port: u16) -> Self {
        Self::at(dial(port))
    }

    pub(super) fn at(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        // Each step sends what it has.
        stream.set_nodelay(true).expect("a socket");
        Self { stream, read: Vec::new(), is_new: true, begun: None, welcomed: None }
    }

    /// Sends bytes. The process may have closed.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.is_new = false;
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a first frame.
    pub(super) fn begin(&mut self, frame: Vec<u8>, (token, from): (Nonce, Role), secret: &Secret) {
        if self.is_new {
            self.begun = Some(Begun { transcript: Transcript::new(secret, &frame), token, from });
        }
        self.send(&frame);
    }

    /// Reads the answer to a first frame: WELCOME, another one or the end.
    pub(super) fn read_welcome(&mut self, drive: impl Fn()) {
        let Some(Begun { transcript, token, from }) = self.begun.take() else { return };
        let Some(frame) = self.read_frame(drive) else { return };
        let Ok(Message::Welcome { challenge, proof }) = Message::decode(&frame[HEADER_BYTES..]) else {
            return;
        };
        let session = transcript.session(&challenge);
        if session.proof == proof {
            let keys = session.keys_of(from, None);
            self.welcomed = Some(Welcomed { session, keys, token });
        }
    }

    /// The token and the key of the connection, if there is one.
    pub(super) fn session(&self) -> Option<(Nonce, Nonce)> {
        self.welcomed.as_ref().map(|welcomed| (welcomed.token, welcomed.session.resume))
    }

    /// Sends a frame, with its tag if the keys are known.
    pub(super) fn say(&mut self, mut frame: Vec<u8>, is_sealed: bool) {
        if let Some(welcomed) = self.welcomed.as_mut().filter(|_| is_sealed) {
            welcomed.keys.seal(&mut frame);
        }
        self.send(&frame);
    }

    /// Answers the first frame of a process, as a holder of this secret.
    pub(super) fn welcome(&mut self, frame: &[u8], (token, role): (Nonce, Role), secret: &Secret) {
        let (welcome, session) = welcome(&Transcript::new(secret, frame));
        self.send(&welcome);
        let keys = session.keys_of(role, None);
        self.welcomed = Some(Welcomed { session, keys, token });
    }

    pub(super) fn close(self, in_order: bool) {
        if !in_order {
            reset(&self.stream);
        }
    }

    /// Reads the next frame without a tag; `None` if none comes.
    pub(super) fn read_frame(&mut self, drive: impl Fn()) -> Option<Vec<u8>> {
        let start = Instant::now();
        let mut chunk = [0; 1024];
        loop {
            if let Ok(Peeked::Whole { len }) = Peeked::at(&self.read) {
                let rest = self.read.split_off(HEADER_BYTES + len);
                return Some(std::mem::replace(&mut self.read, rest));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {
                    drive();
                    std::thread::yield_now();
                }
                Err(_) => return None,
            }
        }
    }
}
