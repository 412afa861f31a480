//! Demonstration and tests use nothing of the host: not its agent, its configuration files or the
//! settings of the shell. The host is simulated by namespaces.

use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use crate::built::artifact;
use nccl_net_mpib_agent_iface::environment::WITHOUT_HOST;
use tempfile::TempDir;

/// A host with an agent, and with a configuration file of NCCL that no plugin can use.
struct Host {
    folder: TempDir,
    agent: UnixListener,
}

/// `$1` is the folder of the host, the rest the command.
const ENTER: &str = "mount --bind \"$1/run\" /run; mount --bind \"$1/etc\" /etc; shift; exec \"$@\"";

impl Host {
    /// `None` if this user cannot make namespaces.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("run/mpib")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("etc/nccl.conf"), "MPIB_MODE=7\n").unwrap();
        let agent = UnixListener::bind(at("run/mpib/agent.sock")).unwrap();
        agent.set_nonblocking(true).unwrap();
        let host = Self { folder, agent };
        let output = host.run(Command::new("true"));
        if output.status.success() {
            return Some(host);
        }
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var_os("TEST_NAMESPACES").is_none(), "TEST_NAMESPACES is set, and: {why}");
        // Without eprintln, whose output libtest captures.
        let _ = writeln!(std::io::stderr(), "tests on a simulated host: NOT RUN: {why}");
        None
    }

    /// Runs the command on the host.
    fn run(&self, command: Command) -> Output {
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--map-root-user", "--mount", "sh", "-euc", ENTER, "sh"]);
        inside.arg(self.folder.path()).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.output().unwrap()
    }

    /// Whether a process has connected with the agent.
    fn is_met(&self) -> bool {
        match self.agent.accept() {
            Ok(_) => true,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                false
            }
        }
    }
}

fn perf() -> Command {
    let mut command = crate::built::mpib(&format!("host-{}", std::process::id()), "soft0:addr=10.9.0.1/24");
    command.args(["perf", "--sizes", "8", "--iterations", "10", "--plugin"]);
    command.arg(artifact("libnccl-net-mpib.so"));
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

//= testing.md: a test sees nothing of its host
#[test]
fn a_test_meets_neither_the_hosts_agent_nor_its_files() {
    let Some(host) = Host::new() else { return };
    let output = host.run(perf());
    assert!(output.status.success(), "{}", text(&output));
    assert!(!host.is_met());
    // Without the variables that each test has, both are met.
    let mut command = perf();
    command.env_remove("NO_HOST_NCCL_CONF");
    let output = host.run(command);
    assert!(text(&output).contains("MPIB_MODE=\"7\": expected 0 or 1"), "{}", text(&output));
    let mut command = perf();
    command.env_remove("MPIB_AGENT_SOCKET");
    let output = host.run(command);
    assert!(output.status.success(), "{}", text(&output));
    assert!(host.is_met() || !is_root(), "root's agent is looked for");
}

/// Folders of another user are not trusted in a namespace that does not know that user.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn the_demonstration_depends_on_no_host_and_no_shell() {
    let Some(host) = Host::new() else { return };
    let mut command = Command::new(artifact("mpib"));
    command.args(["demo", "--time", "0.02", "--factor", "512"]);
    for (name, _) in WITHOUT_HOST {
        command.env_remove(name);
    }
    let shell =
        [("MPIB_STRICT", "1"), ("NCCL_IB_HCA", "absent"), ("RCCL_NET", "x"), ("SOFTVERBS_DEVICES", "x")];
    command.envs(shell);
    let output = host.run(command);
    assert!(output.status.success() && text(&output).contains("sup returns"), "{}", text(&output));
    assert!(!host.is_met());
}
