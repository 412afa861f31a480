//! The agent without rights: as another user than that of the jobs, and as a container runs it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};

use crate::transfer::{Ended, said, until};

/// Each system has this user.
const USER: &str = "daemon";

/// Returns the words that leave a program the capabilities of the agent's unit alone.
fn as_the_unit() -> Vec<String> {
    let unit = include_str!("../../../packaging/systemd/mpib-agent.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=CAP_")).unwrap();
    let set = set.to_lowercase().replace(" cap_", ",+");
    ["setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("-all,+{set}")])
        .collect()
}

/// The container of the agent as the Helm chart renders it.
struct Container {
    uid: u32,
    args: Vec<String>,
    /// The folder of the agent's is "mpib" in this one.
    runtime: String,
}

impl Container {
    fn of_the_chart() -> Self {
        let manifest = include_str!("../../../packaging/kubernetes/mpib.yaml");
        let (_, container) = manifest.split_once("\n        - name: agent\n").unwrap();
        let (container, _) = container.split_once("\n      volumes:\n").unwrap();
        for line in
            ["runAsNonRoot: true", "capabilities: {drop: [\"ALL\"]}", "allowPrivilegeEscalation: false"]
        {
            assert!(container.contains(line), "{container}");
        }
        assert!(!manifest.contains("hostPID"));
        let of = |key: &str| container.split_once(key).unwrap().1.lines().next().unwrap();
        Self {
            uid: of("runAsUser: ").parse().unwrap(),
            args: serde_json::from_str(of("args: ")).unwrap(),
            runtime: of("{name: XDG_RUNTIME_DIR, value: ").trim_end_matches('}').to_owned(),
        }
    }

    /// Returns the words that give a program this user and no capability.
    fn words(&self) -> Vec<String> {
        let uid = self.uid;
        ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--clear-groups"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("--reuid={uid}"), format!("--regid={uid}")])
            .collect()
    }
}

/// An agent behind the words of a wrapper, which serves as another user.
struct Agent {
    process: Ended,
    address: String,
}

impl Agent {
    fn start(wrapper: &[impl AsRef<OsStr>], folder: &Path) -> Self {
        let mut command = behind(wrapper);
        command.args(["agent", "--user", USER, "--http", "127.0.0.1:0", "--config", "/dev/null"]);
        command.arg("--socket-dir").arg(folder);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = Ended(command.spawn().unwrap());
        let mut log = BufReader::new(process.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address =
            log.find_map(|line| Some(line.split_once("serves http://")?.1.trim_end_matches('/').to_owned()));
        thread::spawn(move || log.for_each(drop));
        Self { process, address: address.expect("the agent has ended") }
    }

    /// Returns the processes below the wrapper.
    fn children(&self) -> Vec<i32> {
        let pid = self.process.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().map(|child| child.parse().unwrap()).collect()
    }

    /// Kills the agent, which would outlive a wrapper.
    fn kill(&self) {
        for pid in self.children().into_iter().chain([self.process.0.id() as i32]) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits until the metrics have the counts of the two processes of a transfer.
    fn shows(&self, device: &str) {
        let sent = format!("mpib_rail_transmit_bytes_total{{device=\"{device}\",port=\"1\"}} ");
        until("the metrics of a transfer", || {
            let text = self.get("/metrics");
            let bytes = text.lines().find_map(|line| line.strip_prefix(&sent)?.parse::<f64>().ok())?;
            (bytes > 0.0 && text.contains("\nmpib_processes 2\n")).then_some(())
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Prepares `mpib` behind the words of a wrapper.
fn behind(wrapper: &[impl AsRef<OsStr>]) -> Command {
    let (program, options) = wrapper.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(options).arg(env!("CARGO_BIN_EXE_mpib"));
    command
}

/// Returns the words that start a program in PID and mount namespaces; `None` if that is not possible.
fn namespaces() -> Option<Vec<String>> {
    let words = ["unshare", "--fork", "--pid", "--mount-proc"].map(str::to_owned);
    let made = Command::new(&words[0]).args(&words[1..]).arg("true").status().is_ok_and(|it| it.success());
    if !made {
        eprintln!("skipped: this host makes no PID namespaces");
    }
    made.then(|| words.to_vec())
}

/// Asserts that a process is of this user and has no capability.
fn assert_without_rights(pid: i32, uid: u32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")), "{status}");
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
}

/// A folder that every user can enter; `None` without root.
fn folder() -> Option<tempfile::TempDir> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can start an agent that becomes another user");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}

fn devices(test: &str) -> ([String; 2], String) {
    let devices = ["out", "up"].map(|name| format!("{test}{name}{}", std::process::id()));
    let [sout, sup] = &devices;
    let rails = format!("{sout}:addr=10.9.0.1/24,rate=100MB;{sup}:addr=10.9.1.1/24,rate=50MB");
    (devices, rails)
}

//= agent.md: the agent has no rights and searches nothing
#[test]
fn an_agent_without_rights_sees_the_jobs_and_keeps_drains() {
    let Some(folder) = folder() else { return };
    let (devices, rails) = devices("user");
    let port = format!("{}:1", devices[1]);
    // As an agent has left it that served as root.
    fs::write(folder.path().join("state.json"), r#"{"drains": {"earlier:1": true}}"#).unwrap();
    let unit = as_the_unit();
    let agent = Agent::start(&unit, folder.path());
    assert!(agent.get("/api/v1/host").contains(r#""drained":["earlier:1"]"#));
    let user = User::from_name(USER).unwrap().unwrap();
    let uid = user.uid.as_raw();
    assert_without_rights(agent.process.0.id() as i32, uid);
    let _perf = crate::job::transfer("user", &rails, &devices, folder.path());
    agent.shows(&devices[0]);
    let drain = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
        said(&command.args(words).arg("--socket-dir").arg(folder.path()).output().unwrap())
    };
    let (code, text) = drain(&["drain", &port]);
    assert_eq!(code, 0, "{text}");
    let kept = folder.path().join("state/state.json");
    until("the drain", || fs::read_to_string(&kept).ok()?.contains(&port).then_some(()));
    assert_eq!(fs::metadata(&kept).unwrap().uid(), uid);
    // What plugins read is root's.
    for name in ["agent.sock", "hints"] {
        assert_eq!(fs::metadata(folder.path().join(name)).unwrap().uid(), 0, "{name}");
    }
    drop(agent);

    // Once more, as after a release that serves as root.
    for earlier in [false, true] {
        if earlier {
            fs::copy(&kept, folder.path().join("state.json")).unwrap();
        }
        let next = Agent::start(&unit, folder.path());
        let drained = format!(r#""drained":["earlier:1","{port}"]"#);
        assert!(next.get("/api/v1/host").contains(&drained), "{earlier}");
    }
    let next = Agent::start(&unit, folder.path());
    next.shows(&devices[0]);
    let (code, text) = drain(&["undrain", &port]);
    assert_eq!((code, text), (0, format!("{port} is in use again\n")));
}

//= agent.md: an agent in a PID namespace sees the jobs of the host
#[test]
fn an_agent_in_a_container_sees_the_jobs_of_the_host() {
    let Some(folder) = folder() else { return };
    let Some(container) = namespaces() else { return };
    let (devices, rails) = devices("pod");
    let agent = Agent::start(&container, folder.path());
    let _perf = crate::job::transfer("pod", &rails, &devices, folder.path());
    agent.shows(&devices[0]);
}

//= kubernetes.md: the agent needs neither the node's processes nor a privilege
#[test]
fn the_agent_of_the_chart_serves_the_jobs_of_its_node() {
    let (Some(runtime), Some(mut words)) = (folder(), namespaces()) else { return };
    let chart = Container::of_the_chart();
    // The folder of the node, as the chart's other container leaves it.
    let folder = runtime.path().join("mpib");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(chart.uid), Some(chart.uid)).unwrap();
    let in_container = |command: &mut Command| {
        assert_eq!(chart.runtime, "/run");
        command
            .env("XDG_RUNTIME_DIR", runtime.path())
            .env("HOME", runtime.path())
            .env_remove("XDG_CONFIG_HOME");
    };
    words.extend(chart.words());
    let mut command = behind(&words);
    // Tests share the ports of this machine.
    command.args(chart.args.iter().map(|arg| if arg == "0.0.0.0:9119" { "127.0.0.1:0" } else { arg }));
    in_container(&mut command);
    let agent = Agent::spawn(command);
    let [pid] = agent.children()[..] else { panic!("the agent has ended") };
    assert_without_rights(pid, chart.uid);
    assert!(agent.get("/").contains("<title>"));
    assert!(agent.get("/healthz").starts_with("HTTP/1.1 200"));

    let (devices, rails) = devices("chart");
    let mut perf = crate::job::transfer_command("chart", &rails, &devices, &folder);
    let _perf = Ended(perf.env("MPIB_AGENT_UID", chart.uid.to_string()).spawn().unwrap());
    agent.shows(&devices[0]);

    // As "kubectl exec" enters the container.
    let enter = ["nsenter".to_owned(), format!("--target={pid}"), "--pid".into(), "--mount".into()];
    let mut drain = behind(&[&enter[..], &chart.words()].concat());
    let port = format!("{}:1", devices[1]);
    in_container(drain.args(["drain", &port, "--wait"]));
    let (code, text) = said(&drain.output().unwrap());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("its cable can be pulled"), "{text}");
    assert!(agent.get("/api/v1/host").contains(&format!(r#""drained":["{port}"]"#)));
}
