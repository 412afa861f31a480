//! What a connection costs the adapters: the commands to open and to close it, which an adapter
//! executes one after the other for all processes of a host.

use mpib_tests::code::Success;
use mpib_tests::pair::{Pair, connect, connect_both, init, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::vdevices::{newest_device, rails};
use mpib_tests::{here, isolated};
use softverbs::{Call, Fault, commands_made, heal, inject, objects, open_contexts};

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

/// Some providers have no shared receive queues, and some report no removal.
const PLAIN: (&str, &str) = ("SOFTVERBS_QUIRKS", "none");

/// Commands to open and close one connection on each rail, at both ends together: a completion queue,
/// a memory region and a queue pair, which goes through three states, at each end, and a shared
/// receive queue at the receiver.
const ON_A_RAIL: u64 = 20;

fn made() -> u64 {
    COMMANDS.iter().map(|call| commands_made(*call)).sum()
}

/// Opens and closes a connection. Returns the commands.
fn commands() -> u64 {
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
    isolated(here!(), &[PLAIN, ("SOFTVERBS_DEVICES", &rails(1, 1))], || {
        assert_eq!(commands(), ON_A_RAIL);
    });
}

//= scale.md: commands to open and close a connection
//= mpib.md: one queue pair on each rail is the default
#[test]
fn a_connection_on_two_rails_costs_twice_as_many() {
    let devices = rails(2, 1);
    let split = [("MPIB_HCA_SOUT", "r0"), ("MPIB_HCA_SUP", "r1"), ("MPIB_SUP_SHARE", "512")];
    isolated(here!(), &[&[PLAIN, ("SOFTVERBS_DEVICES", devices.as_str())], &split[..]].concat(), || {
        assert_eq!(commands(), 2 * ON_A_RAIL);
    });
}

/// Returns how many queue pairs, completion queues and shared receive queues exist.
fn held() -> [usize; 3] {
    let held = objects().unwrap();
    [held.qps, held.cqs, held.srqs]
}

/// Listens on a device, and calls `accept` with nobody there. Returns the listener.
fn listen_idly(ctx: Ptr, device: i32, handle: &mut [u8; 128]) -> Ptr {
    let (rc, listen) = newest().listen(ctx, device, handle);
    assert_eq!(rc, Success);
    for _ in 0..10 {
        assert_eq!(newest().accept(listen), (Success, Ptr::default()));
    }
    listen
}

/// Connects to a listener, carries a message, and closes everything but the context.
fn use_listener(ctx: Ptr, device: i32, handle: &mut [u8; 128], listen: Ptr) {
    let (send, recv) = connect_both(newest(), ctx, device, handle, listen);
    let pair = Pair { table: newest(), send, recv };
    pair.message(100_000, 100_000, 1);
    pair.close();
    assert_eq!(newest().close_listen(listen), Success);
}

//= protocol.md: an idle accept creates the queue pairs
#[test]
fn an_idle_accept_creates_the_queue_pairs() {
    isolated(here!(), &[PLAIN, ("SOFTVERBS_DEVICES", &rails(1, 1))], || {
        let ctx = init(newest());
        connect(newest(), ctx, 0).close();
        let (before, mut handle) = (made(), [0; 128]);
        let listen = listen_idly(ctx, 0, &mut handle);
        assert_eq!(held(), [1, 1, 1]);
        use_listener(ctx, 0, &mut handle, listen);
        assert_eq!(made() - before, ON_A_RAIL + 4, "the buffers are registered, too");
        // A listener to which nobody comes.
        let listen = listen_idly(ctx, 0, &mut handle);
        assert_eq!(newest().close_listen(listen), Success);
        assert_eq!(held(), [0; 3]);
    });
}

//= protocol.md: an idle accept creates the queue pairs
#[test]
fn a_peer_with_other_rails_gets_other_queue_pairs() {
    let devices = rails(2, 1);
    isolated(here!(), &[PLAIN, ("SOFTVERBS_DEVICES", &devices)], || {
        let (ctx, both) = newest_device(2);
        let mut handle = [0; 128];
        let listen = listen_idly(ctx, both, &mut handle);
        assert_eq!(held()[0], 2);
        use_listener(ctx, 0, &mut handle, listen);
        assert_eq!(held(), [0; 3]);
    });
}

//= protocol.md: an idle accept creates the queue pairs
#[test]
fn queue_pairs_of_an_adapter_that_was_removed_are_not_used() {
    isolated(here!(), &[PLAIN, ("SOFTVERBS_DEVICES", &rails(1, 1))], || {
        let (ctx, mut handle) = (init(newest()), [0; 128]);
        let (contexts, before) = (open_contexts(), commands_made(Call::CreateQp));
        let listen = listen_idly(ctx, 0, &mut handle);
        inject("r0", Fault::DeviceFatal).unwrap();
        heal("r0").unwrap();
        until("the adapter to be opened again", || (open_contexts() > contexts).then_some(()));
        use_listener(ctx, 0, &mut handle, listen);
        assert_eq!(commands_made(Call::CreateQp) - before, 3, "the one that is lost, and one for each end");
        until("the dead context to be closed", || (open_contexts() == contexts).then_some(()));
    });
}
