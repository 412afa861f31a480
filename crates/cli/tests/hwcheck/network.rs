//! The network between two hosts is silent, which is not that of their rails.

use super::Pair;
use crate::two_hosts::TwoHosts;

/// Longer than the plugin waits for a sign of life: both ends lose the control connection.
const SILENT: &str = "--step network --network-time 4";

/// `None`: hosts cannot be made here.
fn pair() -> Option<Pair> {
    Some(Pair { hosts: Some(TwoHosts::up()?), ..Pair::new("") })
}

//= hwcheck.md: data moves on while the network between the hosts is silent
#[test]
fn data_moves_on_while_the_network_between_the_hosts_is_silent() {
    let Some(pair) = pair() else { return };
    let found = pair.run(&format!("{SILENT} --outages"));
    assert_eq!((found.code, found.verdict("network")), (0, "passed"), "{found}");
    let texts = found.texts("network", "ok");
    assert!(texts.iter().any(|text| text.contains("without the network for 4s, longest stall")), "{texts:?}");
    assert_eq!(found.texts("network", "warn"), [""; 0]);
}

//= hwcheck.md: what does not run is never reported as passed
#[test]
fn a_network_that_nobody_may_silence_is_not_silenced() {
    let Some(pair) = pair() else { return };
    let found = pair.run(SILENT);
    assert_eq!((found.code, found.verdict("network")), (0, "not run"), "{found}");
    let says =
        "--outages runs \"ip route add blackhole 192.0.2.2/32\" and \"ip route del blackhole 192.0.2.2/32\"";
    assert!(found.texts("network", "note").concat().contains(says), "{found}");
}

//= hwcheck.md: what does not run is never reported as passed
#[test]
fn a_rail_with_the_address_of_the_network_is_not_silenced() {
    let Some(mut pair) = pair() else { return };
    pair.devices[0] = pair.devices[0].replace("10.9.0.1/24", "192.0.2.1/24");
    pair.devices[1] = pair.devices[1].replace("10.9.0.2/24", "192.0.2.2/24");
    let found = pair.run(&format!("{SILENT} --outages"));
    assert_eq!((found.code, found.verdict("network")), (0, "not run"), "{found}");
    let text = found.texts("network", "note").concat();
    assert!(text.contains("sout:1 has the address 192.0.2.1"), "{text}");
}
