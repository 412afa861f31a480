//! ibv_rc_pingpong and ibv_srq_pingpong: sends and receives, with the data compared (-c).

use crate::support::pair::Pair;

/// Runs a program and checks the numbers that it prints.
#[track_caller]
fn pingpong(name: &'static str, args: &str, bytes: u64, exchanges: u64) {
    compare(name, args, &Pair::new(name, args), bytes, exchanges);
}

#[track_caller]
fn compare(name: &'static str, args: &str, pair: &Pair, bytes: u64, exchanges: u64) {
    for text in pair.outputs() {
        // Both ends print "N bytes in S seconds = ..." and "I iters in S seconds = ...".
        assert!(text.contains(&format!("{bytes} bytes in ")), "{name} {args}: no {bytes} bytes in\n{text}");
        assert!(
            text.contains(&format!("{exchanges} iters in ")),
            "{name} {args}: no {exchanges} iters in\n{text}"
        );
        assert!(!text.contains("softverbs["), "{name} {args} logged a fault:\n{text}");
        assert!(!text.contains("invalid data"), "{name} {args}:\n{text}");
    }
}

/// (arguments, message size, exchanges); index 3 is the RoCE v2 entry of the IPv4 address.
const RC: [(&str, u64, u64); 6] = [
    ("-c -g 3", 4096, 1000),
    ("-c -g 3 -e", 4096, 1000),
    ("-c -g 1 -s 1 -n 300", 1, 300),
    ("-c -g 3 -s 65536 -n 200 -m 4096", 65536, 200),
    ("-c -g 3 -s 1048577 -n 50 -e", 1_048_577, 50),
    ("-c -g 2 -r 1 -n 300", 4096, 300),
];

#[test]
fn rc_pingpong() {
    for (args, size, exchanges) in RC {
        pingpong("ibv_rc_pingpong", args, size * exchanges * 2, exchanges);
    }
}

#[test]
fn rc_pingpong_through_shared_memory() {
    for (args, size, exchanges) in [RC[0], RC[4]] {
        let pair = Pair::new("ibv_rc_pingpong", args).env("SOFTVERBS_COPY", "bounce");
        compare("ibv_rc_pingpong", args, &pair, size * exchanges * 2, exchanges);
    }
}

#[test]
fn rc_pingpong_in_one_host() {
    // Both sides have the same devices, and each side uses one of them.
    let pair = Pair::new("ibv_rc_pingpong", "-c -g 3 -n 200");
    let default = "soft0:addr=10.2.0.1/24;soft1:addr=10.2.1.1/24";
    for text in pair.env("SOFTVERBS_DEVICES", default).outputs() {
        assert!(text.contains("200 iters in "), "{text}");
    }
}

#[test]
fn rc_pingpong_over_infiniband_needs_no_gid() {
    let pair = Pair::new("ibv_rc_pingpong", "-c -n 200")
        .env_of(0, "SOFTVERBS_DEVICES", "ib0:link=ib,lid=1")
        .env_of(1, "SOFTVERBS_DEVICES", "ib0:link=ib,lid=2");
    for text in pair.outputs() {
        assert!(text.contains("200 iters in "), "{text}");
        assert!(text.contains("local address:  LID 0x000"), "{text}");
    }
}

#[test]
fn rc_pingpong_without_a_gid_fails_on_roce() {
    let pair = Pair::new("ibv_rc_pingpong", "-n 10");
    let port = crate::support::pair::Port::new();
    let server = pair.server(&port);
    let client = pair.client(&port).end();
    let server = server.end();
    for side in [&client, &server] {
        assert!(!side.status.success(), "{}", side.text);
    }
    // The server modifies its QP first: it gets the error.
    assert!(server.text.contains("Failed to modify QP to RTR"), "{}", server.text);
    assert!(server.text.contains("softverbs["), "no line that says why:\n{}", server.text);
}

/// (arguments, message size, exchanges), with 16 QPs by default.
const SRQ: [(&str, u64, u64); 3] = [
    ("-c -g 3 -n 800", 4096, 800),
    ("-c -g 3 -n 800 -e", 4096, 800),
    ("-c -g 3 -n 300 -q 3 -s 100 -r 20", 100, 300),
];

#[test]
fn srq_pingpong() {
    for (args, size, exchanges) in SRQ {
        pingpong("ibv_srq_pingpong", args, size * exchanges * 2, exchanges);
    }
}

/// Asserts that a program ended with `IBV_WC_RETRY_EXC_ERR`.
fn gave_up(ended: &crate::support::pair::Ended) {
    assert!(!ended.status.success() && ended.text.contains("retry counter exceeded"), "{}", ended.text);
}

//= softverbs.md: SOFTVERBS_FAULTS injects faults
#[test]
fn the_environment_breaks_an_unchanged_program() {
    let pair = Pair::new("ibv_rc_pingpong", "-g 3").env_of(1, "SOFTVERBS_FAULTS", "soft0:silence=out,at=5");
    let port = crate::support::pair::Port::new();
    let server = pair.server(&port);
    gave_up(&pair.client(&port).end());
    server.kill();
}

//= softverbs.md: softverbs-ctl breaks and heals running processes
#[test]
fn softverbs_ctl_breaks_a_running_unchanged_program() {
    let fabric = crate::support::pair::fabric();
    let pair = Pair::new("ibv_rc_pingpong", "-g 3 -n 1000000000").env("SOFTVERBS_FABRIC", &fabric);
    let port = crate::support::pair::Port::new();
    let server = pair.server(&port);
    let mut client = pair.client(&port);
    let ctl = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_softverbs-ctl"));
        let out =
            command.args(["--fabric", &fabric]).args(args).output().expect("softverbs-ctl can be started");
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    // Once data flows.
    client.wait_until("work requests", |_| {
        let posts =
            |line: &str| line.contains(" work requests posted") && !line.contains(": 0 work requests");
        ctl(&["list"]).1.lines().filter(|line| posts(line)).count() == 2
    });
    assert!(ctl(&["fault", "soft0@10.1.0.2", "silence"]).0);
    // The client has nothing outstanding if its ping had arrived, and then the server gives up.
    gave_up(&crate::support::pair::Running::first_end([client, server]));
}
