//! `mpib why` beside real processes: what is wrong is named, with the process to look at.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nccl_net_host::{Handle, Net, Plugin, Settings, until as poll};
use nccl_net_mpib_agent_iface::environment::NO_AGENT;
use serde_json::Value;

use crate::authority::Authority;
use crate::built::{artifact, softverbs};
use crate::job::link;
use crate::transfer::{Ended, fabric_of, perf, perf_with, said, until, workers};

fn why(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    said(&command.args(["why", "--time", "0.2"]).args(args).stdin(Stdio::null()).output().unwrap())
}

/// Returns the first finding about a process, once it has this kind.
fn finding(pid: u32, kind: &str) -> Value {
    document(pid, kind, &[])["findings"][0].clone()
}

/// Returns the document about a process, once its first finding has this kind.
fn document(pid: u32, kind: &str, args: &[&str]) -> Value {
    until(kind, || {
        let (code, text) = why(&[&[&*pid.to_string(), "--json"], args].concat());
        let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(document["exit_code"], code, "{text}");
        (document["findings"][0]["kind"] == kind).then_some(document)
    })
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a process that this test has started.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
}

//= why.md: a stopped peer is named with how to continue it
#[test]
fn a_stopped_receiver_is_what_its_sender_waits_for() {
    let perf = perf("why-stopped");
    let [sender, receiver] = workers(&perf);
    signal(receiver, libc::SIGSTOP);
    let found = finding(sender, "held");
    let cause = &found["cause"];
    assert_eq!((&cause["pid"], &cause["seen"]), (&receiver.into(), &true.into()), "{found}");
    assert_eq!(found["processes"], serde_json::json!([sender]));
    let (code, text) = why(&[&sender.to_string()]);
    let lines: Vec<_> = text.lines().collect();
    let name = format!("process {receiver} (mpib)");
    assert!(code == 7 && lines[0].starts_with("stuck for "), "{text}");
    assert!(lines[0].ends_with(&format!("{name}, which is stopped (state T)")), "{text}");
    assert!(lines[1].contains(&format!("waits for a receive of {name}, for ")), "{text}");
    assert!(lines[2].starts_with(&format!("next: \"kill -CONT {receiver}\"")), "{text}");
    signal(receiver, libc::SIGCONT);
    finding(sender, "fine");
}

//= why.md: a lost rail and one that returns
#[test]
fn a_rail_that_is_down_is_named_with_its_reason() {
    // On a busy machine the watchdog may see the rail stand still before the event of its port is read.
    let perf = perf_with("why-rail", &[("MPIB_STALL_MS", "0")]);
    let [sender, _] = workers(&perf);
    let fine = finding(sender, "fine");
    assert!(fine["text"].as_str().unwrap().starts_with("nothing is wrong with the network"), "{fine}");
    link("why-rail", "sup", "down");
    let found = finding(sender, "degraded");
    let text = found["text"].as_str().unwrap();
    assert!(text.starts_with("the connection runs without sup:1 for "), "{text}");
    // Until then the peer may have noticed it first.
    until("the event of the port", || {
        let found = finding(sender, "degraded");
        found["evidence"][0].as_str().unwrap().contains("the link went down").then_some(())
    });
    link("why-rail", "sout", "down");
    let found = finding(sender, "no-rail");
    assert!(found["text"].as_str().unwrap().ends_with(": none is left"), "{found}");
    let evidence = found["evidence"].to_string();
    assert!(["sout:1: ", "sup:1: "].iter().all(|port| evidence.contains(port)), "{found}");
    link("why-rail", "sout", "up");
    link("why-rail", "sup", "up");
    finding(sender, "fine");
}

const ROLE: &str = "WHY_TEST_ROLE";
const LIMIT: Duration = Duration::from_secs(60);

/// One end of a connection: a receiver that posts nothing, or a sender that asks for a receive until
/// the connection fails.
fn end(role: &str) {
    // SAFETY: the file is this project's plugin.
    let plugin = unsafe { Plugin::open(&artifact("libnccl-net-mpib.so")) }.unwrap();
    let net = Net::init(plugin.table(12).unwrap(), &Settings::default()).unwrap();
    if role == "receiver" {
        let listener = net.listen(0).unwrap();
        let word: String = listener.handle().0.iter().map(|byte| format!("{byte:02x}")).collect();
        // Not by println: libtest keeps that.
        std::io::stdout().write_all(format!("\nhandle {word}\n").as_bytes()).unwrap();
        let _comm = poll("accept", LIMIT, || listener.accept()).unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let mut word = String::new();
    std::io::stdin().read_line(&mut word).unwrap();
    let byte = |i: usize| u8::from_str_radix(&word[2 * i..2 * i + 2], 16).unwrap();
    let mut handle = Handle(std::array::from_fn(byte));
    let comm = poll("connect", LIMIT, || net.connect(0, &mut handle)).unwrap();
    let buffer = comm.register(vec![0; 8]).unwrap();
    while let Ok(request) = comm.isend(buffer.mr(), 0, 8, 0) {
        assert!(request.is_none(), "isend found a receive");
    }
    // A failed connection stays until it is closed.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts a sender and a receiver that posts nothing, with the agent at this socket. The receiver's
/// program is started by this command.
fn silent_pair(test: &str, by: &[&str], agent: &str) -> [Ended; 2] {
    let start = |role: &str, by: &[&str]| {
        let this = env::current_exe().unwrap();
        let words = by.iter().map(OsStr::new).chain([this.as_os_str()]).collect::<Vec<_>>();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["--exact", "why::a_receiver_that_posts_nothing_is_named"]);
        command.env(ROLE, role).env("LD_LIBRARY_PATH", softverbs()).env("SOFTVERBS_FABRIC", fabric_of(test));
        command.env("SOFTVERBS_DEVICES", "one:addr=10.9.0.1/24").env("MPIB_AGENT_SOCKET", agent);
        Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    };
    let (mut receiver, sender) = (start("receiver", by), start("sender", &[]));
    let mut lines = BufReader::new(receiver.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let handle = lines.find_map(|line| Some(line.strip_prefix("handle ")?.to_owned())).unwrap();
    writeln!(sender.0.stdin.as_ref().unwrap(), "{handle}").unwrap();
    until("a page", || (why(&[&sender.0.id().to_string()]).0 != 5).then_some(()));
    [sender, receiver]
}

//= why.md: a receiver that is not in NCCL
#[test]
fn a_receiver_that_posts_nothing_is_named() {
    if let Ok(role) = env::var(ROLE) {
        return end(&role);
    }
    let [sender, mut receiver] = silent_pair("why-nothing", &[], NO_AGENT);
    let pids = [sender.0.id(), receiver.0.id()];
    let found = finding(pids[0], "no-receive");
    assert_eq!((&found["cause"]["pid"], &found["cause"]["seen"]), (&pids[1].into(), &true.into()), "{found}");
    let text = found["text"].as_str().unwrap();
    assert!(text.ends_with("which has posted no receive: NCCL in it asks for nothing"), "{text}");
    assert!(found["next"].as_str().unwrap().contains(&format!("py-spy dump --pid {}", pids[1])), "{found}");
    assert_eq!(finding(pids[1], "idle")["processes"], serde_json::json!([pids[1]]));

    // A peer that has ended fails the connection.
    receiver.0.kill().unwrap();
    finding(pids[0], "failed");
}

/// Starts `mpib` on a host, and returns the port that its line with this word ends in.
fn listening(by: &[&str], args: &[&str], word: &str) -> (Ended, String) {
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg(env!("CARGO_BIN_EXE_mpib")).args(args).stderr(Stdio::piped());
    let mut child = Ended(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains(word)).unwrap();
    // The rest of the log has no reader, and does not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    let address = line.split(word).nth(1).unwrap().split(['/', ';']).next().unwrap();
    (child, address.rsplit(':').next().unwrap().to_owned())
}

//= why.md: the end of the chain is on another host, which is asked by its agent or doctor
#[test]
fn a_receiver_of_another_host_is_named_with_its_host() {
    let by = ["unshare", "--uts", "sh", "-c", "hostname node17 && exec \"$@\"", "sh"];
    let mut probe = Command::new(by[0]);
    if !probe.args(&by[1..]).arg("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user cannot give a process another host name");
        return;
    }
    let files = tempfile::tempdir().unwrap();
    let folder = files.path().join("agent");
    let authority = Authority::new();
    authority.sign(files.path(), &["node17"]);
    let [web, ca, login] = ["web.yml", "ca", "login"].map(|name| files.path().join(name));
    let users = format!("basic_auth_users: {{why: {}}}\n", bcrypt::hash("secret", 4).unwrap());
    fs::write(&web, format!("tls_server_config: {{cert_file: node.crt, key_file: node.key}}\n{users}"))
        .unwrap();
    authority.write(&ca);
    fs::write(&login, "why:secret").unwrap();
    fs::set_permissions(&login, fs::Permissions::from_mode(0o600)).unwrap();
    let [web, ca, login] = [&web, &ca, &login].map(|path| path.to_str().unwrap());
    let agent =
        ["agent", "--http", "0.0.0.0:0", "--web-config", web, "--socket-dir", folder.to_str().unwrap()];
    let (_agent, agents) = listening(&by, &agent, "serves https://");
    let socket = folder.join("agent.sock");
    let [sender, receiver] = silent_pair("why-other-host", &by, socket.to_str().unwrap());
    let pids = [sender.0.id(), receiver.0.id()];
    // Nothing listens on port 1.
    let nobody = ["--agent-port", "1", "--doctor-port", "1"];
    let found = document(pids[0], "no-receive", &nobody);
    let cause = |seen: bool| serde_json::json!({ "host": "node17", "pid": pids[1], "seen": seen });
    let first = &found["findings"][0];
    assert_eq!(first["cause"], cause(false), "{found}");
    let evidence = first["evidence"][1].as_str().unwrap();
    assert!(evidence.starts_with("host node17 has not answered: "), "{found}");
    assert!(
        evidence.contains(":1: no agent listens there; ") && evidence.ends_with("listens there"),
        "{found}"
    );
    let next = first["next"].as_str().unwrap();
    assert!(next.starts_with(&format!("\"mpib why {}\" on host node17", pids[1])), "{found}");
    let not_asked = document(pids[0], "no-receive", &["--ask", "0"]);
    assert_eq!(not_asked["hosts"][0]["error"], "--ask 0", "{not_asked}");

    let (_doctor, doctors) = listening(&by, &["doctor", "--listen", "0.0.0.0:0"], "listening on ");
    let plain = document(pids[0], "no-receive", &["--agent-port", &agents, "--doctor-port", "1"]);
    let error = plain["hosts"][0]["error"].as_str().unwrap();
    assert!(error.contains("its agent serves HTTPS alone: ask with --agent-ca FILE"), "{error}");
    let with_tls = ["--agent-port", &agents, "--doctor-port", "1", "--agent-ca", ca, "--agent-login", login];
    for args in [&with_tls[..], &["--agent-port", "1", "--doctor-port", &doctors]] {
        let found = document(pids[0], "no-receive", args);
        let first = &found["findings"][0];
        assert_eq!((&first["cause"], &found["hosts"][0]["error"]), (&cause(true), &Value::Null), "{found}");
        let text = first["text"].as_str().unwrap();
        let name = format!("waits for host node17, pid {} (", pids[1]);
        assert!(text.contains(&name) && text.ends_with(": NCCL in it asks for nothing"), "{found}");
        signal(pids[1], libc::SIGSTOP);
        let found = document(pids[0], "held", args);
        assert_eq!(found["findings"][0]["cause"], cause(true), "{found}");
        signal(pids[1], libc::SIGCONT);
    }
    // An agent of another host at the address of this one.
    let (_other, others) = listening(
        &["env"],
        &["agent", "--http", "0.0.0.0:0", "--socket-dir", &format!("{}2", folder.display())],
        "serves http://",
    );
    let found = document(pids[0], "no-receive", &["--agent-port", &others, "--doctor-port", "1"]);
    assert!(
        found["hosts"][0]["error"].as_str().unwrap().contains(": the host that answers there is "),
        "{found}"
    );
}

#[test]
fn what_has_no_page_says_why() {
    let mut sleeper = Ended(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = sleeper.0.id().to_string();
    let (code, text) = why(&[&pid]);
    assert!(
        code == 5 && text.starts_with(&format!("mpib: process {pid}: it has no statistics page")),
        "{text}"
    );
    sleeper.0.kill().unwrap();
    let zombie = format!("mpib: process {pid}: it has ended (a zombie): its parent has not waited for it\n");
    until("a zombie", || (why(&[&pid]) == (3, zombie.clone())).then_some(()));
    sleeper.0.wait().unwrap();
    assert_eq!(why(&[&pid]), (3, format!("mpib: process {pid}: no such process\n")));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let (code, text) = why(&["--agent-ca", "/nonexistent/ca"]);
    assert!(code == 2 && text.starts_with("mpib: /nonexistent/ca: No such file"), "{code}: {text}");
    let (code, text) = why(&["--agent-login", "/nonexistent/login"]);
    assert!(code == 2 && text.contains("--agent-ca"), "{code}: {text}");
}
