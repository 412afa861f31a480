//! Output on terminals of a width, and its colours.

use std::{
    fs::File,
    io::Read,
    os::fd::{FromRawFd, OwnedFd},
    process::{Command, Stdio},
    ptr,
};

use crate::built::artifact;
use crate::doctor_util::{TWO, fabric, mpib};

/// Makes a terminal; returns its two ends.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: all pointers are valid or null, as the call permits.
    let made = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, ptr::null_mut(), ptr::null_mut(), &raw const size)
    };
    assert_eq!(made, 0);
    // SAFETY: new descriptors, which nobody else has.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// Runs the command with stdout on a terminal; returns what it printed.
fn on_terminal(columns: u16, mut command: Command) -> String {
    let (mut ours, theirs) = terminal(columns);
    let mut child = command.stdin(Stdio::null()).stdout(theirs).stderr(Stdio::null()).spawn().unwrap();
    // The command has the terminal open until it is dropped.
    drop(command);
    let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
    // A terminal that nobody has open any more gives an error.
    while let Ok(n @ 1..) = ours.read(&mut bytes) {
        text.extend_from_slice(&bytes[..n]);
    }
    child.wait().unwrap();
    String::from_utf8(text).unwrap().replace('\r', "")
}

fn doctor(env: &[(&str, &str)], args: &[&str]) -> Command {
    let mut command = mpib(&fabric(), TWO);
    command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    command.env("TERM", "xterm").envs(env.iter().copied());
    command
}

//= doctor.md: lines fit the terminal
#[test]
fn lines_are_as_wide_as_the_terminal() {
    let width = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    let wide = on_terminal(80, doctor(&[], &["-v", "--color", "never"]));
    let narrow = on_terminal(60, doctor(&[], &["-v", "--color", "never"]));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let file = doctor(&[], &["-v"]).output().unwrap();
    let file = String::from_utf8(file.stdout).unwrap();
    assert!(width(&wide) <= 80 && width(&narrow) <= 60 && width(&file) > 100, "{wide}\n{narrow}\n{file}");
    assert!(wide.contains("\nok    verbs      softverbs is this"), "{wide}");
    // Nothing is lost but the breaks.
    assert!(words(&wide).len() >= words(&file).len(), "{wide}\n{file}");
}

//= doctor.md: colours
#[test]
fn colours_are_as_the_environment_and_the_option_request() {
    let coloured = |text: &str| text.contains("\x1b[32mok\x1b[0m") && text.starts_with("\x1b[");
    let plain = |text: &str| !text.contains('\x1b');
    assert!(coloured(&on_terminal(200, doctor(&[], &["-v"]))));
    for env in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        let text = on_terminal(200, doctor(&[env], &["-v"]));
        assert!(plain(&text), "{env:?}: {text}");
    }
    assert!(plain(&on_terminal(200, doctor(&[], &["-v", "--color", "never"]))));
    assert!(coloured(&on_terminal(200, doctor(&[("TERM", "dumb")], &["-v", "--color=always"]))));
    let piped = |env: &[(&str, &str)], args: &[&str]| {
        String::from_utf8(doctor(env, args).output().unwrap().stdout).unwrap()
    };
    assert!(plain(&piped(&[], &["-v"])));
    assert!(coloured(&piped(&[("CLICOLOR_FORCE", "1")], &["-v"])));
    assert!(coloured(&piped(&[], &["-v", "--color", "always"])));
}

#[test]
fn help_is_wrapped_between_words() {
    let mut help = Command::new(env!("CARGO_BIN_EXE_mpib"));
    help.args(["perf", "--help"]).env("NO_COLOR", "1");
    let text = on_terminal(70, help);
    assert!(text.lines().all(|line| line.chars().count() <= 70), "{text}");
    for heading in ["Plugin and device:", "Messages:", "Two machines:", "Output:", "Exit codes:"] {
        assert!(text.lines().any(|line| line == heading), "{heading:?} is not in {text}");
    }
}
