//! What the service manager is sent: that the agent serves, and that its loop runs (sd_notify(3)).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager's socket.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    to: SocketAddr,
    /// How often the manager is sent that the loop runs.
    interval: Option<Duration>,
    next: Instant,
}

impl Notify {
    /// Takes what the service manager has put into the environment; `None` without one.
    ///
    /// # Errors
    /// A sentence: a variable has no meaning.
    pub fn from_env() -> Result<Option<Self>, String> {
        let Some(path) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let number = |name: &str| {
            let value = env::var_os(name)?;
            let number = value.to_str().and_then(|text| text.parse::<u64>().ok());
            Some(number.ok_or_else(|| format!("{name} is {value:?}, expected a number")))
        };
        let pid = number("WATCHDOG_PID").transpose()?;
        let is_meant = pid.is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").transpose()?.filter(|usec| *usec > 0 && is_meant);
        let made = Self::new(&path, limit.map(Duration::from_micros));
        made.map(Some).map_err(|e| format!("NOTIFY_SOCKET is {path:?}: {e}"))
    }

    /// Sends to a socket, and within each `limit` that the loop runs.
    ///
    /// # Errors
    /// It is no address of a socket, or there is no descriptor.
    pub fn new(path: &OsStr, limit: Option<Duration>) -> io::Result<Self> {
        let to = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // The loop does not wait for the manager.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to, interval: limit.map(|limit| limit / 2), next: Instant::now() })
    }

    /// Sends that the agent serves.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Sends that the loop has made a pass, if that is due. Returns when it is due next.
    pub(crate) fn pass(&mut self, now: Instant) -> Option<Instant> {
        let interval = self.interval?;
        if self.next <= now {
            self.send("WATCHDOG=1");
            self.next = now + interval;
        }
        Some(self.next)
    }

    fn send(&self, state: &str) {
        // A manager that takes nothing acts by itself.
        let _ = self.socket.send_to_addr(state.as_bytes(), &self.to);
    }
}
