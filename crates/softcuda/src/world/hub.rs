//! The socket on which ranks report.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::rank::{Message, Reply};

/// Something about a rank.
pub(super) enum Event {
    /// The rank has connected.
    Connected(Sender),
    /// The rank has sent a message.
    Message(Message),
    /// The rank's end of the connection is closed.
    Closed,
}

/// Sends replies to a rank.
pub(super) struct Sender(UnixStream);

impl Sender {
    pub(super) fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Receives what all ranks send.
pub(super) struct Listener {
    path: PathBuf,
    listener: UnixListener,
    events: mpsc::Receiver<(u32, Event)>,
}

impl Listener {
    /// Listens in a folder.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = folder.join(format!("hub-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let listener = UnixListener::bind(&path)?;
        let (sender, events) = mpsc::channel();
        let accepting = listener.try_clone()?;
        // The thread ends when `drop` shuts the socket down.
        thread::spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                thread::spawn(move || read(stream, &sender));
            }
        });
        Ok(Self { path, listener, events })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the next event, or `None` if there is none in this time.
    pub(super) fn next(&self, timeout: Duration) -> Option<(u32, Event)> {
        self.events.recv_timeout(timeout).ok()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: an open socket. A failure leaves a thread that waits for connections.
        let _ = unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Passes on what a rank sends until it closes its end.
fn read(stream: UnixStream, events: &mpsc::Sender<(u32, Event)>) -> Option<()> {
    let reply = Sender(stream.try_clone().ok()?);
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Ok(Message::Hello(rank)) = serde_json::from_str(&lines.next()?) else { return None };
    // The receiver ends with the run; later messages concern nobody.
    events.send((rank, Event::Connected(reply))).ok()?;
    for line in lines {
        let message = serde_json::from_str(&line)
            .unwrap_or_else(|e| Message::Failed(format!("sent {line:?}, which is no message: {e}")));
        events.send((rank, Event::Message(message))).ok()?;
    }
    events.send((rank, Event::Closed)).ok()
}
