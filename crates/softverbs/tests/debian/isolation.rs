//! Isolation of fabrics and users, and cleanup after killed processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::pair::{Ended, Pair, Port, Running, fabric, program};
use crate::support::stand_in;

/// Checks that the client got no answer, with the completion status of a NIC.
#[track_caller]
fn assert_unanswered(client: &Ended) {
    assert!(!client.status.success(), "{}", client.text);
    assert!(client.text.contains("transport retry counter exceeded (12)"), "{}", client.text);
}

#[test]
fn two_fabrics_are_isolated() {
    let pair = Pair::new("ibv_rc_pingpong", "-g 3 -n 10").env_of(1, "SOFTVERBS_FABRIC", &fabric());
    let port = Port::new();
    let server = pair.server(&port);
    assert_unanswered(&pair.client(&port).end());
    server.kill();
}

#[test]
fn two_users_are_isolated() {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("not tested: only root can start a program as another user");
        return;
    }
    // In a folder that every user can read; the build folder may not be.
    let open = tempfile::tempdir().expect("a temporary folder can be made");
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    fs::copy(stand_in::folder().join("libibverbs.so.1"), open.path().join("libibverbs.so.1"))
        .expect("the library can be copied");

    let port = Port::new();
    let pair = Pair::new("ibv_rc_pingpong", "-g 3 -n 10");
    let server = pair.server(&port);
    let inner = pair.client_command(&port);
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    other.arg(inner.get_program()).args(inner.get_args());
    other.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.env("LD_LIBRARY_PATH", open.path()).current_dir("/");
    assert_unanswered(&Running::start(other).end());
    server.kill();
    // The folder of its fabric. It is not empty if that user runs other programs.
    let _ = fs::remove_dir("/dev/shm/softverbs-65534");
}

#[test]
fn a_killed_server_fails_its_client_and_leaves_nothing_that_blocks_the_next_run() {
    let pair = Pair::new("ib_write_bw", "-F -d soft0 -x 3 -s 4096 --run_infinitely -D 1");
    let port = Port::new();
    let server = pair.server(&port);
    let mut client = pair.client(&port);
    // A line of results: both are running.
    client.wait_until("results", |c| c.text().lines().any(|l| l.trim_start().starts_with("4096 ")));
    server.kill();
    let client = client.end();
    assert!(!client.status.success(), "{}", client.text);
    assert!(client.text.contains("status 12"), "not the status of a silent peer: {}", client.text);

    // The same fabric, the same devices.
    for text in pair.again("ibv_rc_pingpong", "-c -g 3 -n 100").outputs() {
        assert!(text.contains("100 iters in "), "{text}");
    }
}

#[test]
fn an_unchanged_program_writes_the_report() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("report");
    let pair = Pair::new("ibv_rc_pingpong", "-g 3 -n 77")
        .env_of(1, "SOFTVERBS_REPORT", file.to_str().expect("plain"))
        .env_of(0, "SOFTVERBS_REPORT", "stderr");
    let [server, _] = pair.outputs();
    let client = fs::read_to_string(&file).expect("the report was written");
    for report in [&server, &client] {
        let table: Vec<Vec<&str>> = report
            .lines()
            .skip_while(|line| !line.starts_with("softverbs: process"))
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .take_while(|row: &Vec<&str>| {
                row.first().is_some_and(|first| ["device", "soft0"].contains(first))
            })
            .collect();
        let column =
            |title: &str| table[0].iter().position(|t| *t == title).unwrap_or_else(|| panic!("{report}"));
        let (send, bytes, cqes) = (column("send"), column("bytes"), column("recv_cqe"));
        assert_eq!(table.len(), 3, "a title, the device, its only QP: {report}");
        for row in &table[1..] {
            assert_eq!(row[0], "soft0", "{report}");
            assert_eq!((row[send], row[bytes], row[cqes]), ("77", "315392", "77"), "{report}");
        }
    }
}

#[test]
fn an_invalid_report_variable_is_logged() {
    let mut command = program("ibv_devices");
    command.env("SOFTVERBS_REPORT", "/no/such/folder/report").env("SOFTVERBS_FABRIC", fabric());
    let ended = Running::start(command).end();
    let line = ended.text.lines().find(|line| line.contains("SOFTVERBS_REPORT"));
    let line = line.unwrap_or_else(|| panic!("no line about it:\n{}", ended.text));
    assert!(line.contains("/no/such/folder/report") && line.contains("stderr or a path"), "{line}");
}
