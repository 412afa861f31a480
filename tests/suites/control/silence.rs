//! `MPIB_PEER_TIMEOUT_MS`: a host that becomes silent on the control connection.

use std::os::fd::RawFd;

use mpib_tests::code::RemoteError;
use mpib_tests::hosts::watch::{WARN, log};
use mpib_tests::hosts::{Hosts, Topology, on_hosts};
use mpib_tests::pair::Pair;
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib, set};

/// An option of a socket, where it has that.
fn option(fd: RawFd, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: a number that may be no descriptor, and four bytes to be written to.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (rc == 0).then_some(value)
}

/// Of each TCP connection of this process, no listener: limit of silence in ms, and after how many
/// seconds of it a sign of life is asked for, and again.
fn limits() -> Vec<[i32; 3]> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<RawFd>().ok());
    let of = |fd| {
        option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).filter(|listens| *listens == 0)?;
        let tcp = |name| option(fd, libc::IPPROTO_TCP, name);
        Some([tcp(libc::TCP_USER_TIMEOUT)?, tcp(libc::TCP_KEEPIDLE)?, tcp(libc::TCP_KEEPINTVL)?])
    };
    fds.filter_map(of).collect()
}

//= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
#[test]
fn the_limit_of_silence_is_a_setting() {
    isolated(here!(), &mpib("512", &[]), || {
        for (setting, expected) in [
            (None, [150_000, 75, 18]),
            (Some("1000"), [1000, 1, 1]),
            (Some("3600000"), [3_600_000, 1800, 450]),
        ] {
            set("MPIB_PEER_TIMEOUT_MS", setting);
            let pair = Pair::new(newest());
            pair.message(5000, 5000, 1);
            let now = limits();
            // Those of the pair before may linger.
            assert!(now.iter().filter(|of| **of == expected).count() >= 2, "{setting:?}: {now:?}");
            pair.close();
        }
    });
}

/// Whose rails work on, which nobody asks.
//= reach.md: a host that is silent for MPIB_PEER_TIMEOUT_MS is lost
//= configuration.md: MPIB_PEER_TIMEOUT_MS
#[test]
fn a_host_that_is_silent_beyond_the_limit_is_lost() {
    on_hosts(here!(), &[("MPIB_PEER_TIMEOUT_MS", "1000")], || {
        let networks = vec![vec![("a", "eth0", "10.0.1.1/24"), ("b", "eth0", "10.0.1.2/24")]];
        let hosts = Hosts::up(Topology { networks, ..Topology::default() });
        let start = |host, devices| hosts.peer(host, &[("SOFTVERBS_DEVICES", devices)]);
        let mut a = start("a", "soft0:addr=10.0.1.1/24");
        let mut b = start("b", "soft0:addr=10.0.1.2/24");
        let handle = b.ask("listen");
        b.say("accept");
        a.must(&format!("connect {handle}"));
        assert_eq!(b.answer(), "ok");
        // Nothing of b's reaches a any more.
        let silent = hosts.command("b", "ip").args(["route", "add", "blackhole", "10.0.1.1/32"]).status();
        assert!(silent.unwrap().success());
        assert_eq!(a.code("fail 1000"), RemoteError);
        let said: Vec<_> = log(&mut a).into_iter().filter(|line| line.0 == WARN).collect();
        let parts = ["is gone with sends outstanding", "is its host up, and the network between?"];
        assert!(said.iter().any(|line| parts.iter().all(|part| line.1.contains(part))), "{said:?}");
        drop((a, b));
    });
}
