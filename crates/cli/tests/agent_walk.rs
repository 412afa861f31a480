//! The way of docs/guide/agent.md: two jobs, an agent that decides, and an operator who changes its
//! mind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::built::artifact;
use crate::transfer::{Ended, fabric_of, said, stats, until};

const TEST: &str = "walk";

/// The agent, and its configuration.
pub(crate) struct Agent {
    process: Ended,
    config: std::path::PathBuf,
}

impl Agent {
    pub(crate) fn start(folder: &Path, config: &str) -> Self {
        let file = folder.join("agent.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
        command.args(["agent", "--http", "off", "--socket-dir"]).arg(folder).arg("--config").arg(&file);
        let process = Ended(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("the socket", || folder.join("agent.sock").exists().then_some(()));
        Self { process, config: file }
    }

    /// Changes the configuration, and has the agent read it.
    pub(crate) fn reload(&self, config: &str) {
        fs::write(&self.config, config).unwrap();
        kill(Pid::from_raw(self.process.0.id() as i32), Signal::SIGHUP).unwrap();
    }
}

/// The share of SUP of each sender over this port that has used one.
fn shares(sup: &str) -> Vec<u64> {
    let output = stats(&["--json"]);
    let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) else { return Vec::new() };
    let all = document["processes"].as_array().into_iter().flatten();
    let connections = all.flat_map(|process| process["connections"].as_array().into_iter().flatten());
    let uses = |connection: &&Value| {
        let rails = connection["rails"].as_array().into_iter().flatten();
        connection["direction"] == "send" && rails.into_iter().any(|rail| rail["name"] == format!("{sup}:1"))
    };
    connections.filter(uses).filter_map(|connection| connection["share"].as_u64()).collect()
}

/// Waits until both jobs have such a share.
fn both(sup: &str, what: &str, is_right: impl Fn(u64) -> bool) {
    until(what, || {
        let found = shares(sup);
        (found.len() == 2 && found.iter().all(|share| is_right(*share))).then_some(())
    });
}

//= agent.md: the walk-through
#[test]
fn an_operator_walks_through_the_guide() {
    let folder = tempfile::tempdir().unwrap();
    let devices = ["out", "up"].map(|name| format!("walk{name}{}", std::process::id()));
    let [sout, sup] = &devices;
    let agent = Agent::start(folder.path(), "policy = \"static\"\ndefault_share = 341\n");
    let rails = format!("{sout}:addr=10.9.0.1/24,rate=100MB;{sup}:addr=10.9.1.1/24,rate=50MB");
    let _jobs = [(); 2].map(|()| crate::job::transfer(TEST, &rails, &devices, folder.path()));
    both(sup, "the rule's share", |share| share == 341);
    agent.reload("policy = \"static\"\ndefault_share = 100\n");
    both(sup, "the new rule's share", |share| share == 100);
    agent.reload("policy = \"static\"\ndefault_shar = 200\n");
    agent.reload("policy = \"measured\"\n");
    both(sup, "the share by measurement", |share| (280..=400).contains(&share));
    // SUP becomes twice as fast as SOUT.
    let ctl = |args: &[&str]| {
        let mut command = Command::new(artifact("softverbs/softverbs-ctl"));
        let output = command.args(["--fabric", &fabric_of(TEST)]).args(args).output().unwrap();
        assert_eq!(said(&output).0, 0, "{}", said(&output).1);
    };
    ctl(&["rate", sup, "200MB"]);
    both(sup, "the share after a change of SUP's rate", |share| share > 600);
    agent.reload(&format!("policy = \"measured\"\ndrain = [\"{sup}:1\"]\n"));
    both(sup, "SUP out of use", |share| share == 0);
    agent.reload("policy = \"measured\"\n");
    both(sup, "SUP in use again", |share| share > 600);
    agent.reload("policy = \"drain\"\n");
    both(sup, "SUP out of use for all flows", |share| share == 0);
    agent.reload("policy = \"measured\"\n");
    both(sup, "SUP in use for all flows again", |share| share > 600);
    // Without the agent the last shares stay; with the next one they follow its rules. Measured ones
    // could be any at that moment.
    agent.reload("policy = \"static\"\ndefault_share = 700\n");
    both(sup, "the last rule's share", |share| share == 700);
    drop(agent);
    both(sup, "the last share", |share| share == 700);
    let _agent = Agent::start(folder.path(), "policy = \"static\"\ndefault_share = 7\n");
    both(sup, "the next agent's share", |share| share == 7);
}
