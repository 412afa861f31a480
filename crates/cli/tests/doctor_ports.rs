//! `mpib doctor` where links are down or addresses gone. A process with softverbs linked in takes them down: the one of
//! `mpib` takes its libibverbs from the file.

extern crate softverbs as _;

mod doctor_util;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use doctor_util::{Doctor, TWO, artifact, fabric, mpib};

/// Not a test: the process that changes a fabric, as long as its stdin is open. `DOCTOR_TEST_FAULT` is `down DEVICE`, or
/// `bare DEVICE` for one without an address.
#[test]
#[ignore = "the process of the tests here that changes a fabric"]
fn other_process() {
    let Ok(fault) = std::env::var("DOCTOR_TEST_FAULT") else { return };
    let (what, device) = fault.split_once(' ').unwrap();
    match what {
        "down" => softverbs::set_link(device, false).unwrap(),
        _ => softverbs::set_addrs(device, &[]).unwrap(),
    }
    println!("@@done");
    std::io::stdout().flush().unwrap();
    // Until the test ends, however it does.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A process that ends with the test.
struct Fault(Child);

impl Drop for Fault {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_fault(fabric: &str, fault: &str) -> Fault {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["other_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("DOCTOR_TEST_FAULT", fault).env("SOFTVERBS_FABRIC", fabric).env("SOFTVERBS_DEVICES", TWO);
    let mut fault = Fault(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(fault.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("@@done")), "the fault could not be made");
    fault
}

fn doctor(fabric: &str, env: &[(&str, &str)]) -> Doctor {
    let mut command = mpib(fabric, TWO);
    command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    Doctor::of(command.envs(env.iter().copied()))
}

#[test]
fn a_port_that_is_down_is_a_note_unless_somebody_misses_it() {
    let fabric = fabric();
    let _fault = with_fault(&fabric, "down sup");
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
    let found = doctor(&fabric, &[("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup")]);
    found.unusable();
    found.says(
        "devices",
        "fail",
        &["MPIB_HCA_SUP=\"sup\": expected a port that can be used", "sup:1 (the port is not active)"],
    );
}

#[test]
fn a_port_that_has_link_local_addresses_only_is_a_loss() {
    let fabric = fabric();
    let _fault = with_fault(&fabric, "bare sout");
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
