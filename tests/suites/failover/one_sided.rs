//! Rails that die and return under puts, signals and gets of several ranks.

use mpib_tests::log::warnings;
use mpib_tests::one_sided::{OneSided, Plan};
use mpib_tests::rma::{CUDA, Group, HOST, rma_table};
use mpib_tests::rng::Rng;
use mpib_tests::{SHORT, here, isolated, mpib};
use softverbs::{Fault, faults_struck, heal, inject_at, set_link};

use super::points::FAULTS;

const RANKS: usize = 2;
/// GPU memory, where data lands after its completion.
const LATE: &str = "soft0:addr=10.1.0.1/16,dmabuf=on,posted=1ms;soft1:addr=10.2.0.1/16,dmabuf=on,posted=1ms";

/// Runs `body` on two rails.
fn on_two_rails(test: &str, body: impl FnOnce(&mut Rng)) {
    isolated(test, &mpib("512", &[SHORT[0], SHORT[1], ("SOFTVERBS_DEVICES", LATE)]), || {
        body(&mut Rng::from_env().1);
        let failed: Vec<String> = warnings().into_iter().filter(|line| line.contains("one-sided")).collect();
        assert_eq!(failed, Vec::<String>::new());
    });
}

/// Runs `body` with traffic of some ranks, in memory of this kind.
fn under_traffic(kind: i32, rng: &mut Rng, body: impl FnOnce(&mut OneSided<'_>)) {
    let group = Group::new(rma_table(16), RANKS, 2);
    let mut traffic = OneSided::new(&group, Plan::new(kind, 2), Rng::new(rng.draw()));
    traffic.run(10);
    body(&mut traffic);
    traffic.end();
    group.close();
}

/// Each fault at a work request of each rail in turn. Each put arrives once, and each signal behind
/// its put.
fn rails_die(test: &str, kind: i32) {
    on_two_rails(test, |rng| {
        // A receiver without its completion queue does not know what has arrived.
        for fault in FAULTS.iter().filter(|kind| !matches!(kind.fault, Fault::CqError(_))) {
            for device in ["soft0", "soft1"] {
                let at = 1 + rng.below(40) as u64;
                eprintln!("{:?} at {at} on {device}", fault.fault);
                under_traffic(kind, rng, |traffic| {
                    let before = faults_struck(device).unwrap();
                    inject_at(device, fault.fault, at, fault.only()).unwrap();
                    let mut puts = 10;
                    while faults_struck(device).unwrap() == before {
                        puts += 3;
                        traffic.run(puts);
                    }
                    traffic.run(puts + 15);
                });
                heal(device).unwrap();
                set_link(device, true).unwrap();
            }
        }
    });
}

#[test]
fn rails_die_under_puts_and_gets_of_host_memory() {
    rails_die(here!(), HOST);
}

#[test]
fn rails_die_under_puts_and_gets_of_gpu_memory() {
    rails_die(here!(), CUDA);
}

/// All rails at once, for longer than the queue pairs try.
#[test]
fn all_rails_go_down_and_come_back() {
    on_two_rails(here!(), |rng| {
        under_traffic(CUDA, rng, |traffic| {
            for round in 1..=3 {
                for up in [false, true] {
                    for device in ["soft0", "soft1"] {
                        set_link(device, up).unwrap();
                    }
                    if !up {
                        (0..2000).for_each(|_| traffic.step(10 + 20 * round));
                    }
                }
                traffic.run(10 + 20 * round);
            }
        });
    });
}
