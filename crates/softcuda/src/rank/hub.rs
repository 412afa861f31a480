//! The connection between a rank and the program that started it: lines of JSON on a Unix socket.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::Outcome;

/// What a rank sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// The first message: the rank's number.
    Hello(u32),
    /// A step begins. It is the rank's progress, and the name of what failed if the rank ends.
    Step(String),
    /// Waits until every rank has sent this, and exchanges what they have sent.
    Exchange(Vec<u8>),
    /// The rank has ended as it should.
    Done(Outcome),
    /// The rank has failed.
    Failed(String),
}

/// The reply to [`Message::Exchange`]: what each rank has sent, by number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply(pub Vec<Vec<u8>>);

/// A rank's end of the connection.
#[derive(Debug)]
pub struct Hub {
    stream: BufReader<UnixStream>,
}

impl Hub {
    /// Connects to the program that started the rank.
    pub fn connect(path: &Path, rank: u32) -> io::Result<Self> {
        let mut hub = Self { stream: BufReader::new(UnixStream::connect(path)?) };
        hub.send(&Message::Hello(rank))?;
        Ok(hub)
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    /// Exchanges bytes with all ranks. Returns what each has sent.
    pub fn exchange(&mut self, bytes: Vec<u8>) -> io::Result<Vec<Vec<u8>>> {
        self.send(&Message::Exchange(bytes))?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Reply(all) = serde_json::from_str(&line)?;
        Ok(all)
    }
}
