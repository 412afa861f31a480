//! What a connection costs the adapters: the commands to open and to close it, which an adapter
//! executes one after the other for all processes of a host.

use mpib_tests::pair::{connect, init};
use mpib_tests::table::newest;
use mpib_tests::vdevices::rails;
use mpib_tests::{here, isolated};
use softverbs::{Call, commands_made};

/// The commands that make, change or destroy an object. Queries are none of them.
const COMMANDS: [Call; 13] = [
    Call::CreateCq,
    Call::DestroyCq,
    Call::CreateSrq,
    Call::DestroySrq,
    Call::CreateQp,
    Call::DestroyQp,
    Call::ModifyReset,
    Call::ModifyInit,
    Call::ModifyRtr,
    Call::ModifyRts,
    Call::ModifyErr,
    Call::RegMr,
    Call::DeregMr,
];

/// Commands to open and close one connection on each rail, at both ends together: a completion queue,
/// a memory region and a queue pair, which goes through three states, at each end, and a shared
/// receive queue at the receiver.
const ON_A_RAIL: u64 = 20;

/// Opens and closes a connection. Returns the commands.
fn commands() -> u64 {
    let made = || COMMANDS.iter().map(|call| commands_made(*call)).sum::<u64>();
    let table = newest();
    let ctx = init(table);
    // The first one of a process also tries what the adapter can do.
    connect(table, ctx, 0).close();
    let before = made();
    connect(table, ctx, 0).close();
    made() - before
}

//= scale.md: commands to open and close a connection
#[test]
fn a_connection_on_one_rail_costs_few_commands() {
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(1, 1))], || {
        assert_eq!(commands(), ON_A_RAIL);
    });
}

//= scale.md: commands to open and close a connection
//= mpib.md: one queue pair on each rail is the default
#[test]
fn a_connection_on_two_rails_costs_twice_as_many() {
    let devices = rails(2, 1);
    let split = [("MPIB_HCA_SOUT", "r0"), ("MPIB_HCA_SUP", "r1"), ("MPIB_SUP_SHARE", "512")];
    isolated(here!(), &[&[("SOFTVERBS_DEVICES", devices.as_str())], &split[..]].concat(), || {
        assert_eq!(commands(), 2 * ON_A_RAIL);
    });
}
