//! `mpib drain`, beside a transfer over two simulated rails.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::agent_walk::Agent;
use crate::job::transfer;
use crate::transfer::{said, stats, until, workers};

/// Runs `mpib drain` or `mpib undrain` by the agent in this folder.
fn mpib(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    command.args(args).arg("--socket-dir").arg(folder).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{}{stderr}", String::from_utf8_lossy(&output.stdout))
}

fn agent(folder: &Path) -> Agent {
    let agent = Agent::start(folder, "policy = \"static\"\ndefault_share = 341\n");
    until("the agent's socket", || folder.join("api.sock").exists().then_some(()));
    agent
}

//= agent.md: mpib drain waits until a cable can be pulled
#[test]
fn a_port_is_drained_until_its_cable_can_be_pulled() {
    let folder = tempfile::tempdir().unwrap();
    let devices = ["out", "up"].map(|name| format!("pull{name}{}", std::process::id()));
    let [sout, sup] = devices.clone().map(|device| format!("{device}:1"));
    let _agent = agent(folder.path());
    let rails =
        format!("{}:addr=10.9.0.1/24,rate=100MB;{}:addr=10.9.1.1/24,rate=50MB", devices[0], devices[1]);
    let perf = transfer("drain", &rails, &devices, folder.path());
    let [sender, receiver] = workers(&perf);
    let drained = mpib(folder.path(), &["drain", &sup, "--wait", "--reason", "ticket 17"]);
    let said_of = text(&drained);
    assert_eq!(drained.status.code(), Some(0), "{said_of}");
    let free = format!("{sup} has carried no data for 2 s: its cable can be pulled. ");
    assert!(said_of.contains(&free), "{said_of}");

    let both = mpib(folder.path(), &["drain", &sout, "--wait", "--timeout", "3"]);
    let said_of = text(&both);
    assert_eq!(both.status.code(), Some(6), "{said_of}");
    assert!(said_of.contains(&format!("{sout} is still needed after 3 s: ")), "{said_of}");
    assert!(
        said_of.contains(&format!("process {sender} ")) || said_of.contains(&format!("process {receiver} ")),
        "{said_of}"
    );

    for port in [&sout, &sup] {
        let back = mpib(folder.path(), &["undrain", port]);
        assert_eq!((back.status.code(), text(&back)), (Some(0), format!("{port} is in use again\n")));
    }
    let (_, page) = said(&stats(&["--json"]));
    assert!(page.contains(&sup), "{page}");
}

//= agent.md: a port that the host does not have is refused
#[test]
fn a_wrong_name_is_refused_with_those_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = mpib(folder.path(), &["drain", "mlx5_9:1"]);
    assert_eq!(nobody.status.code(), Some(1), "{}", text(&nobody));
    assert!(text(&nobody).contains("api.sock: no agent listens there"), "{}", text(&nobody));
    let _agent = agent(folder.path());
    for port in ["nosuch:1", "nosuch"] {
        let wrong = mpib(folder.path(), &["drain", port]);
        assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
        assert!(text(&wrong).contains(port), "{}", text(&wrong));
    }
    let forced = mpib(folder.path(), &["drain", "nosuch:1", "--force", "--wait"]);
    assert_eq!(forced.status.code(), Some(0), "{}", text(&forced));
    assert!(text(&forced).contains("nosuch:1 is not used: its cable can be pulled"), "{}", text(&forced));
}

//= agent.md: nobody in a container can drain a port
#[test]
fn root_of_a_container_is_no_operator() {
    let inside = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", program]);
        command
    };
    if !inside("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user cannot make namespaces of users and processes");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let _agent = agent(folder.path());
    let mut command = inside(env!("CARGO_BIN_EXE_mpib"));
    command.args(["drain", "x:1", "--force", "--socket-dir"]);
    let refused = command.arg(folder.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("nobody in a container"), "{}", text(&refused));
}
