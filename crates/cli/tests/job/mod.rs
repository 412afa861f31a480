//! A job on two simulated rails, with an agent that serves HTTP.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::built::{artifact, mpib};
use crate::transfer::{Ended, fabric_of, said};

pub(crate) const TOKEN: &str = "a-token-for-tests-only";

/// A job whose SUP carries a third of the data, and its agent.
pub(crate) struct Job {
    /// `http://ADDRESS`
    pub(crate) url: String,
    test: String,
    _perf: Ended,
    agent: Option<Ended>,
    _dir: TempDir,
}

impl Job {
    /// Starts a job on these devices as SOUT and SUP. Other jobs of this machine, which the agent sees
    /// too, have others.
    pub(crate) fn start(test: &str, devices: [String; 2]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (token, config) = (dir.path().join("token"), dir.path().join("agent.toml"));
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&config, format!("default_share = 341\n[http]\ntoken_file = {token:?}\n")).unwrap();
        let mut agent = Command::new(env!("CARGO_BIN_EXE_mpib"));
        agent.args(["agent", "--http", "127.0.0.1:0", "--socket-dir"]).arg(dir.path());
        agent.arg("--config").arg(&config).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut agent = Ended(agent.spawn().unwrap());
        let mut log = BufReader::new(agent.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = log.find_map(|line| Some(line.split_once("serves ")?.1.trim_end_matches('/').to_owned()));
        let url = url.expect("the agent has ended");
        thread::spawn(move || log.for_each(drop));

        let [sout, sup] = &devices;
        let rails = format!("{sout}:addr=10.9.0.1/24,rate=400MB;{sup}:addr=10.9.1.1/24,rate=200MB");
        let perf = transfer(test, &rails, &devices, dir.path());
        Self { url, test: test.to_owned(), _perf: perf, agent: Some(agent), _dir: dir }
    }

    /// Takes the link of a device down, or up again.
    pub(crate) fn link(&self, device: &str, state: &str) {
        link(&self.test, device, state);
    }

    /// Kills the agent.
    pub(crate) fn end_agent(&mut self) {
        self.agent = None;
    }
}

/// Starts an endless transfer over two rails, with hints from the agent in this folder.
pub(crate) fn transfer(test: &str, rails: &str, devices: &[String; 2], agent: &Path) -> Ended {
    Ended(transfer_command(test, rails, devices, agent).spawn().unwrap())
}

/// Prepares such a transfer.
pub(crate) fn transfer_command(test: &str, rails: &str, [sout, sup]: &[String; 2], agent: &Path) -> Command {
    let mut perf = mpib(&fabric_of(test), rails);
    perf.args(["perf", "--sizes", "1M", "--time", "600", "--no-check", "--plugin"]);
    perf.arg(artifact("libnccl-net-mpib.so"))
        .env("MPIB_HCA_SOUT", sout)
        .env("MPIB_HCA_SUP", sup)
        .env("MPIB_MODE", "1")
        // Shares that do not follow the load.
        .env("MPIB_SPLIT", "speed")
        .env("MPIB_AGENT_SOCKET", agent.join("agent.sock"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    perf
}

/// Takes the link of a device of a test down, or up again.
pub(crate) fn link(test: &str, device: &str, state: &str) {
    let mut command = Command::new(artifact("softverbs/softverbs-ctl"));
    let output = command.args(["--fabric", &fabric_of(test), "link", device, state]).output();
    let (code, text) = said(&output.unwrap());
    assert_eq!(code, 0, "{text}");
}
