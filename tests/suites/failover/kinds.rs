//! Every fault at each work request of each kind of traffic.

use mpib_tests::table::TABLES;
use mpib_tests::{NO_PINGS, SHORT, has_srq, here, isolated, mpib, with_and_without_srq};
use softverbs::{Direction, Fault, Part, Then, heal, inject};

use super::points::{Ends, FAULTS, at_once, env, every_point, report, two_hosts};
use super::traffic::Traffic;

/// Runs every fault at the work requests of `traffic` over `n` rails.
fn on_rails(test: &str, n: usize, more: &[(&str, &str)], traffic: &Traffic) {
    let devices = two_hosts(n);
    let log = isolated(test, &env(&devices, more), || {
        every_point(&Ends::two_hosts(12, n), traffic, &FAULTS);
    });
    report(test, log);
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn tiny_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[8], &[100], &[1]], 4, 4));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn large_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[20_000], &[70_001]], 2, 2));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn groups() {
    on_rails(
        here!(),
        2,
        &[],
        &Traffic::of(&[&[1000, 5, 4096, 0, 7000, 128, 127, 1], &[0; 8], &[10, 2000, 0]], 2, 3),
    );
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn empty_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[0], &[0, 0], &[0]], 3, 4));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn optional_receives() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[8], &[1000], &[128], &[5000], &[1, 1]], 3, 4).optional());
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn separate_immediates() {
    let more = [("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "256")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[1000], &[200], &[5000]], 2, 3));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn completion_records() {
    // The immediate of two rails has no odd size of so many bytes.
    on_rails(here!(), 2, &[], &Traffic::of(&[&[(2 << 20) + 1], &[100]], 1, 2));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn stripes() {
    let more = [("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[5000], &[100], &[0], &[3000, 0, 100]], 2, 3));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn queue_pairs_in_turn() {
    let more = [("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "0")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[5000], &[100], &[0], &[3000, 0, 100]], 2, 3));
}

//= faults.md: 24: queues are full: every completion queue has room for all that may be posted
//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn full_pipelines() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[2000], &[40], &[300, 0, 5000]], 32, 32));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn flushes() {
    on_rails(here!(), 2, &[("MPIB_FLUSH", "1")], &Traffic::of(&[&[1000], &[8], &[0, 300]], 2, 3).flushed());
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn three_rails() {
    on_rails(here!(), 3, &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 3, 4));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn eight_rails() {
    on_rails(here!(), 8, &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 4));
}

/// Both ends on the same device of SOUT and SUP, whose faults concern both.
fn on_sout_and_sup(test: &str, share: &str, more: &[(&str, &str)], traffic: &Traffic) {
    let log = isolated(test, &mpib(share, &[&SHORT[..], more].concat()), || {
        every_point(&Ends::own(12, &["soft0", "soft1"]), traffic, &FAULTS);
    });
    report(test, log);
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn sout_and_sup_by_half() {
    on_sout_and_sup(here!(), "512", &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 3, 4));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn sup_alone() {
    on_sout_and_sup(here!(), "1024", &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 4));
}

//= mpib.md: vanilla, intra-island: SOUT stands in for SUP
#[test]
fn vanilla_with_sout_standing_in_for_sup() {
    let test = here!();
    let vanilla = [("MPIB_HCA_SOUT", "soft0"), ("MPIB_HCA_SUP", "soft1")];
    let log = isolated(test, &[&SHORT[..], &vanilla].concat(), || {
        let traffic = Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 4);
        every_point(&Ends::own(12, &["soft1"]), &traffic, &FAULTS);
    });
    report(test, log);
}

#[test]
fn sout_and_sup_with_an_agent_that_is_not_there() {
    let advanced = [("MPIB_MODE", "1"), ("MPIB_SUP_SHARE", "256")];
    on_sout_and_sup(here!(), "256", &advanced, &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 4));
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn adapters_without_shared_receive_queues() {
    let rail =
        |name: &str, i: u8, host: u8| format!("{name}{i}:addr=10.0.{i}.{host}/24,without=srq,max_qp_wr=32");
    let devices = [rail("r", 0, 1), rail("r", 1, 1), rail("s", 0, 2), rail("s", 1, 2)].join(";");
    let test = here!();
    let log = isolated(test, &env(&devices, &[]), || {
        let traffic = Traffic::of(&[&[2000], &[40], &[300, 0, 5000]], 12, 24);
        every_point(&Ends::two_hosts(12, 2), &traffic, &FAULTS);
    });
    report(test, log);
}

//= protocol.md: episode: a fault at any work request of each kind of traffic costs no byte
#[test]
fn every_table() {
    let (test, devices) = (here!(), two_hosts(2));
    let log = isolated(test, &env(&devices, &[]), || {
        let faults = [
            at_once(Fault::LostAck(Then::Silent)),
            at_once(Fault::Partial(Part::Percent(50), Then::Alive)),
            at_once(Fault::LinkDown),
        ];
        let traffic = Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 1, 2);
        let points = TABLES.iter().map(|table| {
            let ends = Ends::two_hosts(table.version(), 2);
            every_point(&ends, &traffic, &faults)
        });
        assert!(points.sum::<u64>() > 0);
    });
    report(test, log);
}

/// An entry that went inline over the first rail is not in the memory from which the second one
/// would send it, and the third sends inline again.
#[test]
fn adapters_with_and_without_inline_data() {
    let rail = |name: &str, i: u8, host: u8, more: &str| format!("{name}{i}:addr=10.0.{i}.{host}/24{more}");
    let host = |name, host| {
        [rail(name, 0, host, ""), rail(name, 1, host, ",inline=0"), rail(name, 2, host, "")].join(";")
    };
    let (test, devices) = (here!(), [host("r", 1), host("s", 2)].join(";"));
    isolated(test, &env(&devices, &[]), || {
        let ends = Ends::two_hosts(12, 3);
        for (lens, receives) in [(&[100][..], 8), (&[100, 0, 5000], 3)] {
            let traffic = Traffic::of(&[lens], receives, receives);
            let mut link = ends.link(&traffic);
            link.run_after_offers(|offered| {
                // A CTS entry that is lost, behind others that are not.
                let dies = [(receives - 2, "r0"), (receives - 1, "r1")];
                for (_, device) in dies.iter().filter(|(n, _)| *n == offered) {
                    inject(device, Fault::LinkDown).unwrap();
                }
            });
            link.run(|| {});
            link.close();
            for device in ["r0", "r1"] {
                heal(device).unwrap();
            }
        }
    });
}

/// More entries are to be written again than a send queue has room for.
#[test]
fn short_send_queues() {
    let rail = |name: &str, i: u8, host: u8| format!("{name}{i}:addr=10.0.{i}.{host}/24,max_qp_wr=16");
    let devices = [rail("r", 0, 1), rail("r", 1, 1), rail("s", 0, 2), rail("s", 1, 2)].join(";");
    let test = here!();
    isolated(test, &env(&devices, &[]), || {
        // Own receive queues are as short, and take no more receives.
        if !has_srq() {
            return;
        }
        let ends = Ends::two_hosts(12, 2);
        let traffic = Traffic::of(&[&[100]], 48, 48);
        let mut link = ends.link(&traffic);
        link.run_after_offers(|offered| {
            if offered == 47 {
                inject("r0", Fault::LinkDown).unwrap();
            }
        });
        link.run(|| {});
        link.close();
    });
}

/// A rail has 128 receives. Seven other rails lose 448 parts, and NCCL offers nothing more before they
/// have come. The adapters give up on all of them after a second.
//= receives.md: a part that is sent again takes a receive, and its arrival refills the queue
#[test]
fn more_lost_parts_than_receives() {
    let devices = two_hosts(8);
    with_and_without_srq(here!(), &env(&devices, &[("NCCL_IB_TIMEOUT", "18"), NO_PINGS]), || {
        let mut link = Ends::two_hosts(12, 8).link(&Traffic::of(&[&[1024]], 64, 64));
        link.run_after_offers(|offered| {
            for rail in (1..8).filter(|_| offered == 63) {
                inject(&format!("s{rail}"), Fault::Silence(Direction::Both)).unwrap();
            }
        });
        link.close();
    });
}

#[test]
fn inline_messages() {
    on_rails(here!(), 2, &[("MPIB_INLINE", "128")], &Traffic::of(&[&[8], &[100], &[1]], 4, 4));
}
