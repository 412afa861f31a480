//! Calls of libibverbs that fail while connections are made and closed. A failure of the moment costs no
//! more than a rail or one connection, and one that lasts is named: by call, adapter, errno and cause.

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect, init, try_connect};
use mpib_tests::table::newest;
use mpib_tests::{SHORT, here, isolated, mpib};
use softverbs::{Call, fail, faults_struck};

/// The calls of connections, as the log names them.
const CALLS: [(Call, &str); 12] = [
    (Call::QueryGid, "ibv_query_gid"),
    (Call::CreateCq, "ibv_create_cq"),
    (Call::CreateSrq, "ibv_create_srq"),
    (Call::CreateQp, "ibv_create_qp"),
    (Call::ModifyInit, "ibv_modify_qp"),
    (Call::ModifyRtr, "ibv_modify_qp"),
    (Call::ModifyRts, "ibv_modify_qp"),
    (Call::RegMr, "ibv_reg_mr"),
    (Call::DeregMr, "ibv_dereg_mr"),
    (Call::DestroyCq, "ibv_destroy_cq"),
    (Call::DestroySrq, "ibv_destroy_srq"),
    (Call::DestroyQp, "ibv_destroy_qp"),
];

/// Errnos and what is said of them.
const ERRNOS: [(i32, &str, &str); 2] = [
    (libc::EIO, "EIO", "The adapter was removed or reset"),
    (libc::ETIMEDOUT, "ETIMEDOUT", "firmware does not answer"),
];

/// The objects of a removed adapter are released without a word.
const fn is_silent(call: Call, errno: i32) -> bool {
    errno == libc::EIO && matches!(call, Call::DeregMr | Call::DestroyCq | Call::DestroySrq | Call::DestroyQp)
}

/// Makes and closes a connection for each call and errno, while so many calls on soft1 fail, and one
/// without a failure after it. Passes the words that must be in the log, the log, and whether the
/// connection was made.
fn each(times: u32, judge: impl Fn(&[&str], &str, bool)) {
    let (table, ctx) = (newest(), init(newest()));
    connect(table, ctx, 0).close();
    for ((call, named), (errno, name, cause)) in
        CALLS.iter().flat_map(|call| ERRNOS.map(|errno| (*call, errno)))
    {
        let struck = faults_struck("soft1").unwrap();
        fail("soft1", call.fails(errno).times(times)).unwrap();
        let outcome = try_connect(table, ctx, 0);
        let made = outcome.is_ok();
        if let Ok(pair) = outcome {
            pair.message(5000, 5000, 1);
            pair.close();
        }
        fail("soft1", call.fails(0).times(0)).unwrap();
        assert!(faults_struck("soft1").unwrap() > struck, "{call:?} is not called");
        let log = take_warnings().join("\n");
        let words = if is_silent(call, errno) { &[][..] } else { &[named, "soft1", name, cause] };
        judge(words, &log, made);
        connect(table, ctx, 0).close();
        // Other threads may be late with lines on the port.
        take_warnings();
    }
    assert_eq!(table.finalize(ctx), Success);
}

fn all_named(words: &[&str], log: &str) -> bool {
    words.iter().all(|word| log.contains(word))
}

/// Changes of queue pairs are tried three times.
const RETRIES: [(&str, &str); 2] = [("NCCL_IB_MQP_RETRY_CNT", "2"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1")];

//= troubleshooting.md: a call of verbs that fails once costs no later connection
#[test]
fn a_call_that_fails_once_costs_no_more_than_a_connection() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &RETRIES].concat()), || {
        each(1, |words, log, made| assert!(made || all_named(words, log), "{words:?}: {log}"));
    });
}

//= troubleshooting.md: a refused call of verbs is explained by itself
#[test]
fn a_call_that_fails_for_good_is_named_with_adapter_errno_and_cause() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &RETRIES].concat()), || {
        each(u32::MAX, |words, log, _| assert!(all_named(words, log), "{words:?}: {log}"));
    });
}
