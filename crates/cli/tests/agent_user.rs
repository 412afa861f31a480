//! The agent without rights: as another user than that of the jobs, and as a container runs it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};

use crate::transfer::{Ended, said, until};

/// Each system has this user.
const USER: &str = "daemon";

/// Words that leave a program no other capability than these.
fn with_capabilities(these: &str) -> Vec<String> {
    let words = ["setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set", these];
    words.map(str::to_owned).to_vec()
}

/// Returns the words that leave root the capabilities that the guide names (agent.md).
fn as_root() -> Vec<String> {
    with_capabilities("-all,+setuid,+setgid,+chown,+dac_read_search")
}

/// Returns the words of the commands that the unit has for a key. Its user is that of the test, and so is
/// its folder.
fn of_unit(key: &str, folder: &Path) -> Vec<Vec<String>> {
    let unit = include_str!("../../../packaging/systemd/mpib-agent.service");
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let folder = folder.to_str().unwrap();
    let word = |word: &str| match word {
        "mpib" => USER.to_owned(),
        r"\;" => ";".to_owned(),
        word => word.replace("/run/mpib", folder).replace("mpib:", &format!("{USER}:")),
    };
    lines.map(|line| line.trim_start_matches('+').split(' ').map(word).collect()).collect()
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
        let user = ["--clear-groups".to_owned(), format!("--reuid={uid}"), format!("--regid={uid}")];
        [with_capabilities("-all"), user.to_vec()].concat()
    }
}

/// An agent behind the words of a wrapper, which serves as another user.
struct Agent {
    process: Ended,
    address: String,
}

impl Agent {
    fn start(wrapper: &[impl AsRef<OsStr>], folder: &Path) -> Self {
        let words = ["--user", USER, "--config", "/dev/null", "--socket-dir", folder.to_str().unwrap()];
        Self::start_with(wrapper, &words, Stdio::null())
    }

    fn start_with(wrapper: &[impl AsRef<OsStr>], words: &[&str], stdin: Stdio) -> Self {
        let mut command = behind(wrapper);
        command.args(["agent", "--http", "127.0.0.1:0"]).args(words).stdin(stdin);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
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
    let agent = Agent::start(&as_root(), folder.path());
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
        let next = Agent::start(&as_root(), folder.path());
        let drained = format!(r#""drained":["earlier:1","{port}"]"#);
        assert!(next.get("/api/v1/host").contains(&drained), "{earlier}");
    }
    let next = Agent::start(&as_root(), folder.path());
    next.shows(&devices[0]);
    let (code, text) = drain(&["undrain", &port]);
    assert_eq!((code, text), (0, format!("{port} is in use again\n")));
}

//= agent.md: the agent of the unit never has a right
#[test]
fn the_commands_of_the_unit_make_an_agent_that_plugins_trust() {
    let Some(outer) = folder() else { return };
    let folder = &outer.path().join("mpib");
    let user = User::from_name(USER).unwrap().unwrap();
    let uid = user.uid.as_raw();
    // As systemd makes them.
    fs::create_dir_all(folder.join("state")).unwrap();
    chown(folder.join("state"), Some(uid), Some(user.gid.as_raw())).unwrap();
    // As an agent has left it that served as root.
    fs::write(folder.join("state.json"), r#"{"drains": {"earlier:1": true}}"#).unwrap();
    let socket = outer.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let until_sent = |what: &[u8]| {
        let mut bytes = [0; 64];
        while manager.recv(&mut bytes).map(|len| &bytes[..len]).unwrap() != what {}
    };
    let run = |key: &str| {
        for words in of_unit(key, folder) {
            assert!(Command::new(&words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
        }
    };
    assert_eq!(of_unit("ExecStart", folder), [["@PREFIX@/bin/mpib", "agent"]]);
    let mut wrapper = with_capabilities("-all");
    wrapper.extend(["--reuid", USER, "--regid", USER, "--clear-groups", "env"].map(str::to_owned));
    wrapper.extend(of_unit("Environment", folder).remove(0).into_iter().map(|word| {
        word.replace("=/run", &format!("={}", outer.path().display())).replace("=/etc", "=/nonexistent")
    }));
    wrapper.push(format!("NOTIFY_SOCKET={}", socket.display()));
    wrapper.extend(["WATCHDOG_USEC=100000", "LISTEN_FDS=1"].map(str::to_owned));
    // The listener comes as standard input, and has to be descriptor 3.
    let as_passed = r#"LISTEN_PID=$$ exec "$0" "$@" 3<&0 </dev/null"#;
    wrapper.extend(["sh", "-c", as_passed].map(str::to_owned));
    let (devices, rails) = devices("unit");
    let mut perf = None;
    for _restart in [false, true] {
        let _ = fs::remove_file(folder.join("agent.sock"));
        let listener = UnixListener::bind(folder.join("agent.sock")).unwrap();
        fs::set_permissions(folder.join("agent.sock"), fs::Permissions::from_mode(0o666)).unwrap();
        run("ExecStartPre");
        let agent = Agent::start_with(&wrapper, &[], OwnedFd::from(listener).into());
        until_sent(b"READY=1");
        run("ExecStartPost");
        let owner = |name: &str| fs::metadata(folder.join(name)).unwrap().uid();
        assert_eq!(["", "agent.sock", "api.sock", "hints", "state"].map(owner), [0, 0, 0, 0, uid]);
        let status = fs::read_to_string(format!("/proc/{}/status", agent.process.0.id())).unwrap();
        assert!(status.contains("CapBnd:\t0000000000000000\n"), "{status}");
        assert!(agent.get("/api/v1/host").contains(r#""drained":["earlier:1"]"#));
        perf.get_or_insert_with(|| crate::job::transfer("unit", &rails, &devices, folder));
        agent.shows(&devices[0]);
        until_sent(b"WATCHDOG=1");
    }
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
    command.stdin(Stdio::null());
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
    // Neither root nor the agent's user.
    perf.uid(chart.uid + 1).gid(chart.uid + 1);
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
