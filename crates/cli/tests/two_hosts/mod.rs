//! Two network namespaces as hosts with a cable between them. A simulated fabric goes past it.

use std::{
    io::{BufRead, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

/// The address of each host.
pub(crate) const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// What happens in the new namespaces before the hosts are there. The process lasts as long as its
/// stdin.
const ENTER: &str = "
mount -t tmpfs none /run
ip netns add b
ip link add eth0 type veth peer name eth0 netns b
ip addr add 192.0.2.1/24 dev eth0
ip -n b addr add 192.0.2.2/24 dev eth0
ip link set eth0 up
ip -n b link set eth0 up
is_up() { ip \"$@\" -br link show eth0 up | grep -q ' UP '; }
until is_up && is_up -n b; do sleep 0.02; done
echo up
exec cat";

/// Two hosts. They end with the test.
pub(crate) struct TwoHosts {
    child: Child,
    is_root: bool,
}

impl TwoHosts {
    /// `None` if this user cannot make namespaces, which is printed. With `TEST_NAMESPACES` set it fails.
    pub(crate) fn up() -> Option<Self> {
        // SAFETY: cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount"]).args((!is_root).then_some("--map-root-user"));
        command.args(["sh", "-euc", ENTER]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line == "up\n" {
            return Some(Self { child, is_root });
        }
        let output = child.wait_with_output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("TEST_NAMESPACES").is_none(), "TEST_NAMESPACES is set, and: {why}");
        // Without eprintln, whose output libtest captures.
        let _ = writeln!(std::io::stderr(), "tests between two hosts: NOT RUN: {why}");
        None
    }

    /// Prepares a command on a host, 0 or 1. Its process is the program's.
    pub(crate) fn command(&self, host: usize, inner: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.child.id().to_string(), "--net", "--mount"]);
        command.args(["--user", "--preserve-credentials"].iter().filter(|_| !self.is_root));
        command.args(["ip", "netns", "exec", "b"].iter().filter(|_| host == 1));
        command.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Its stdin has ended, and so it does.
        let _ = self.child.wait();
    }
}
