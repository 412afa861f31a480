//! `mpib doctor` with links down and addresses missing. A process with softverbs linked in makes
//! these changes: `mpib` uses softverbs as a file.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use crate::built::artifact;
use crate::doctor_util::{Doctor, TWO, fabric, mpib};

/// Set in the process that changes the fabric: `down DEVICE`, or `bare DEVICE` for a device without
/// an address.
const FAULT: &str = "DOCTOR_TEST_FAULT";

/// Changes the fabric as long as stdin is open, and does not return.
fn fault(what: &str) -> ! {
    let (what, device) = what.split_once(' ').unwrap();
    match what {
        "down" => softverbs::set_link(device, false).unwrap(),
        _ => softverbs::set_addrs(device, &[]).unwrap(),
    }
    println!("@@done");
    std::io::stdout().flush().unwrap();
    // Until the test ends in any way.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0)
}

/// A process that ends with the test.
struct Fault(Child);

impl Drop for Fault {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a second process of `test`, the calling test, which gets as far as this call.
fn with_fault(test: &str, fabric: &str, what: &str) -> Fault {
    if let Ok(what) = std::env::var(FAULT) {
        fault(&what);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(FAULT, what).env("SOFTVERBS_FABRIC", fabric).env("SOFTVERBS_DEVICES", TWO);
    let mut fault = Fault(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(fault.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("@@done")), "no fault was injected");
    fault
}

fn doctor(fabric: &str, env: &[(&str, &str)]) -> Doctor {
    let mut command = mpib(fabric, TWO);
    command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    Doctor::of(command.envs(env.iter().copied()))
}

//= doctor.md: a port that is down is a note, unless the settings name it
#[test]
fn a_port_that_is_down_is_a_note_unless_somebody_misses_it() {
    let fabric = fabric();
    let _fault = with_fault(
        "doctor_ports::a_port_that_is_down_is_a_note_unless_somebody_misses_it",
        &fabric,
        "down sup",
    );
    let found = doctor(&fabric, &[]);
    found.usable_with(&[]);
    found.says("ports", "note", &["ports left out: sup:1 (the port is not active)"]);
    let port = &found.document["report"]["ports"][1];
    assert_eq!(
        (&port["usable"], &port["trouble"], &port["state"]["active"]),
        (&false.into(), &"the port is not active".into(), &false.into())
    );
    let found = doctor(&fabric, &[("NCCL_IB_HCA", "sout,sup")]);
    found.usable_with(&["ports"]);
    found.says("ports", "warn", &["ports that cannot be used: sup:1 (the port is not active)"]);
    let both = [("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup")];
    let found = doctor(&fabric, &both);
    found.usable_with(&["ports"]);
    found.says("ports", "warn", &["sup:1 (the port is not active), which connections use once it is active"]);
    let found = doctor(&fabric, &[&both[..], &[("MPIB_FAILOVER", "0")]].concat());
    found.unusable();
    found.says(
        "devices",
        "fail",
        &["MPIB_HCA_SUP=\"sup\": expected a port that can be used", "sup:1 (the port is not active)"],
    );
}

//= doctor.md: a port with link-local addresses only is a warning
#[test]
fn a_port_that_has_link_local_addresses_only_is_a_loss() {
    let fabric = fabric();
    let _fault =
        with_fault("doctor_ports::a_port_that_has_link_local_addresses_only_is_a_loss", &fabric, "bare sout");
    let found = doctor(&fabric, &[]);
    found.usable_with(&["addresses"]);
    found.says(
        "addresses",
        "warn",
        &["sout:1 has link-local addresses only", "give its network interface an address"],
    );
    let index = doctor(&fabric, &[("NCCL_IB_GID_INDEX", "3")]);
    index.usable_with(&["ports"]);
    index.says(
        "ports",
        "warn",
        &["sout:1 (NCCL_IB_GID_INDEX names GID index 3, which is empty; the port has 0 (fe80::"],
    );
}
