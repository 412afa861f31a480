//! `mpib agent` as a process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn mpib(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    command.arg("agent").args(args);
    command
}

pub(crate) fn text(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn check(config: &Path) -> (bool, String, String) {
    text(&mpib(&["--check", "--config", config.to_str().unwrap()]).output().unwrap())
}

/// A running agent and its log.
pub(crate) struct Agent {
    child: Child,
    log: Receiver<String>,
}

impl Agent {
    fn start(folder: &Path, config: &Path) -> Self {
        let [folder, config] = [folder, config].map(|path| path.to_str().unwrap());
        Self::spawn(&mut mpib(&["--socket-dir", folder, "--config", config]))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (send, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, log }
    }

    pub(crate) fn line(&self, part: &str) -> String {
        loop {
            let line = self.log.recv_timeout(LIMIT).unwrap_or_else(|e| panic!("no line with {part:?}: {e}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//= agent.md: a request may name the host by its full name
#[test]
fn the_full_name_of_the_host_is_served_and_no_other_name_of_its_domain() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "127.0.0.1 localhost\n192.0.2.17 node17.lab.example node17\n").unwrap();
    let inside = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "--mount", "sh", "-c"]);
        command.arg("hostname node17 && mount --bind \"$0\" /etc/hosts && exec \"$@\"").arg(&hosts);
        command.arg(program);
        command
    };
    if !inside("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user cannot give a process another host name");
        return;
    }
    let mut command = inside(env!("CARGO_BIN_EXE_mpib"));
    command.args(["agent", "--http", "127.0.0.1:0", "--config", "/dev/null", "--socket-dir"]);
    let agent = Agent::spawn(command.arg(folder.path().join("agent")));
    // In any order.
    let said = [(); 2].map(|()| agent.line("serves ")).join("\n");
    assert!(said.contains("serves requests for node17.lab.example,"), "{said}");
    let address = said.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let status = |name: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {name}:9119\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for name in ["node17.lab.example", "NODE17.lab.example", "node17"] {
        assert_eq!(status(name), "200", "{name}");
    }
    for name in ["node18.lab.example", "node17.evil.example", "lab.example"] {
        assert_eq!(status(name), "403", "{name}");
    }
}

//= agent.md: --check names a misspelt key with its line and the nearest key
#[test]
fn check_judges_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("agent.toml");
    fs::write(&config, "policy = \"measured\"\n").unwrap();
    let (good, out, _) = check(&config);
    assert!(good && out.ends_with("agent.toml: good\n"), "{out}");
    fs::write(&config, "policy = \"measured\"\ndefault_shar = 1\n").unwrap();
    let (good, _, err) = check(&config);
    let expected = "agent.toml: line 2: unknown key \"default_shar\"; did you mean \"default_share\"?\n";
    assert!(!good && err.ends_with(expected), "{err}");
    fs::write(&config, "[http]\nlisten = \"9119\"\n").unwrap();
    let (good, _, err) = check(&config);
    assert!(!good && err.contains("line 2: \"9119\" is no address, expected \"off\" or"), "{err}");
    fs::write(&config, "[http]\ntoken_file = \"/nonexistent/token\"\n").unwrap();
    let (good, _, err) = check(&config);
    assert!(!good && err.contains("token file /nonexistent/token: no such file"), "{err}");
}

//= agent.md: an address of the configuration must be free, and the default need not be
#[test]
fn the_agent_goes_on_without_the_default_port_only() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("agent.toml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    fs::write(&config, format!("[http]\nlisten = \"{}\"\n", taken.local_addr().unwrap())).unwrap();
    let [at, file] = [dir.path(), &config].map(|path| path.to_str().unwrap());
    let (good, _, err) = text(&mpib(&["--socket-dir", at, "--config", file]).output().unwrap());
    assert!(!good && err.contains("mpib agent: http://127.0.0.1:") && err.contains("in use"), "{err}");

    // Agents of other tests have the default port for a moment, another program may have it for long.
    let default = (0..100).find_map(|_| {
        let bound = std::net::TcpListener::bind("127.0.0.1:9119").ok();
        bound.or_else(|| {
            thread::sleep(Duration::from_millis(20));
            None
        })
    });
    fs::write(&config, "").unwrap();
    let agent = Agent::start(dir.path(), &config);
    agent.line("serves no HTTP: http://127.0.0.1:9119: ");
    drop(default);
    drop(agent);
    fs::write(&config, "[http]\nlisten = \"off\"\n").unwrap();
    let agent = Agent::start(dir.path(), &config);
    agent.line("listens on");
    agent.signal(Signal::SIGTERM);
    let lines: Vec<String> = agent.log.iter().collect();
    assert_eq!(lines, ["mpib agent: ends by signal 15"], "it serves nothing");
}

//= agent.md: SIGHUP reads the configuration again; a bad file changes nothing
#[test]
fn a_reload_takes_a_good_file_and_refuses_a_bad_one() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, config) = (dir.path().join("run"), dir.path().join("agent.toml"));
    fs::write(&config, "drain = [\"mlx5_0:1\"]\n").unwrap();
    let mut agent = Agent::start(&folder, &config);
    agent.line("listens on");
    fs::write(&config, "drian = []\n").unwrap();
    agent.signal(Signal::SIGHUP);
    let line = agent.line("did you mean \"drain\"?");
    assert!(line.ends_with("the configuration before stays in use"), "{line}");
    fs::write(&config, "drain = []\n").unwrap();
    agent.signal(Signal::SIGHUP);
    agent.line("the configuration was read again and has changed");

    let [at, file] = [&folder, &config].map(|path| path.to_str().unwrap());
    let (good, _, err) = text(&mpib(&["--socket-dir", at, "--config", file]).output().unwrap());
    assert!(!good && err.contains("agent.sock: address in use"), "{err}");

    agent.signal(Signal::SIGTERM);
    agent.line("ends by signal 15");
    assert!(agent.child.wait().unwrap().success());
}

//= agent.md: an agent that ends removes its socket; the next one replaces that of a killed agent
#[test]
fn a_socket_ends_with_its_agent() {
    let dir = tempfile::tempdir().unwrap();
    let (config, socket) = (dir.path().join("agent.toml"), dir.path().join("agent.sock"));
    fs::write(&config, "[http]\nlisten = \"off\"\n").unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut agent = Agent::start(dir.path(), &config);
        agent.line("listens on");
        assert!(socket.exists());
        agent.signal(signal);
        assert!(agent.child.wait().unwrap().success());
        assert!(!socket.exists(), "{signal}");
    }
    let mut agent = Agent::start(dir.path(), &config);
    agent.line("listens on");
    agent.signal(Signal::SIGKILL);
    agent.child.wait().unwrap();
    assert!(socket.exists() && UnixStream::connect(&socket).is_err());
    let mut first = Agent::start(dir.path(), &config);
    first.line("listens on");
    assert!(UnixStream::connect(&socket).is_ok());
    // Somebody removes the socket of an agent that runs: it leaves the next one's alone.
    fs::remove_file(&socket).unwrap();
    let second = Agent::start(dir.path(), &config);
    second.line("listens on");
    first.signal(Signal::SIGTERM);
    assert!(first.child.wait().unwrap().success());
    assert!(UnixStream::connect(&socket).is_ok());
}

//= agent.md: --once prints what the agent sees, as JSON
#[test]
fn once_prints_what_the_agent_would_decide() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("agent.toml");
    fs::write(&config, "policy = \"measured\"\ndrain = [\"mlx5_0:1\"]\n").unwrap();
    let args = ["--once", "--config", config.to_str().unwrap(), "--socket-dir", dir.path().to_str().unwrap()];
    let (good, out, err) = text(&mpib(&args).output().unwrap());
    assert!(good, "{err}");
    let seen: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((seen["policy"].as_str(), seen["drained"][0].as_str()), (Some("measured"), Some("mlx5_0:1")));
    assert!(!dir.path().join("agent.sock").exists());
}

//= faults.md: 35
//= agent.md: the agent does not use a folder that another user could change
#[test]
fn a_folder_that_others_could_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let config = dir.path().join("agent.toml");
    fs::write(&config, "").unwrap();
    let args = ["--socket-dir", dir.path().to_str().unwrap(), "--config", config.to_str().unwrap()];
    let (good, _, err) = text(&mpib(&args).output().unwrap());
    assert!(!good && err.contains("has mode 777: other users may write to it"), "{err}");
}
