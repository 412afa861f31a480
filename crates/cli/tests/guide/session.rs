//! Runs the commands of a page, in the order of the page and in one shell.
//!
//! The shell is in namespaces without a network, whose libibverbs is softverbs, whose /opt/mpib is
//! an installation of build/, and whose /etc/hosts knows the hosts of the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::pages::{Block, Kind, Page, root};

/// Only a failing page runs this long.
const LIMIT_SECONDS: &str = "300";

/// What happens in the new namespaces before the commands of the page. `$1` is the source tree, `$2`
/// the session's folder, `$3` the limit.
const ENTER: &str = r#"
mount -t tmpfs none /dev/shm
mount -t tmpfs none /opt
# No agent of the host, and not the configuration of one.
for place in /run /tmp/mpib /etc/mpib; do [ ! -d "$place" ] || mount -t tmpfs none "$place"; done
unset MPIB_AGENT_SOCKET
ip link set lo up
# An interface at which other hosts would reach this one.
ip link add eth0 type veth peer name eth0-peer
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set eth0-peer up
verbs=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libibverbs\.so\.1 / { print $NF; exit }')
mount --bind "$1/build/softverbs/libibverbs.so.1" "$(realpath "$verbs")"
mount --bind "$2/hosts" /etc/hosts
"$1/scripts/install.sh" /opt/mpib >/dev/null
export PATH=/opt/mpib/bin:$1/build:$1/build/softverbs:$PATH HOME=$2/home
unset LD_LIBRARY_PATH
cd "$2/home"
exec timeout "$3" bash "$2/script" </dev/null
"#;

/// Defined before the commands of a page. The doctor's verdict "usable with losses" is that of the
/// test's machine, such as its limit on locked memory.
const PRELUDE: &str = r#"
set -euo pipefail
mpib() {
    local code=0
    command mpib "$@" || code=$?
    [ "$code" = 1 ] && [ "${1:-}" = doctor ] || return "$code"
}
# Waits until "mpib perf --listen" or "mpib doctor --listen" does: port 18518.
listens() { until grep -q ':4856 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done; }
"#;

/// Returns why pages cannot be run on this machine.
pub(crate) fn obstacle() -> Option<String> {
    let output = enter().args(["-euc", "mount -t tmpfs none /opt && ip link add eth0 type veth"]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Some(e.to_string()),
    }
}

/// Prepares a shell in namespaces that end with it.
fn enter() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "sh"]);
    command.stdin(Stdio::null());
    command
}

/// Runs the page. Returns what is wrong with it.
pub(crate) fn run(page: &Page) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::create_dir(file("home")).unwrap();
    let source = root().canonicalize().unwrap();
    symlink(source.join("build"), file("home/build")).unwrap();
    symlink(&source, file("home/source")).unwrap();
    fs::write(file("hosts"), hosts(page)).unwrap();
    fs::write(file("script"), script(page, folder.path())).unwrap();
    let mut command = enter();
    command.args(["-euc", ENTER, "sh"]).arg(&source).arg(folder.path()).arg(LIMIT_SECONDS);
    // Files and no pipes: a pipe would stay open as long as what a page has started.
    let said = file("said");
    command.stdout(File::create(&said).unwrap()).stderr(File::options().append(true).open(&said).unwrap());
    let status = command.status().unwrap();
    let at = page.blocks.iter().rev().find(|block| output(folder.path(), block).exists());
    if !status.success() {
        let line = at.map_or(0, |block| block.line);
        let text = at.map(|block| output(folder.path(), block)).unwrap_or(said);
        let text = fs::read_to_string(text).unwrap_or_default();
        return vec![format!("{}:{line}: ended with {status}:\n{text}", page.name())];
    }
    compare(page, folder.path())
}

fn output(folder: &Path, block: &Block) -> PathBuf {
    folder.join(format!("output-{}", block.line))
}

/// A line of a session that is a command: the host, and the command.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (host, command) = line.split_once("$ ")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (!host.is_empty() && host.chars().all(is_name)).then_some((host, command.trim()))
}

fn hosts(page: &Page) -> String {
    let sessions = page.blocks.iter().filter(|block| matches!(block.kind, Kind::Session { .. }));
    let prompts = sessions.flat_map(|block| block.text.lines().filter_map(prompt));
    let names: BTreeSet<_> = prompts.map(|(host, _)| host).collect();
    let names: Vec<_> = names.into_iter().collect();
    format!("127.0.0.1 localhost {}\n::1 localhost\n", names.join(" "))
}

/// Returns the commands of the page for one shell. The output of each block goes to a file.
fn script(page: &Page, folder: &Path) -> String {
    let mut script = PRELUDE.to_owned();
    for (host, _) in page.blocks.iter().flat_map(|block| block.text.lines().filter_map(prompt)) {
        let function = format!("on_{}() {{ :; }}\n", host.replace('-', "_"));
        if !script.contains(&function) {
            script += &function;
        }
    }
    for block in &page.blocks {
        let begin = format!("exec >'{}' 2>&1\n", output(folder, block).display());
        match &block.kind {
            Kind::Simulated { host: None } => writeln!(script, "{}", block.text).unwrap(),
            Kind::Simulated { host: Some(host) } => {
                writeln!(script, "on_{}() {{ {}; }}", host.replace('-', "_"), block.text).unwrap();
            }
            Kind::Commands { needs: None, exit: 0 } => script += &(begin + &block.text),
            Kind::Commands { needs: None, exit } => {
                write!(
                    script,
                    "{begin}code=0\n( set -e\n{}) || code=$?\n[ \"$code\" = {exit} ]\n",
                    block.text
                )
                .unwrap();
            }
            Kind::Session { needs: None } => {
                script += &begin;
                for (host, command) in block.text.lines().filter_map(prompt) {
                    let host = host.replace('-', "_");
                    match command.contains("--listen") {
                        true => writeln!(script, "( on_{host}; {command}\n) & listens").unwrap(),
                        false => writeln!(script, "( on_{host}; {command}\n)").unwrap(),
                    }
                }
            }
            _ => {}
        }
    }
    script
}

/// Compares the output that a page shows with what its commands have printed.
fn compare(page: &Page, folder: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let mut printed = String::new();
    for block in &page.blocks {
        let shown: Vec<&str> = match &block.kind {
            Kind::Output => block.text.lines().collect(),
            Kind::Session { needs: None } => {
                block.text.lines().filter(|line| prompt(line).is_none()).collect()
            }
            _ => Vec::new(),
        };
        if let Ok(text) = fs::read_to_string(output(folder, block)) {
            printed = text;
        }
        for line in shown.into_iter().filter(|line| !fits(line, &printed)) {
            faults.push(format!("{}:{}: {line:?} is not in\n{printed}", page.name(), block.line));
        }
    }
    faults
}

/// Whether a line of `printed` contains this one. Each `…` stands for any text, and blanks for any
/// number of blanks.
fn fits(shown: &str, printed: &str) -> bool {
    let blanks = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = blanks(shown);
    printed.lines().any(|line| {
        let line = blanks(line);
        let mut rest = line.as_str();
        shown.split('…').all(|piece| {
            let place = rest.find(piece.trim());
            rest = place.map_or(rest, |at| &rest[at + piece.trim().len()..]);
            place.is_some()
        })
    })
}

/// Returns what bash finds wrong with the form of this block's commands, which it does not run.
pub(crate) fn malformed(block: &Block) -> Option<String> {
    let text = match &block.kind {
        Kind::Commands { .. } => block.text.clone(),
        Kind::Session { .. } => block.text.lines().filter_map(prompt).map(|p| format!("{}\n", p.1)).collect(),
        _ => return None,
    };
    let mut command = Command::new("bash");
    command.arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut bash = command.spawn().unwrap();
    bash.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}
