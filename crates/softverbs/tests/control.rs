//! Faults from outside: `softverbs-ctl` on running processes, and `SOFTVERBS_FAULTS`.

use std::process::{Command, Output, Stdio};

use crate::common::*;
use crate::peer::own_process;
use crate::peer::{Peer, again, here};

/// The argument of a test that plays a program with `SOFTVERBS_FAULTS`.
const PLAY: &str = "TEST_PLAY";

fn ctl(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softverbs-ctl"));
    command.args(["--fabric", &fabric()]).args(args).output().expect("softverbs-ctl can be started")
}

fn works(args: &[&str]) -> String {
    let out = ctl(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn fails(args: &[&str]) -> String {
    let out = ctl(args);
    assert!(!out.status.success(), "{args:?}");
    String::from_utf8(out.stderr).expect("text")
}

fn write(from: &End, to: &Address) -> u32 {
    let mut sges = [from.sge(0, 8)];
    assert_eq!(from.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(to, 0)), 0);
    from.poll_send().status
}

/// Waits for this event of the port.
fn wait_event_kind(end: &End, kind: u32) {
    while async_event(end.ctx, true).expect("an event") != kind {}
}

//= softverbs.md: softverbs-ctl breaks and heals running processes
#[test]
fn a_running_process_is_broken_and_healed_from_outside() {
    own_process!();
    crate::peer::play();
    let mut peer = Peer::start(here!(), &[]);
    let end = End::new(Opts { timeout: 8, retry: 1, ..Opts::default() });
    let there = peer.connect(&end);
    works(&["link", "soft0", "down"]);
    wait_event_kind(&end, 10);
    assert!(works(&["list"]).contains("soft0@192.168.200.1: down\n"));
    works(&["link", "soft0@192.168.200.1", "up"]);
    wait_event_kind(&end, 9);
    assert_eq!(write(&end, &there), 0);

    // Armed in this process only: the peer goes on.
    let pid = std::process::id().to_string();
    works(&["fault", "soft0", "silence", "at=2,only=write", "--pid", &pid]);
    let list = works(&["list"]);
    let line = list.lines().find(|line| line.contains(&pid)).expect("this process");
    assert!(line.ends_with("faults: 1 armed, 0 struck"), "{list}");
    assert_eq!(write(&end, &there), 0);
    assert_eq!(write(&end, &there), status::IBV_WC_RETRY_EXC_ERR);
    assert!(works(&["list"]).contains("soft0@192.168.200.1: silent in, silent out\n"));
    works(&["clear"]);
    assert!(works(&["list"]).contains("soft0@192.168.200.1: no fault\n"));

    for (args, word) in [
        (&["link", "soft9", "down"][..], "soft9"),
        (&["fault", "soft0", "dead"], "dead"),
        (&["fault", "soft0", "silence", "at=1", "--pid", "1"], "no such process"),
    ] {
        let text = fails(args);
        assert!(text.contains(word) && text.lines().count() == 1, "{text}");
    }
    let error = softverbs::Control::open("nobody-is-here").err().expect("no such fabric");
    assert!(error.to_string().contains("nobody-is-here"));
    peer.finish();
}

//= softverbs.md: softverbs-ctl changes the rate of a device
#[test]
fn a_running_process_is_throttled_from_outside() {
    own_process!();
    const DEVICE_SPEED_CHANGE: u32 = 20;
    const PORT_ERR: u32 = 10;
    crate::peer::play();
    let mut peer = Peer::start(here!(), &[]);
    let end = End::new(Opts::default());
    let there = peer.connect(&end);
    let speed = || {
        // SAFETY: an open context and a writable struct.
        unsafe {
            let mut attr: sys::ibv_port_attr = std::mem::zeroed();
            assert_eq!(sys::ibv_query_port(end.ctx, 1, (&raw mut attr).cast()), 0);
            (attr.active_speed, attr.active_width)
        }
    };
    let unlimited = speed();
    works(&["rate", "soft0", "5GB"]);
    wait_event_kind(&end, DEVICE_SPEED_CHANGE);
    assert_eq!(speed(), (4, 2), "four lanes of 10 Gb/s");
    assert_eq!(write(&end, &there), 0);
    works(&["rate", "soft0", "default"]);
    wait_event_kind(&end, DEVICE_SPEED_CHANGE);
    assert_eq!(speed(), unlimited);
    // A bond that loses a cable raises no event: the next one is that of the link.
    works(&["fault", "soft0", "rate=5GB", "event=off"]);
    assert_eq!(speed(), (4, 2));
    works(&["link", "soft0", "down"]);
    assert_eq!(async_event(end.ctx, true), Some(PORT_ERR));
    works(&["clear"]);
    let text = fails(&["rate", "soft0", "fast"]);
    assert!(text.contains("fast") && text.contains("4GB"), "{text}");
    peer.finish();
}

#[test]
fn devices_of_two_hosts_with_one_name_are_distinguished() {
    own_process!();
    crate::peer::play();
    let mut peer = Peer::start(here!(), &[("SOFTVERBS_DEVICES", "soft0:addr=192.168.200.2/24")]);
    let end = End::new(Opts { timeout: 8, retry: 1, ..Opts::default() });
    let there = peer.connect(&end);
    let text = fails(&["link", "soft0", "down"]);
    assert!(text.contains("soft0@192.168.200.1") && text.contains("soft0@192.168.200.2"), "{text}");
    works(&["fault", "soft0@192.168.200.2", "silence=in"]);
    assert_eq!(write(&end, &there), status::IBV_WC_RETRY_EXC_ERR);
    works(&["heal", "soft0@192.168.200.2"]);
    peer.finish();
}

/// Runs this test again as a program with `SOFTVERBS_FAULTS`, in another fabric.
fn program(test: &str, faults: &str) -> String {
    let mut command = again(test);
    command
        .env(PLAY, "1")
        .env("SOFTVERBS_FABRIC", format!("{}-env", fabric()))
        .env("SOFTVERBS_FAULTS", faults);
    let out = command.stdin(Stdio::null()).output().expect("this program can be started");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{text}");
    text
}

//= softverbs.md: SOFTVERBS_FAULTS injects faults
#[test]
fn the_environment_injects_faults() {
    own_process!();
    if std::env::var_os(PLAY).is_some() {
        let (a, b) = pair(Opts { retry: 1, ..Opts::default() }, Opts::default());
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(write(&a, &b.address()));
        }
        eprintln!("seen {seen:?}");
        return;
    }
    let (retry, flush) = (status::IBV_WC_RETRY_EXC_ERR, status::IBV_WC_WR_FLUSH_ERR);
    let text = program(here!(), "soft1:link=down;soft0:silence,at=2");
    assert!(text.contains(&format!("seen {:?}", [0, retry, flush])), "{text}");
    for faults in ["soft0:silense", "soft7:fatal", "soft0:silence,at=2;soft0:heal=1"] {
        let text = program(here!(), faults);
        let line = text.lines().find(|line| line.contains("SOFTVERBS_FAULTS=")).expect("one line");
        assert!(line.contains(faults) && line.contains("DEVICE:FAULT,KEY=VALUE"), "{line}");
        assert!(text.contains("seen [0, 0, 0]"), "{text}");
    }
}
