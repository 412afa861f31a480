//! What adapters and peers may do with registered memory.

use mpib_tests::code::Success;
use mpib_tests::memory::{PAGE, Pages};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, receiver, sender};
use mpib_tests::pair::{HOST, init};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{PEERMEM, here, mpib, set, with_sys};

const CUDA: i32 = 2;

/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`
const WRITES: u32 = 1 | 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`
const READS: u32 = 1 << 2;
/// `IBV_ACCESS_RELAXED_ORDERING`
const RELAXED: u32 = 1 << 20;

/// Returns the access of the registrations of this address, which must be the same on both rails.
fn access(addr: usize) -> u32 {
    let found: Vec<u32> = softverbs::mr_access_at(addr).iter().map(|bits| bits & !RELAXED).collect();
    assert!(found.len() == 2 && found[0] == found[1], "{found:x?}");
    found[0]
}

/// Returns the access of memory that NCCL registers on a comm.
fn registered(comm: Ptr, kind: i32) -> u32 {
    let (table, memory) = (newest(), Pages::new(PAGE));
    let (rc, mr) = table.reg_mr(comm, memory.addr(), PAGE, kind);
    assert_eq!(rc, Success);
    let found = access(memory.addr());
    assert_eq!(table.dereg_mr(comm, mr), Success);
    found
}

//= memory.md: access: only memory that a flush may read permits reads
#[test]
fn only_what_a_flush_reads_permits_reads() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[]), || {
        let table = newest();
        for (flush, host, gpu) in [
            (None, WRITES, WRITES | READS),
            (Some("0"), WRITES, WRITES),
            (Some("1"), WRITES | READS, WRITES | READS),
        ] {
            set("MPIB_FLUSH", flush);
            let ctx = init(table);
            let ((to, from_liar), (from, to_liar)) = (receiver(ctx), sender(ctx));
            for comm in [to, from] {
                assert_eq!((registered(comm, HOST), registered(comm, CUDA)), (host, gpu), "{flush:?}");
            }
            // That of a receiver is read when the connection is set up: can its adapters flush?
            let control = |liar: &MisbehavingPeer| access(liar.memory().addr as usize);
            assert_eq!((control(&from_liar), control(&to_liar)), (gpu, WRITES), "{flush:?}: control memory");
            assert_eq!((table.close_recv(to), table.close_send(from)), (Success, Success));
        }
    });
}

/// Connections of one process with different settings: none gets a registration of another access.
//= memory.md: registrations of different access are separate
#[test]
fn registrations_of_different_access_are_separate() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[]), || {
        let (table, memory) = (newest(), Pages::new(PAGE));
        let comms = ["1", "0", "1"].map(|flush| {
            set("MPIB_FLUSH", Some(flush));
            receiver(init(table))
        });
        let mut held = Vec::new();
        for (comm, _) in &comms {
            let (rc, mr) = table.reg_mr(*comm, memory.addr(), PAGE, HOST);
            assert_eq!(rc, Success);
            held.push((*comm, mr));
        }
        let found = softverbs::mr_access_at(memory.addr());
        let reads = found.iter().filter(|bits| *bits & READS != 0).count();
        assert_eq!((reads, found.len() - reads), (2, 2), "two rails, and the third shares with the first");
        held.into_iter().for_each(|(comm, mr)| assert_eq!(table.dereg_mr(comm, mr), Success));
        comms.into_iter().for_each(|(comm, _)| assert_eq!(table.close_recv(comm), Success));
    });
}
