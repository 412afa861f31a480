//! Network namespaces as hosts: a topology is a value, `ip` makes it, and processes run on its
//! hosts.
//!
//! Nothing of it has a name outside of the test. The test's process enters new namespaces: a
//! network namespace, which has the bridges; a mount namespace, with a /run for temporary files and
//! the names of `ip netns`, and a /dev/shm for softverbs; and a user namespace if the user is not
//! root. Namespaces last as long as the processes in them, and these processes end with the test.
//! No cleanup is necessary, even if the test is killed.

pub mod islands;
pub mod watch;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output, Stdio};

use crate::pair::until;
use crate::peer::Peer;
use crate::process::{Role, is_child, isolated_under};
use crate::sys;

/// What happens in the new namespaces before the test's process goes on in them.
const ENTER: &str = r#"mount -t tmpfs none /run; mount -t tmpfs none /dev/shm; export TMPDIR=/run; ip link set lo up; exec "$@""#;

/// As [`isolated`](crate::isolated), where [`Hosts`] can be made. Where that is not allowed, as in
/// most containers, the test prints that it does not run; with `TEST_NAMESPACES` set it fails.
pub fn on_hosts(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        isolated_under(&[], test, env, body);
        return;
    }
    // SAFETY: cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let mut by = vec!["unshare", "--net", "--mount"];
    by.extend((!root).then_some("--map-root-user"));
    by.extend(["sh", "-euc", ENTER, "sh"]);
    let tried =
        Command::new(by[0]).args(&by[1..]).args(["ip", "link", "add", "br0", "type", "bridge"]).output();
    let trouble = match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Some(e.to_string()),
    };
    if let Some(why) = trouble {
        let what = "network namespaces cannot be made here (a container without CAP_SYS_ADMIN?)";
        return sys::skip(test, what, &why);
    }
    isolated_under(&by, test, env, body);
}

/// Host, its interface, an address of it with prefix length. An interface with several addresses is
/// in several of these.
pub type End = (&'static str, &'static str, &'static str);

/// Hosts, and the networks that they are on.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    /// The ends on one network reach each other: two are a cable, more a switch. One alone is an
    /// interface that leads nowhere.
    pub networks: Vec<Vec<End>>,
    /// Host, destination, next hop. Hosts reach their own networks without one.
    pub routes: Vec<(&'static str, &'static str, &'static str)>,
    /// Hosts that pass on what is for others.
    pub routers: Vec<&'static str>,
}

/// A topology that is up.
pub struct Hosts(Topology);

fn ip(args: &[&str], batch: &str) -> Output {
    let mut command = Command::new("ip");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("ip (iproute2) can be run");
    child.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn must(args: &[&str], batch: &str) -> String {
    let output = ip(args, batch);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "ip {args:?}: {}\n{batch}", text(&output.stderr));
    text(&output.stdout)
}

impl Hosts {
    /// Makes it; every interface is up and has its addresses when this is over. Once in a process.
    pub fn up(topology: Topology) -> Self {
        let hosts = Self(topology);
        must(&["-batch", "-"], &hosts.cables());
        for host in hosts.names() {
            must(&["-n", host, "-batch", "-"], &hosts.settings(host));
        }
        for host in &hosts.0.routers {
            let on = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
            assert!(hosts.command(host, "sh").args(["-euc", on]).status().unwrap().success());
        }
        for host in hosts.names() {
            let down = || must(&["-n", host, "-br", "link"], "").lines().any(|line| line.contains("DOWN"));
            until("interfaces to be up", || (!down()).then_some(()));
        }
        hosts
    }

    fn names(&self) -> BTreeSet<&'static str> {
        self.0.networks.iter().flatten().map(|(host, ..)| *host).collect()
    }

    /// Namespaces, a bridge for each network, and from each of its ports a cable to an interface.
    fn cables(&self) -> String {
        let mut batch = String::new();
        for host in self.names() {
            writeln!(batch, "netns add {host}").unwrap();
        }
        for (n, ends) in self.0.networks.iter().enumerate() {
            writeln!(batch, "link add n{n} type bridge\nlink set dev n{n} up").unwrap();
            let interfaces: BTreeSet<_> = ends.iter().map(|(host, interface, _)| (host, interface)).collect();
            for (i, (host, interface)) in interfaces.iter().enumerate() {
                let port = format!("n{n}p{i}");
                writeln!(batch, "link add {port} type veth peer name {interface} netns {host}").unwrap();
                writeln!(batch, "link set dev {port} master n{n} up").unwrap();
            }
        }
        batch
    }

    /// A host's interfaces, addresses and routes.
    fn settings(&self, host: &str) -> String {
        let mut batch = "link set lo up\n".to_owned();
        for (_, interface, addr) in self.0.networks.iter().flatten().filter(|end| end.0 == host) {
            // Nobody else has it: no time is spent on finding that out.
            let nodad = if addr.contains(':') { " nodad" } else { "" };
            writeln!(batch, "link set dev {interface} up\naddr add {addr} dev {interface}{nodad}").unwrap();
        }
        for (_, destination, hop) in self.0.routes.iter().filter(|route| route.0 == host) {
            writeln!(batch, "route add {destination} via {hop}").unwrap();
        }
        batch
    }

    /// A command that runs on `host`; its process is the program's.
    pub fn command(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).arg(program);
        command
    }

    /// A second process of the test on `host`.
    pub fn process(&self, host: &str, role: Role) -> Command {
        role.command_by(self.command(host, std::env::current_exe().unwrap()))
    }

    /// A peer on `host`, with these variables.
    pub fn peer(&self, host: &str, env: &[(&str, &str)]) -> Peer {
        Peer::start_by(self.process(host, Role::Peer), env)
    }

    /// The first address of a host's interface, with its prefix length.
    pub fn addr(&self, host: &str, interface: &str) -> (IpAddr, u8) {
        let mut ends = self.0.networks.iter().flatten();
        let end = ends.find(|end| (end.0, end.1) == (host, interface));
        let (_, _, addr) = end.unwrap_or_else(|| panic!("{host} has no {interface}"));
        let (addr, len) = addr.split_once('/').unwrap();
        (addr.parse().unwrap(), len.parse().unwrap())
    }

    /// Whether a TCP connection from `host` to there comes about, or is refused there, as opposed
    /// to there being no way.
    pub fn reaches(&self, host: &str, to: IpAddr) -> bool {
        let to = SocketAddr::new(to, 9).to_string();
        let output = self.process(host, Role::Knock).env(KNOCK, to).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        said.contains("@@reached")
    }
}

/// Has `peers` move one message over each of their connections, all at once. `made` has the
/// connections as indices of sender and receiver, in the order in which they were made.
pub fn exchange(peers: &mut [Peer], made: &[(usize, usize)], len: usize) {
    for (i, peer) in peers.iter_mut().enumerate() {
        let seed = |(from, to): &(usize, usize)| (1 + 64 * from + to).to_string();
        let sent = made.iter().filter(|made| made.0 == i).map(seed);
        let received = made.iter().filter(|made| made.1 == i).map(seed);
        let seeds: Vec<_> = sent.chain(received).collect();
        peer.say(&format!("exchange {len} {}", seeds.join(" ")));
    }
    for peer in peers {
        assert_eq!(peer.answer(), "ok");
    }
}

/// Passes to the process of [`knock`] where to connect.
const KNOCK: &str = "TEST_KNOCK";

/// The process that [`Hosts::reaches`] runs.
pub fn knock() {
    let to = std::env::var(KNOCK).expect("an address to knock at");
    let answer = std::net::TcpStream::connect(to.parse::<SocketAddr>().unwrap());
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    match answer.map_err(|e| e.kind()) {
        Ok(_) | Err(ConnectionRefused) => println!("@@reached"),
        Err(HostUnreachable | NetworkUnreachable) => println!("@@no way"),
        Err(e) => panic!("{to}: {e}"),
    }
}
