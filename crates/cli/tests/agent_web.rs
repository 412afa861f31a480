//! The web file of `mpib agent`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use mpib_agent::http::{Access, waits};
use nix::sys::signal::Signal;

use crate::agent::{Agent, mpib, text};
use crate::authority::Authority;

/// Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(30);
const WEB: &str = "tls_server_config:\n  cert_file: node.crt\n  key_file: node.key\n";

/// Asks over TLS with a file of authorities, as `mpib why` of another host does.
fn ask(authority: &Path, address: &str) -> Result<(), String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let access = Access::read(authority, None).unwrap();
    waits(address.parse().unwrap(), host.trim(), &access, LIMIT).map(drop)
}

//= agent.md: SIGHUP reads the web file and its certificates again
#[test]
fn a_signal_renews_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, web) = (dir.path().join("run"), dir.path().join("web.yml"));
    let (first, second) = (Authority::new(), Authority::new());
    let [old, new] = [(&first, "old"), (&second, "new")].map(|(a, name)| a.write(&dir.path().join(name)));
    first.sign(dir.path(), &["127.0.0.1"]);
    fs::write(&web, WEB).unwrap();
    // The file is named by the configuration.
    let config = dir.path().join("agent.toml");
    fs::write(&config, format!("[http]\nlisten = \"127.0.0.1:0\"\nweb_config = {web:?}\n")).unwrap();
    let [at, file] = [&folder, &config].map(|path| path.to_str().unwrap());
    let agent = Agent::spawn(&mut mpib(&["--socket-dir", at, "--config", file]));
    let line = agent.line("serves https://");
    let address = line.split("https://").nth(1).unwrap().trim_end_matches('/').to_owned();
    assert_eq!(ask(&old, &address), Ok(()));
    // Nothing has changed: this is by the signal alone.
    agent.signal(Signal::SIGHUP);
    agent.line("web.yml is in use as it is now");
    second.sign(dir.path(), &["127.0.0.1"]);
    agent.signal(Signal::SIGHUP);
    agent.line("web.yml is in use as it is now");
    assert_eq!(ask(&new, &address), Ok(()));
    let why = ask(&old, &address).unwrap_err();
    assert!(why.contains("UnknownIssuer"), "{why}");
    fs::write(&web, "tls_server_config:\n  certfile: node.crt\n").unwrap();
    agent.signal(Signal::SIGHUP);
    let line = agent.line("did you mean \"cert_file\"?");
    assert!(line.ends_with("the web file before stays in use"), "{line}");
    assert_eq!(ask(&new, &address), Ok(()));
}

//= agent.md: a bad web file at the start names the line
#[test]
fn a_bad_web_file_is_named_and_so_is_a_key_that_others_may_read() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new().sign(dir.path(), &["localhost"]);
    let web = dir.path().join("web.yml");
    let file = web.to_str().unwrap();
    let run = |args: &[&str]| {
        let at = dir.path().join("run");
        let always = ["--socket-dir", at.to_str().unwrap(), "--config", "/dev/null", "--web-config", file];
        text(&mpib(&[&always, args].concat()).output().unwrap())
    };
    fs::write(&web, format!("{WEB}  cipher_suites: []\n")).unwrap();
    let expected =
        "web.yml: line 4: cipher_suites in tls_server_config is a key of exporter-toolkit that this";
    let (good, _, err) = run(&["--check"]);
    assert!(!good && err.contains(expected), "{err}");
    let at = dir.path().join("run");
    let args = ["--socket-dir", at.to_str().unwrap(), "--config", "/dev/null", "--web-config", file];
    let agent = Agent::spawn(mpib(&args).args(["--http", "127.0.0.1:0"]));
    // Jobs are served all the same.
    agent.line("listens on ");
    let line = agent.line(expected);
    assert!(line.ends_with("; no HTTP at the address until the web file is good [MPIB-536]"), "{line}");
    drop(agent);
    fs::write(&web, WEB).unwrap();
    let (good, _, err) = run(&["--check"]);
    assert!(good && !err.contains("node.key"), "{err}");
    fs::set_permissions(dir.path().join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let (good, _, err) = run(&["--check"]);
    assert!(good && err.contains("node.key has mode 644: other users may read it"), "{err}");
    let agent = Agent::spawn(mpib(&args).args(["--http", "127.0.0.1:0"]));
    agent.line("node.key has mode 644: other users may read it");
    agent.line("serves https://");
}
