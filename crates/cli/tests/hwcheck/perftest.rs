//! Rates are compared with those of ib_write_bw, which may be missing or do anything.

use std::{fs, path::Path, process::Stdio};

use super::{Found, Pair};
use crate::transfer::until;

/// The step, with times and sizes for one rail.
const RATES: &str = "--step data --sizes 8 --least-of-perftest 50 --budget 60";

/// A pair with one rail, which has a rate.
fn pair() -> Pair {
    let mut pair = Pair::new("");
    pair.devices = [1, 2].map(|host| format!("sup:addr=10.9.1.{host}/24,rate=50MB"));
    pair
}

/// Asserts that the step has passed with a warning about the program.
#[track_caller]
fn warns(found: &Found, says: &[&str]) {
    assert_eq!(found.verdict("data"), "passed", "{found}");
    let texts = found.texts("data", "warn");
    let [text] = &texts[..] else { panic!("{found}") };
    assert!(says.iter().all(|says| text.contains(says)), "{text}");
}

//= hwcheck.md: a rail alone is compared with ib_write_bw
#[test]
fn a_rail_that_the_plugin_fills_is_as_fast_as_ib_write_bw() {
    let found = pair().run(RATES);
    assert_eq!(found.verdict("data"), "passed", "{found}");
    let texts = found.texts("data", "ok");
    for direction in ["out", "back"] {
        let start = format!("sup:1 to sup:1 alone, {direction}: ");
        let text = texts.iter().find(|text| text.starts_with(&start)).unwrap_or_else(|| panic!("{found}"));
        let (_, rate) = text.split_once("; ib_write_bw ").unwrap_or_else(|| panic!("{text}"));
        // No machine is faster than the simulated port.
        let rate: f64 = rate.parse().unwrap();
        assert!(rate > 0.0 && rate <= 0.41, "{text}");
    }
}

//= hwcheck.md: without ib_write_bw the step runs, and says where it is missing
#[test]
fn a_host_without_ib_write_bw_is_named() {
    let mut pair = pair();
    pair.env[1].push(("PATH".into(), "/nonexistent".into()));
    let found = pair.run(RATES);
    assert_eq!(found.verdict("data"), "passed", "{found}");
    let notes = found.texts("data", "note");
    let [note] = &notes[..] else { panic!("{found}") };
    assert!(note.contains("no ib_write_bw on ") && note.contains("package perftest"), "{note}");
}

//= hwcheck.md: a failure of ib_write_bw is no failure of the rail
#[test]
fn a_program_that_fails_is_no_failure_of_the_rail() {
    let cases = [
        (
            0,
            "echo 'Failed to create QP'; exit 1",
            &["client here exited with status 1", "Failed to create QP"][..],
        ),
        (1, "echo 'Unsupported MTU' >&2; exit 1", &["there: its server ended", "Unsupported MTU"]),
        (0, "yes '65536 what a rate' | head -n 100000", &["client here printed no rate", "what a rate"]),
        (0, "kill -SEGV $$", &["client here died of signal 11", "it printed nothing"]),
    ];
    for (end, script, says) in cases {
        let mut pair = pair();
        pair.replace(end, "ib_write_bw", script);
        warns(&pair.run(RATES), says);
    }
}

//= hwcheck.md: a failure of ib_write_bw is no failure of the rail
#[test]
fn a_program_that_hangs_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    for (end, says) in [(0, "client here did not end within"), (1, "there: its server did not listen within")]
    {
        let (mut pair, file) = (pair(), folder.path().join(end.to_string()));
        pair.replace(end, "ib_write_bw", &format!("echo $$ > {}\nexec sleep 100000", file.display()));
        warns(&pair.run(RATES), &[says]);
        assert!(!is_alive(&file), "{end}");
    }
}

//= hwcheck.md: ib_write_bw ends with the session
#[test]
fn a_program_ends_with_the_session_that_has_started_it() {
    let folder = tempfile::tempdir().unwrap();
    for client in [0, 1] {
        let [hangs, serves] = ["hangs", "serves"].map(|what| folder.path().join(format!("{what}-{client}")));
        let mut pair = pair();
        // The client's last argument is an address.
        let script = |file: &Path, does: &str, when: &str| {
            let write = format!("echo $$ > {}; {does}", file.display());
            format!("case \"$*\" in {when}) {write};; esac\nexec ib_write_bw \"$@\"")
        };
        pair.replace(client, "ib_write_bw", &script(&hangs, "exec sleep 100000", "*127.0.0.1"));
        pair.replace(1 - client, "ib_write_bw", &script(&serves, ":", "*_gbits"));
        let listener = pair.listen();
        let mut command = pair.lead(&listener, RATES);
        let mut lead = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the client starts", || is_written(&hangs).then_some(()));
        assert!(is_alive(&serves));
        lead.kill().unwrap();
        lead.wait().unwrap();
        until("both ends are over", || (!is_alive(&hangs) && !is_alive(&serves)).then_some(()));
    }
}

fn is_written(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n'))
}

/// Returns whether the process in a file is there, and no zombie.
fn is_alive(file: &Path) -> bool {
    let pid = fs::read_to_string(file).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}
