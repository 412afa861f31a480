//! `mpib top` with a running transfer: as text, and in a terminal of tmux.

use std::process::{Command, Stdio};

use crate::transfer::{Ended, perf, said, until, workers};

fn top(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    said(&command.arg("top").args(args).stdin(Stdio::null()).output().unwrap())
}

//= top.md: one frame as text
#[test]
fn a_frame_is_printed_where_there_is_no_terminal() {
    let perf = perf("top-once");
    let [sender, receiver] = workers(&perf);
    let pid = sender.to_string();
    for args in [&[pid.as_str(), "--once", "--interval", "0.2"][..], &[&pid, "--interval", "0.2"]] {
        let (code, text) = top(args);
        assert_eq!(code, 0, "{text}");
        let line = |word: &str| {
            text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"))
        };
        assert!(line("sout:1").contains("healthy") && line("sout:1").contains("B/s"), "{text}");
        // A quarter goes on SUP.
        assert!(line("sup:1").contains(" 25% "), "{text}");
        let connection = line(&format!("/{receiver}"));
        assert!(connection.contains("send") && connection.contains(" 75/25 "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    assert!(
        top(&[&pid, "--once", "--interval", "0.1", "--filter", "nothing"]).1.contains("no connection fits")
    );
    assert_eq!(top(&["--sort", "colour"]).0, 2);
    drop(perf);
    until("the end of the process", || (top(&[&pid, "--once"]).0 == 3).then_some(()));
}

/// A terminal of 80 columns with a shell. Each test has another server.
struct Tmux(String);

impl Tmux {
    /// Returns `None` if there is no tmux.
    fn start(name: &str) -> Option<Self> {
        let tmux = Self(format!("mpib-{}-{name}", std::process::id()));
        let new = ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh"];
        let mut command = Command::new("tmux");
        let started = command.args(["-L", &tmux.0]).args(new).env("PS1", "prompt> ").status();
        match started {
            Ok(status) => {
                assert!(status.success());
                Some(tmux)
            }
            Err(_) => {
                eprintln!("skipped: tmux is not installed");
                None
            }
        }
    }

    fn run(&self, args: &[&str]) -> String {
        let (code, text) = said(&Command::new("tmux").args(["-L", &self.0]).args(args).output().unwrap());
        assert_eq!(code, 0, "{args:?}: {text}");
        text
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen has all of these parts, and returns it.
    fn shows(&self, parts: &[&str]) -> String {
        let mut screen = String::new();
        until(&parts.join(" … "), || {
            screen = self.run(&["capture-pane", "-p"]);
            parts.iter().all(|part| screen.contains(part)).then_some(())
        });
        screen
    }

    /// Returns whether the alternate screen is shown.
    fn is_alternate(&self) -> bool {
        self.run(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).status();
    }
}

/// Returns the process of `mpib top` that a shell has started.
fn child_of_shell(tmux: &Tmux) -> i32 {
    let shell = tmux.run(&["display-message", "-p", "#{pane_pid}"]);
    let shell = shell.trim();
    until("a child of the shell", || {
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        children.split_whitespace().next()?.parse().ok()
    })
}

//= top.md: keys, and what is left of the terminal
#[test]
fn the_screen_follows_keys_and_restores_the_terminal() {
    let Some(tmux) = Tmux::start("keys") else { return };
    let perf: Ended = perf("top-tmux");
    let [sender, receiver] = workers(&perf);
    let (program, peer) = (env!("CARGO_BIN_EXE_mpib"), format!("/{receiver}"));
    let start = format!("echo before; {program} top {sender} --interval 0.2; echo after $?");
    tmux.keys(&[&start, "Enter"]);
    tmux.shows(&["sort: rate", "sout:1", "75/25", &peer]);
    assert!(tmux.is_alternate());
    tmux.keys(&["s"]);
    tmux.shows(&["sort: bytes"]);
    tmux.keys(&["/", "zz", "Enter"]);
    tmux.shows(&["no connection fits the filter", "filter: \"zz\""]);
    tmux.keys(&["Escape"]);
    tmux.shows(&["filter: none", &peer]);
    tmux.keys(&["q"]);
    tmux.shows(&["before", "after 0"]);
    assert!(!tmux.is_alternate());

    // A signal ends it, and the terminal is as before: a line that is typed is shown.
    tmux.keys(&["clear", "Enter"]);
    tmux.keys(&[&start, "Enter"]);
    tmux.shows(&["sort: rate", "75/25"]);
    // SAFETY: sends a signal to a process that this test has started.
    assert_eq!(unsafe { libc::kill(child_of_shell(&tmux), libc::SIGTERM) }, 0);
    tmux.shows(&["after 143"]);
    assert!(!tmux.is_alternate());
    tmux.keys(&["stty -a", "Enter"]);
    let settings = tmux.shows(&["icanon", "iexten"]);
    assert!(settings.contains(" icanon") && settings.contains(" echo "), "{settings}");

    // The end of the process that is shown ends it, with the reason.
    tmux.keys(&["clear", "Enter"]);
    tmux.keys(&[&start, "Enter"]);
    tmux.shows(&["sort: rate", "75/25"]);
    drop(perf);
    tmux.shows(&[&format!("mpib: process {sender}: "), "after "]);
    assert!(!tmux.is_alternate());
}
