//! Messages over a stream socket: a length of four bytes, then JSON. Used between a process and its
//! workers, between the two workers, and between two machines.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::failure::{Failure, Kind};

/// Limit of a message.
const LARGEST_FRAME: usize = 4 << 20;
/// How often a waiting end calls `alive`.
const SLICE: Duration = Duration::from_millis(100);
/// A peer that reads nothing for this long is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Begins the first word of each command's connections.
const MPIB: &str = "mpib ";

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    // Any stream socket: read, write and the timeouts are the same calls for TCP.
    stream: UnixStream,
    /// The peer's name, for error texts.
    peer: &'static str,
}

impl Channel {
    /// Wraps a connected stream socket of any family.
    pub(crate) fn new(socket: OwnedFd, peer: &'static str) -> Result<Self, Failure> {
        let stream = UnixStream::from(socket);
        let channel = Self { stream, peer };
        channel.stream.set_nonblocking(false).map_err(|e| channel.lost(&e))?;
        channel.stream.set_read_timeout(Some(SLICE)).map_err(|e| channel.lost(&e))?;
        channel.stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(|e| channel.lost(&e))?;
        Ok(channel)
    }

    /// Makes two connected ends.
    pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let (a, b) = UnixStream::pair()?;
        Ok((a.into(), b.into()))
    }

    /// Returns another descriptor of the same connection.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn lost(&self, error: &io::Error) -> Failure {
        Failure::new(Kind::Peer, format!("lost the control connection to {}: {error}", self.peer))
    }

    fn closed(&self) -> Failure {
        Failure::new(Kind::Peer, format!("{} closed the control connection", self.peer))
    }

    /// Sends one message.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Failure> {
        let body = serde_json::to_vec(message)
            .map_err(|e| Failure::new(Kind::Tool, format!("cannot encode a control message: {e}")))?;
        if body.len() > LARGEST_FRAME {
            return Err(Failure::new(
                Kind::Tool,
                format!("a control message of {} bytes is too long", body.len()),
            ));
        }
        let mut frame = Vec::with_capacity(4 + body.len());
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame).map_err(|e| self.lost(&e))
    }

    /// Waits for one message. Calls `alive` at intervals while nothing arrives; an error of `alive`
    /// ends the wait. Returns `Ok(None)` if the other end closed the connection between two
    /// messages.
    pub(crate) fn next<T: DeserializeOwned>(
        &mut self,
        limit: Option<Duration>,
        mut alive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Option<T>, Failure> {
        let end = limit.map(|l| Instant::now() + l);
        let mut wait = |channel: &Self| {
            alive()?;
            match end {
                Some(end) if Instant::now() >= end => {
                    let text = format!("{} sent nothing for {:?}", channel.peer, limit.unwrap_or_default());
                    Err(Failure::new(Kind::Peer, text))
                }
                _ => Ok(()),
            }
        };
        let mut head = [0; 4];
        if !self.read(&mut head, &mut wait)? {
            return Ok(None);
        }
        let len = u32::from_le_bytes(head) as usize;
        if len > LARGEST_FRAME {
            let text =
                format!("{} announced a message of {len} bytes; expected at most {LARGEST_FRAME}", self.peer);
            return Err(Failure::new(Kind::Peer, text));
        }
        let mut body = vec![0; len];
        if !self.read(&mut body, &mut wait)? {
            return Err(self.closed());
        }
        serde_json::from_slice(&body).map(Some).map_err(|e| self.unreadable(&e))
    }

    fn unreadable(&self, error: &serde_json::Error) -> Failure {
        Failure::new(Kind::Peer, format!("{} sent a message that cannot be read: {error}", self.peer))
    }

    /// Waits like [`Channel::next`], but fails if the connection is closed.
    pub(crate) fn recv<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        alive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        self.next(Some(limit), alive)?.ok_or_else(|| self.closed())
    }

    /// Waits for the first message of a connection, whose first word is `magic`. Names the other
    /// command if the other end runs another one than this.
    pub(crate) fn first<T: DeserializeOwned>(&mut self, limit: Duration, magic: &str) -> Result<T, Failure> {
        let message: Value = self.recv(limit, || Ok(()))?;
        let fail = |text: String| Err(Failure::new(Kind::Peer, format!("{} {text}", self.peer)));
        match first_word(&message) {
            Some(other) if other != magic && other.starts_with(MPIB) => {
                return fail(format!(
                    "runs {other:?}, expected {magic:?}; run the same command at both ends"
                ));
            }
            _ => {}
        }
        let refused = message.pointer("/Refused/message").and_then(Value::as_str).map(str::to_owned);
        match (serde_json::from_value(message), refused) {
            (Ok(message), _) => Ok(message),
            (Err(_), Some(why)) => fail(format!("refused: {why}")),
            (Err(e), None) => Err(self.unreadable(&e)),
        }
    }

    /// Returns whether a message or the connection's end can be read without waiting.
    pub(crate) fn readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// Fills `buf`; returns `false` at the end of the stream before its first byte.
    fn read(
        &mut self,
        buf: &mut [u8],
        wait: &mut impl FnMut(&Self) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let mut at = 0;
        while at < buf.len() {
            match self.stream.read(&mut buf[at..]) {
                Ok(0) if at == 0 => return Ok(false),
                Ok(0) => return Err(self.closed()),
                Ok(n) => {
                    at += n;
                    // Single bytes at intervals do not extend the wait.
                    if at < buf.len() {
                        wait(self)?;
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    wait(self)?
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.lost(&e)),
            }
        }
        Ok(true)
    }
}

/// Returns the first word of a connection: a member of the message, or of its only member.
fn first_word(message: &Value) -> Option<&str> {
    let inner = message.as_object().and_then(|members| members.values().next());
    [Some(message), inner].into_iter().flatten().find_map(|value| value.get("magic")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = Channel::pair().unwrap();
        (Channel::new(a, "b").unwrap(), Channel::new(b, "a").unwrap())
    }

    #[test]
    fn messages_arrive_in_order_and_a_closed_end_is_an_error() {
        let (mut a, mut b) = pair();
        assert!(!b.readable());
        a.send(&"one").unwrap();
        a.send(&vec![2; 10_000]).unwrap();
        drop(a);
        let limit = Some(Duration::from_secs(60));
        assert!(b.readable());
        assert_eq!(b.next(limit, || Ok(())).unwrap(), Some("one".to_owned()));
        assert_eq!(b.next(limit, || Ok(())).unwrap(), Some(vec![2; 10_000]));
        assert_eq!(b.next::<String>(limit, || Ok(())).unwrap(), None);
    }

    #[test]
    fn a_silent_peer_is_named_when_the_limit_is_over() {
        let (_a, mut b) = pair();
        let failure = b.recv::<String>(Duration::ZERO, || Ok(())).unwrap_err();
        assert_eq!((failure.kind, failure.message.as_str()), (Kind::Peer, "a sent nothing for 0ns"));
    }

    #[test]
    fn a_foreign_frame_is_refused() {
        let (mut a, mut b) = pair();
        a.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let failure = b.recv::<String>(Duration::from_secs(60), || Ok(())).unwrap_err();
        assert!(failure.message.starts_with("a announced a message of 542393671 bytes"), "{failure}");
    }

    #[test]
    fn another_command_is_named() {
        let limit = Duration::from_secs(60);
        let says = |message: Value| {
            let (mut a, mut b) = pair();
            a.send(&message).unwrap();
            b.first::<u32>(limit, "mpib perf").unwrap_err().message
        };
        let expected = "a runs \"mpib doctor\", expected \"mpib perf\"; run the same command at both ends";
        assert_eq!(says(serde_json::json!({ "magic": "mpib doctor", "protocol": 1 })), expected);
        assert_eq!(says(serde_json::json!({ "Hello": { "magic": "mpib doctor" } })), expected);
        let refused = serde_json::json!({ "Refused": { "kind": "peer", "message": "why" } });
        assert_eq!(says(refused), "a refused: why");
        assert!(
            says(serde_json::json!({ "magic": "ssh" })).starts_with("a sent a message that cannot be read")
        );
    }
}
