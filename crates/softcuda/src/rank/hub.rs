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
    /// All tests have run once more. Waits until every rank has sent this, and for whether the tests
    /// are repeated.
    Lap,
    /// The rank has ended as it should.
    Done(Outcome),
    /// The rank has failed.
    Failed(String),
}

/// What a rank receives once every rank has sent the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Message::Exchange`]: what each rank has sent, by number.
    Exchanged(Vec<Vec<u8>>),
    /// To [`Message::Lap`]: whether the tests are repeated.
    Repeat(bool),
}

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
        match self.request(&Message::Exchange(bytes))? {
            Reply::Exchanged(all) => Ok(all),
            reply @ Reply::Repeat(_) => Err(unexpected(&reply)),
        }
    }

    /// Reports a lap. Returns whether all ranks repeat the tests.
    pub fn lap(&mut self) -> io::Result<bool> {
        match self.request(&Message::Lap)? {
            Reply::Repeat(repeat) => Ok(repeat),
            reply @ Reply::Exchanged(_) => Err(unexpected(&reply)),
        }
    }

    fn request(&mut self, message: &Message) -> io::Result<Reply> {
        self.send(message)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

fn unexpected(reply: &Reply) -> io::Error {
    io::Error::other(format!("{reply:?} replies to another message"))
}
