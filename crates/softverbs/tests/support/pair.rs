//! Runs a client and a server of an unchanged program on the shared library.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::stand_in;

/// Far longer than any of these runs: only a hang reaches it.
const HANG: Duration = Duration::from_secs(90);
/// Interval between checks of a condition without an event.
const LOOK: Duration = Duration::from_millis(3);

/// Returns a fabric name that no other test and no earlier run uses.
pub(crate) fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a program on the shared library, or fails with the name of the package to install.
pub(crate) fn program(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let package = if name.starts_with("ibv_") { "ibverbs-utils" } else { "perftest" };
    let Some(found) = found else { panic!("{name} is not installed: install {package} (make setup)") };
    on_stand_in(Command::new(found))
}

/// Sets the environment of a program: the shared library.
pub(crate) fn on_stand_in(mut command: Command) -> Command {
    command.env("LD_LIBRARY_PATH", stand_in::folder()).stdin(Stdio::null());
    command
}

/// A running program. Dropping it kills the program.
pub(crate) struct Running {
    child: Child,
    output: File,
    what: String,
}

/// A program that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// stdout and stderr, in order.
    pub(crate) text: String,
}

impl Ended {
    /// Panics with the whole output unless the program succeeded.
    pub(crate) fn success(self) -> String {
        assert!(self.status.success(), "{}:\n{}", self.status, self.text);
        self.text
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let output = tempfile::tempfile().expect("a temporary file can be made");
        let copy = || Stdio::from(output.try_clone().expect("a file can be opened twice"));
        let child = command.stdout(copy()).stderr(copy()).spawn();
        let what = format!("{command:?}");
        Self { child: child.unwrap_or_else(|e| panic!("{what}: {e}")), output, what }
    }

    /// Returns its output so far.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        // The descriptor shares its position with the child: read through a new one.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.output.as_raw_fd()));
        let mut file = File::open(path).expect("our own descriptor can be reopened");
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("a file can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until `done` returns true. Panics if the program ends first or hangs.
    pub(crate) fn wait_until(&mut self, for_what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let ended = self.child.try_wait().expect("our own child can be waited for");
            // Checked again: it may have done it and ended meanwhile.
            if let Some(status) = ended.filter(|_| !done(self)) {
                panic!("{}: {status} before {for_what}:\n{}", self.what, self.text());
            }
            assert!(start.elapsed() < HANG, "{}: no {for_what}:\n{}", self.what, self.text());
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn wait_listening(&mut self, port: &Port) {
        self.wait_until("listening", |_| port.is_listened_on());
    }

    /// Waits for its end. Returns its status and output.
    pub(crate) fn end(self) -> Ended {
        Self::first_end([self])
    }

    /// Returns its status and output if it has ended.
    fn ended(&mut self) -> Option<Ended> {
        let status = self.child.try_wait().expect("our own child can be waited for")?;
        Some(Ended { status, text: self.text() })
    }

    /// Waits until one of several programs ends, and kills the others.
    pub(crate) fn first_end<const N: usize>(mut all: [Self; N]) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(ended) = all.iter_mut().find_map(Self::ended) {
                return ended;
            }
            assert!(
                start.elapsed() < HANG,
                "{} hangs:\n{}",
                all[0].what,
                all.each_ref().map(Self::text).join("\n")
            );
            std::thread::sleep(LOOK);
        }
    }

    /// `kill -9`
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reserved TCP port. A socket holds it without listening; the program sets SO_REUSEADDR, as
/// every server does, and can bind to it too.
pub(crate) struct Port {
    number: u16,
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn new() -> Self {
        // SAFETY: a plain system call; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that nothing else owns.
        let held = unsafe { OwnedFd::from_raw_fd(fd) };
        let on: libc::c_int = 1;
        let size = libc::socklen_t::try_from(size_of_val(&on)).expect("four");
        // SAFETY: an open socket and an option of that size.
        let rc = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), size)
        };
        assert_eq!(rc, 0, "setsockopt: {}", std::io::Error::last_os_error());
        let number = bind_any(&held);
        Self { number, _held: held }
    }

    pub(crate) fn number(&self) -> String {
        self.number.to_string()
    }

    /// Checks without connecting: the server waits for exactly one connection.
    fn is_listened_on(&self) -> bool {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let table = fs::read_to_string(file).unwrap_or_default();
            table.lines().skip(1).any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let local = words.next().and_then(|a| a.rsplit(':').next()).unwrap_or_default();
                let state = words.nth(1).unwrap_or_default();
                u16::from_str_radix(local, 16) == Ok(self.number) && state == "0A"
            })
        })
    }
}

/// Binds to any address and a free port.
fn bind_any(socket: &OwnedFd) -> u16 {
    // SAFETY: integers and arrays of them may all be zero.
    let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    addr.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    let mut size = libc::socklen_t::try_from(size_of_val(&addr)).expect("28");
    let fd = socket.as_raw_fd();
    // SAFETY: an open socket and an address of that size.
    let rc = unsafe { libc::bind(fd, (&raw const addr).cast(), size) };
    assert_eq!(rc, 0, "bind: {}", std::io::Error::last_os_error());
    // SAFETY: as above; the address is writable.
    let rc = unsafe { libc::getsockname(fd, (&raw mut addr).cast(), &raw mut size) };
    assert_eq!(rc, 0, "getsockname: {}", std::io::Error::last_os_error());
    let bound = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, u16::from_be(addr.sin6_port), 0, 0));
    bound.port()
}

/// Two hosts: the same device name, different addresses of one subnet.
pub(crate) const HOSTS: [&str; 2] = ["soft0:addr=10.1.0.1/24", "soft0:addr=10.1.0.2/24"];

/// A server and a client of one program.
pub(crate) struct Pair {
    name: &'static str,
    args: Vec<String>,
    env: [Vec<(&'static str, String)>; 2],
}

impl Pair {
    pub(crate) fn new(name: &'static str, args: &str) -> Self {
        let fabric = fabric();
        let env = HOSTS.map(|devices| {
            vec![("SOFTVERBS_FABRIC", fabric.clone()), ("SOFTVERBS_DEVICES", devices.to_owned())]
        });
        Self { name, args: args.split_whitespace().map(str::to_owned).collect(), env }
    }

    /// Sets a variable of both sides.
    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.env.iter_mut().for_each(|side| side.push((name, value.to_owned())));
        self
    }

    /// Sets a variable of the server (0) or the client (1).
    pub(crate) fn env_of(mut self, side: usize, name: &'static str, value: &str) -> Self {
        self.env[side].push((name, value.to_owned()));
        self
    }

    fn command(&self, side: usize, port: &Port) -> Command {
        let mut command = program(self.name);
        command.args(["-p", &port.number()]).args(&self.args).envs(self.env[side].iter().cloned());
        command
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn server(&self, port: &Port) -> Running {
        let mut server = Running::start(self.command(0, port));
        server.wait_listening(port);
        server
    }

    /// Prepares a client of the server at that port.
    pub(crate) fn client_command(&self, port: &Port) -> Command {
        let mut command = self.command(1, port);
        command.arg("localhost");
        command
    }

    /// Starts a client of the server at that port.
    pub(crate) fn client(&self, port: &Port) -> Running {
        Running::start(self.client_command(port))
    }

    /// Prepares another program in the same fabric, on the same devices.
    pub(crate) fn again(&self, name: &'static str, args: &str) -> Self {
        Self { env: self.env.clone(), ..Self::new(name, args) }
    }

    /// Runs both ends to their end.
    pub(crate) fn run(&self) -> [Ended; 2] {
        let port = Port::new();
        let server = self.server(&port);
        let client = self.client(&port).end();
        if !client.status.success() {
            // The server may wait forever.
            let text = server.text();
            server.kill();
            panic!(
                "{} {:?}: client {}:\n{}\nserver:\n{text}",
                self.name, self.args, client.status, client.text
            );
        }
        [server.end(), client]
    }

    /// Runs both ends, which must succeed. Returns their outputs.
    pub(crate) fn outputs(&self) -> [String; 2] {
        self.run().map(Ended::success)
    }
}
