//! A host whose ports are all taken.

use mpib_tests::code::{RemoteError, SystemError};
use mpib_tests::here;
use mpib_tests::hosts::watch::warnings;
use mpib_tests::hosts::{Hosts, Topology, on_hosts};

//= faults.md: 84: the connector's host has no port left: connect fails by name, and works once there is one
#[test]
fn a_connector_without_ports_names_the_cause_and_connects_later() {
    on_hosts(here!(), &[("MPIB_CONNECT_TIMEOUT_MS", "1000")], || {
        let networks = vec![vec![("a", "eth0", "10.0.1.1/24"), ("b", "eth0", "10.0.1.2/24")]];
        let hosts = Hosts::up(Topology { networks, ..Topology::default() });
        let start = |host, devices| hosts.peer(host, &[("SOFTVERBS_DEVICES", devices)]);
        let mut a = start("a", "soft0:addr=10.0.1.1/24");
        let mut b = start("b", "soft0:addr=10.0.1.2/24");
        let mut others = start("a", "soft0:addr=10.0.1.1/24");
        let range = "echo 40000 40007 >/proc/sys/net/ipv4/ip_local_port_range";
        assert!(hosts.command("a", "sh").args(["-euc", range]).status().unwrap().success());
        others.must("fill-ports");
        let handle = b.ask("listen");
        assert!([RemoteError, SystemError].contains(&a.code(&format!("connect-fails {handle}"))));
        let said = warnings(&mut a);
        assert!(
            said.iter().any(|line| line.contains("Cannot assign requested address")
                || line.contains("Address already in use")),
            "{said:#?}"
        );
        others.kill();
        let handle = b.ask("listen");
        b.say("accept");
        a.must(&format!("connect {handle}"));
        assert_eq!(b.answer(), "ok");
        b.say("recv 100000 1");
        a.must("send 100000 1");
        assert_eq!(b.answer(), "ok");
        a.must("close");
        b.must("close");
    });
}
