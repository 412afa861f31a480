//! `mpib hwcheck` between two simulated hosts: what it passes, what it finds, and what it restores.

mod faults;
mod nccl;
mod network;
mod perftest;
mod programs;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use serde_json::Value;

use crate::built::artifact;
use crate::doctor_util::{Listener, fabric, mpib};
use crate::fake::fake_cuda;
use crate::transfer::until;
use crate::two_hosts::{ADDRESSES, TwoHosts};

/// Small sizes and short times. A busy machine stalls for long.
const QUICK: [(&str, &str); 7] = [
    ("--memory", "2M"),
    ("--sizes", "8,4K,100K"),
    ("--time", "0.1"),
    ("--steady", "0.2"),
    ("--connections", "2"),
    ("--limit", "30"),
    // Its rate is that of a busy machine, too.
    ("--least-of-perftest", "0"),
];

/// Returns a host's two ports.
fn ports(host: u8, more: &str) -> String {
    format!("sout:addr=10.9.0.{host}/24{more};sup:addr=10.9.1.{host}/24{more}")
}

/// A pair of hosts: devices, settings and faults of each end.
struct Pair {
    fabric: String,
    plugin: PathBuf,
    devices: [String; 2],
    env: [Vec<(String, String)>; 2],
    /// Absent: both ends are on this host.
    hosts: Option<TwoHosts>,
    /// Of programs that stand in for others.
    folders: Vec<tempfile::TempDir>,
}

impl Pair {
    fn new(more: &str) -> Self {
        let plugin = artifact("libnccl-net-mpib.so");
        let devices = [ports(1, more), ports(2, more)];
        Self { fabric: fabric(), plugin, devices, env: Default::default(), hosts: None, folders: Vec::new() }
    }

    fn command(&self, end: usize) -> Command {
        let mut command = mpib(&self.fabric, &self.devices[end]);
        // Two rails with data on both.
        command.args(["hwcheck", "--plugin"]).arg(&self.plugin);
        if self.devices[end].contains("sout") {
            command.envs([("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup"), ("MPIB_SUP_SHARE", "512")]);
        }
        command.env("SOFTVERBS_LOG", "off");
        command.envs(self.env[end].iter().cloned());
        match &self.hosts {
            Some(hosts) => hosts.command(end, &command),
            None => command,
        }
    }

    /// Gives both ends a stand-in for CUDA's driver.
    fn has_gpus(&mut self) {
        for env in &mut self.env {
            let verbs = artifact("softverbs/libibverbs.so.1");
            let folders = format!("{}:{}", fake_cuda().display(), verbs.parent().unwrap().display());
            env.push(("LD_LIBRARY_PATH".into(), folders));
        }
    }

    fn listen(&self) -> Listener {
        let address = if self.hosts.is_some() { ADDRESSES[1] } else { "127.0.0.1" };
        Listener::of(self.command(1).args(["--listen", &format!("{address}:0")]))
    }

    /// Prepares the leading end.
    fn lead(&self, listener: &Listener, options: &str) -> Command {
        let mut command = self.command(0);
        command.args(["--json", &listener.address]).args(words(options));
        for (option, value) in QUICK.into_iter().filter(|(option, _)| !options.contains(option)) {
            command.args([option, value]);
        }
        command
    }

    fn run(&self, options: &str) -> Found {
        let listener = self.listen();
        Found::of(&mut self.lead(&listener, options))
    }

    /// Returns the command that acts on a device of the leading host.
    fn ctl(&self, action: &str) -> String {
        format!("{} {action}", artifact("softverbs/softverbs-ctl").display())
    }
}

/// Splits at spaces that are not between quotes.
fn words(text: &str) -> Vec<String> {
    let pieces = text.split('\'').enumerate();
    let split = |(i, piece): (usize, &str)| match i % 2 {
        0 => piece.split_whitespace().map(str::to_owned).collect(),
        _ => vec![piece.to_owned()],
    };
    pieces.flat_map(split).collect()
}

fn outage(pair: &Pair, step: &str, down: &str, up: &str) -> String {
    let command = |action: &str| if action.contains('@') { pair.ctl(action) } else { action.to_owned() };
    format!("--{step}-down '{}' --{step}-up '{}'", command(down), command(up))
}

/// The document of a run.
#[derive(Debug)]
struct Found {
    code: i32,
    document: Value,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:#}", self.code, self.document["steps"])
    }
}

impl Found {
    fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        Self { code: output.status.code().unwrap(), document }
    }

    fn step(&self, name: &str) -> &Value {
        let steps = self.document["steps"].as_array().unwrap_or_else(|| panic!("{:#}", self.document));
        steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no {name}: {self}"))
    }

    fn verdict(&self, name: &str) -> &str {
        self.step(name)["verdict"].as_str().unwrap()
    }

    /// Returns the texts of a step's checks of this level.
    fn texts(&self, name: &str, level: &str) -> Vec<String> {
        let checks = self.step(name)["checks"].as_array().unwrap().iter();
        let found = checks.filter(|check| check["level"] == level);
        found.map(|check| check["text"].as_str().unwrap().to_owned()).collect()
    }
}

//= hwcheck.md: ten steps between two hosts, and one file to send
#[test]
fn a_good_pair_passes_all_that_it_can_run() {
    let mut pair = Pair::new(",counters=on");
    let sysfs = tempfile::tempdir().unwrap();
    for (end, devices) in pair.devices.iter_mut().enumerate() {
        for rail in ["sout", "sup"] {
            let folder = sysfs.path().join(format!("{rail}-{end}"));
            *devices = devices.replace(&format!("{rail}:"), &format!("{rail}:sysfs={},", folder.display()));
        }
    }
    let bundle = tempfile::tempdir().unwrap();
    let file = bundle.path().join("found.tar.gz");
    let options = format!(
        "--bundle {} {} --driver-down '{}' --driver-up '{}' --budget 60",
        file.display(),
        format_args!(
            "--link-down '{}' --link-up '{}'",
            pair.ctl("link sup@10.9.1.1 down"),
            pair.ctl("link sup@10.9.1.1 up")
        ),
        pair.ctl("fault sup@10.9.1.1 fatal"),
        pair.ctl("heal sup@10.9.1.1"),
    );
    let found = pair.run(&options);
    let verdicts = ["host", "data", "gpu", "link", "driver", "death", "control", "steady", "network", "nccl"]
        .map(|step| format!("{step} {}", found.verdict(step)));
    let expected = [
        "host passed",
        "data passed",
        "gpu not run",
        "link passed",
        "driver passed",
        "death passed",
        "control passed",
        "steady passed",
        "network not run",
        "nccl not run",
    ];
    let texts = |step: &str| [found.texts(step, "fail"), found.texts(step, "note")].concat();
    let wrong: Vec<_> = (expected.iter().zip(&verdicts).filter(|(expected, verdict)| expected != verdict))
        .map(|(_, verdict)| (verdict, texts(verdict.split(' ').next().unwrap())))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{found}");
    assert_eq!(
        (found.code, &found.document["passed"], &found.document["not_run"]),
        (0, &7.into(), &3.into())
    );
    // The outage shows in the counters of the step link, and the steady state has none.
    let counters = |step: &str| found.step(step)["counters"].as_array().unwrap().len();
    assert_eq!(counters("steady"), 0, "{found}");
    let text = bundled(&file, "hwcheck.txt");
    assert!(text.starts_with("passed: 7 of 10 steps passed, 0 failed, 3 not run\n"), "{text}");
    let json: Value = serde_json::from_str(&bundled(&file, "hwcheck.json")).unwrap();
    assert_eq!(json["passed"], 7);
}

/// A stage ends when the rail has carried enough to be judged, not with the clock alone.
//= hwcheck.md: ten steps between two hosts, and one file to send
#[test]
fn an_outage_is_judged_however_short_its_stages_are() {
    let mut pair = Pair::new("");
    pair.env.iter_mut().for_each(|env| env.push(("MPIB_SUP_SHARE".into(), "128".into())));
    let outage = outage(&pair, "link", "link sup@10.9.1.1 down", "link sup@10.9.1.1 up");
    let found = pair.run(&format!("--step link --time 0.001 {outage}"));
    assert_eq!(found.verdict("link"), "passed", "{found}");
}

/// Returns a file of a bundle.
fn bundled(archive: &Path, name: &str) -> String {
    let output = Command::new("tar")
        .arg("-xOzf")
        .arg(archive)
        .args(["--wildcards", &format!("*/{name}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

//= hwcheck.md: what does not run is never reported as passed
#[test]
fn outages_that_nobody_permits_do_not_run() {
    let found = Pair::new("").run("--step link,driver,gpu,network,nccl");
    assert_eq!(found.code, 0);
    for (step, says) in [
        ("link", "--link-down"),
        ("driver", "--driver-down"),
        ("gpu", "libcuda"),
        ("network", "127.0.0.1"),
        ("nccl", "libcuda"),
    ] {
        assert_eq!(found.verdict(step), "not run", "{found}");
        let text = found.texts(step, "note").concat();
        assert!(text.starts_with("not run: ") && text.contains(says), "{text}");
    }
}

//= hwcheck.md: wrong options are refused before the first step
#[test]
fn wrong_options_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let (old, missing) = (mark(&folder, "old.tar.gz"), mark(&folder, "none/new.tar.gz"));
    fs::write(&old, "found before").unwrap();
    let cases = [
        (format!("--bundle {}", old.display()), "old.tar.gz exists"),
        (format!("--bundle {}", missing.display()), "none is no folder"),
        ("--rail sup:2".into(), "expected one of sout:1, sup:1"),
    ];
    for (options, says) in cases {
        // No listener is there to be connected to.
        let output = Pair::new("").command(0).arg("127.0.0.1:1").args(words(&options)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{options}: {said}");
    }
    assert_eq!(fs::read_to_string(&old).unwrap(), "found before");
}

//= hwcheck.md: a step that cannot reach the other host has failed
#[test]
fn a_step_without_the_other_host_has_failed() {
    let pair = Pair::new("");
    let listener = pair.listen();
    let mut command = pair.lead(&listener, "--step host,gpu");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("mpib: step host")));
    drop(listener);
    assert!(lines.any(|line| line.starts_with("mpib: step gpu")));
    let output = child.wait_with_output().unwrap();
    let found = Found {
        code: output.status.code().unwrap(),
        document: serde_json::from_slice(&output.stdout).unwrap(),
    };
    assert_eq!((found.code, found.verdict("gpu")), (1, "failed"), "{found}");
}

//= hwcheck.md: a connection with one rail waits for it
#[test]
fn the_only_rail_of_a_device_is_restored_after_a_while() {
    let mut pair = Pair::new("");
    pair.devices = [1, 2].map(|host| format!("sup:addr=10.9.1.{host}/24"));
    let found = pair.run(&outage(&pair, "link", "link sup@10.9.1.1 down", "link sup@10.9.1.1 up"));
    assert_eq!(found.verdict("link"), "passed", "{found}");
}

/// A path that appears when a shell command has run.
fn mark(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

//= hwcheck.md: a rail is restored however the command ends
#[test]
fn a_rail_is_restored_when_the_command_is_killed() {
    let pair = Pair::new("");
    let listener = pair.listen();
    let folder = tempfile::tempdir().unwrap();
    let (down, up) = (mark(&folder, "down"), mark(&folder, "up"));
    // The command is killed while the rail is out of service.
    let take =
        format!("{} && touch {} && exec sleep 600", pair.ctl("link sup@10.9.1.1 down"), down.display());
    // The simulated network has ended with its last process.
    let give = format!("touch {}", up.display());
    let options = format!("--step link --link-down '{take}' --link-up '{give}'");
    let mut command = pair.lead(&listener, &options);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the link goes down", || down.exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the link comes up", || up.exists().then_some(()));
}

//= hwcheck.md: a person runs the commands that are printed
#[test]
fn a_person_runs_the_commands() {
    let pair = Pair::new("");
    let listener = pair.listen();
    let (down, up) = (pair.ctl("link sup@10.9.1.1 down"), pair.ctl("link sup@10.9.1.1 up"));
    let options = format!("--step link --by-hand --link-down '{down}' --link-up '{up}'");
    let mut command = pair.lead(&listener, &options);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let requested = lines.filter_map(|line| Some(line.strip_prefix("mpib: now run: ")?.to_owned()));
    let mut ran = Vec::new();
    for line in requested {
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", &line]).env("SOFTVERBS_FABRIC", &pair.fabric).status().unwrap();
        assert!(status.success(), "{line}");
        ran.push(line);
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(ran, [down, up]);
    let found = Found {
        code: output.status.code().unwrap(),
        document: serde_json::from_slice(&output.stdout).unwrap(),
    };
    assert_eq!((found.code, found.verdict("link")), (0, "passed"), "{found}");
}

//= hwcheck.md: a counter of lost packets or missing receives that grows is a failure
#[test]
fn a_growing_counter_is_a_failure_of_the_steady_state() {
    let mut pair = Pair::new("");
    let folder = tempfile::tempdir().unwrap();
    let counters = folder.path().join("ports/1/hw_counters");
    fs::create_dir_all(&counters).unwrap();
    let file = counters.join("rnr_nak_retry_err");
    fs::write(&file, "0").unwrap();
    pair.devices[1] = pair.devices[1].replacen("/24", &format!("/24,sysfs={}", folder.path().display()), 1);
    let done = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0u64;
            while !done.load(Relaxed) {
                count += 1;
                // A reader must not find an empty file.
                fs::write(counters.join("new"), count.to_string()).unwrap();
                fs::rename(counters.join("new"), &file).unwrap();
                thread::yield_now();
            }
        });
        let found = pair.run("--step steady");
        done.store(true, Relaxed);
        found
    });
    let texts = found.texts("steady", "fail");
    assert!(
        texts.iter().any(|text| text.contains("rnr_nak_retry_err") && text.contains("missing receives")),
        "{found}"
    );
    assert!(texts.iter().all(|text| text.starts_with("sout:1 there: ")), "{texts:?}");
}
