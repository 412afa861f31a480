//! What a signal proves, under random traffic of all ranks.

use mpib_tests::log::take_warnings;
use mpib_tests::one_sided::{OneSided, Plan};
use mpib_tests::rma::{CUDA, Group, HOST, rma_table};
use mpib_tests::rng::Rng;
use mpib_tests::{here, isolated, mpib};

use super::traffic::LATE;

fn a_signal_proves_its_put(test: &str, kind: i32) {
    isolated(test, &mpib("512", &[LATE]), || {
        let (_, rng) = Rng::from_env();
        let group = Group::new(rma_table(16), 3, 4);
        let mut traffic = OneSided::new(&group, Plan::new(kind, 4), rng);
        traffic.run(60);
        traffic.end();
        group.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn a_signal_proves_its_put_and_all_before_it() {
    a_signal_proves_its_put(here!(), HOST);
}

#[test]
fn a_signal_on_the_gpu_proves_its_put_and_all_before_it() {
    a_signal_proves_its_put(here!(), CUDA);
}
