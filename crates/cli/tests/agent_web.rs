//! The web file of `mpib agent`, with curl as the client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::agent::{Agent, mpib, text};
use crate::authority::Authority;

const WEB: &str = "tls_server_config:\n  cert_file: node.crt\n  key_file: node.key\n";

/// Asks for /healthz. Returns curl's exit code, and the answer; `None` without curl.
fn curl(authority: &Path, address: &str) -> Option<(i32, String)> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--max-time", "20", "--noproxy", "*", "--cacert"]).arg(authority);
    let Ok(output) = command.arg(format!("https://{address}/healthz")).output() else {
        eprintln!("skipped: curl is not installed");
        return None;
    };
    Some((output.status.code()?, String::from_utf8_lossy(&output.stdout).into_owned()))
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
    let good = (0, "ok\n".to_owned());
    let Some(answer) = curl(&old, &address) else { return };
    assert_eq!(answer, good);
    // Nothing has changed: this is by the signal alone.
    agent.signal(Signal::SIGHUP);
    agent.line("web.yml is in use as it is now");
    second.sign(dir.path(), &["127.0.0.1"]);
    agent.signal(Signal::SIGHUP);
    agent.line("web.yml is in use as it is now");
    assert_eq!(curl(&new, &address).unwrap(), good);
    assert_eq!(curl(&old, &address).unwrap().0, 60, "curl: the peer's certificate cannot be verified");
    fs::write(&web, "tls_server_config:\n  certfile: node.crt\n").unwrap();
    agent.signal(Signal::SIGHUP);
    let line = agent.line("did you mean \"cert_file\"?");
    assert!(line.ends_with("the web file before stays in use"), "{line}");
    assert_eq!(curl(&new, &address).unwrap(), good);
}

//= agent.md: a bad web file at the start names the line
#[test]
fn a_bad_web_file_is_refused_and_a_key_that_others_may_read_is_named() {
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
    for args in [&["--check"][..], &["--http", "127.0.0.1:0"]] {
        let (good, _, err) = run(args);
        let expected =
            "web.yml: line 4: cipher_suites in tls_server_config is a key of exporter-toolkit that this";
        assert!(!good && err.contains(expected), "{err}");
    }
    fs::write(&web, WEB).unwrap();
    let (good, _, err) = run(&["--check"]);
    assert!(good && !err.contains("node.key"), "{err}");
    fs::set_permissions(dir.path().join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let (good, _, err) = run(&["--check"]);
    assert!(good && err.contains("node.key has mode 644: other users may read it"), "{err}");
    let at = dir.path().join("run");
    let args = ["--socket-dir", at.to_str().unwrap(), "--config", "/dev/null", "--web-config", file];
    let agent = Agent::spawn(mpib(&args).args(["--http", "127.0.0.1:0"]));
    agent.line("node.key has mode 644: other users may read it");
    agent.line("serves https://");
}
