//! `mpib setup` on two hosts with cables between them.

use std::process::{Child, Command, Output, Stdio};

use crate::built::artifact;
use crate::doctor_util::{fabric, mpib};
use crate::two_hosts::TwoHosts;

/// The interfaces of both hosts, with the last byte of their hardware addresses: each cable joins two in
/// one row. The second host has them in another order.
const CABLES: [[(&str, u8); 2]; 2] = [[("ca", 0x11), ("cd", 0x22)], [("cb", 0x12), ("cc", 0x21)]];

/// Adds the cables, whose interfaces have no address but the link-local one.
fn cable(hosts: &TwoHosts) {
    for row in CABLES {
        let [(ours, _), (theirs, _)] = row;
        run(hosts, 0, &format!("ip link add {ours} type veth peer name {theirs} netns b"));
        for (host, (name, number)) in row.into_iter().enumerate() {
            // Without a check for duplicates the address is there at once.
            let steps = format!(
                "echo 0 >/proc/sys/net/ipv6/conf/{name}/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/{name}/addr_gen_mode; \
                 ip link set {name} address 02:00:00:00:00:{number:02x} up"
            );
            run(hosts, host, &steps);
        }
    }
    // A link is there when the kernel has seen both ends up.
    for (host, (name, _)) in CABLES.iter().flat_map(|row| row.iter().copied().enumerate()) {
        let has_address = format!("ip -6 addr show dev {name} scope link | grep -q inet6");
        run(hosts, host, &format!("until {has_address}; do sleep 0.02; done"));
    }
}

fn run(hosts: &TwoHosts, host: usize, commands: &str) {
    let output = hosts.command(host, Command::new("sh").args(["-euc", commands])).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the adapters of a host, with the addresses that these numbers of interfaces have.
fn devices(host: usize, address: impl Fn(u8) -> String) -> String {
    let mut ends: Vec<(&str, u8)> = CABLES.iter().map(|row| row[host]).collect();
    ends.sort_unstable();
    let device =
        |(n, (_, number)): (usize, (&str, u8))| format!("mlx5_{n}:rate=2Gb,addr={}", address(number));
    ends.into_iter().enumerate().map(device).collect::<Vec<_>>().join(";")
}

fn link_local(number: u8) -> String {
    format!("fe80::ff:fe00:{number:x}/64")
}

/// The address of the end in a row.
fn address(host: usize, row: usize) -> String {
    format!("192.168.{}.{}/24", 177 + row, 11 + host)
}

/// Returns the adapters of a host whose interfaces have their addresses.
fn given(host: usize) -> String {
    devices(host, |number| address(host, CABLES.iter().position(|row| row[host].1 == number).unwrap()))
}

fn start(hosts: &TwoHosts, host: usize, fabric: &str, devices: &str, args: &[&str]) -> Child {
    let mut command = mpib(fabric, devices);
    command.args(["setup", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    let mut command = hosts.command(host, &command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs it on both hosts, and returns what both print.
fn both(hosts: &TwoHosts, devices: [String; 2], args: &[&str]) -> [String; 2] {
    let fabric = fabric();
    let children = [0, 1].map(|host| start(hosts, host, &fabric, &devices[host], args));
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    let texts = outputs.each_ref().map(text);
    assert!(outputs.iter().all(|output| output.status.success()), "{texts:#?}");
    texts
}

//= direct-cables.md: mpib setup finds the cables and proposes addresses; with these it measures
#[test]
fn two_hosts_find_their_cables_and_measure_over_them() {
    let Some(hosts) = TwoHosts::up() else { return };
    cable(&hosts);
    let found = both(&hosts, [0, 1].map(|host| devices(host, link_local)), &["--form", "ip"]);
    for (host, names, addresses) in [(0, ["ca", "cb"], [11, 12]), (1, ["cd", "cc"], [12, 11])] {
        let text = &found[host];
        assert!(text.contains("2 links to "), "{text}");
        for (n, (name, network)) in names.into_iter().zip([177, 178]).enumerate() {
            let mine = format!("192.168.{network}.{}/24", addresses[0]);
            let peer = CABLES[n][1 - host].0;
            assert!(
                text.contains(&format!("  {name} (mlx5_")) && text.contains(&format!(" to {peer} (mlx5_")),
                "{text}"
            );
            assert!(text.contains(&format!("ip addr add {mine} dev {name}\n")), "{text}");
            run(&hosts, host, &format!("ip addr add {mine} dev {name}"));
        }
        assert!(text.contains("export MPIB_SUP_SHARE=512\n"), "{text}");
    }
    let measured = both(&hosts, [given(0), given(1)], &["--time", "0.1"]);
    for text in &measured {
        assert!(text.contains(" present\n") && !text.contains("ip addr add"), "{text}");
        assert!(text.contains("next: mpib doctor on both hosts"), "{text}");
    }
    assert!(measured[1].contains("16 MiB") || measured[1].contains("16M"), "{}", measured[1]);
}

/// The first host has the lower address, so it listens.
#[test]
fn a_host_does_not_wait_forever_for_one_that_does_not_measure() {
    let Some(hosts) = TwoHosts::up() else { return };
    cable(&hosts);
    for (n, row) in CABLES.iter().enumerate() {
        for (host, (name, _)) in row.iter().enumerate() {
            run(&hosts, host, &format!("ip addr add {} dev {name}", address(host, n)));
        }
    }
    let fabric = fabric();
    let waits = start(&hosts, 0, &fabric, &given(0), &["--wait", "10", "--time", "0.1"]);
    let other = start(&hosts, 1, &fabric, &given(1), &["--no-perf"]);
    let (waits, other) = (waits.wait_with_output().unwrap(), other.wait_with_output().unwrap());
    assert_eq!(other.status.code(), Some(0), "{}", text(&other));
    assert_eq!(waits.status.code(), Some(1), "{}", text(&waits));
    assert!(text(&waits).contains("does mpib setup measure on the other host, too?"), "{}", text(&waits));
}

//= direct-cables.md: without the other host mpib setup says so
#[test]
fn a_host_alone_says_that_it_hears_nobody() {
    let Some(hosts) = TwoHosts::up() else { return };
    cable(&hosts);
    let child = start(&hosts, 0, &fabric(), &devices(0, link_local), &["--wait", "1"]);
    let output = child.wait_with_output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("no cable to another host is found: no port hears one"), "{text}");
}

#[test]
fn without_a_port_with_a_link_nothing_is_searched() {
    let mut command = mpib(&fabric(), "mlx5_0:addr=10.9.0.1/24");
    command.args(["setup", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    let output = command.output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("mlx5_0:1: its network interface is not in sight of this process"), "{text}");
}
