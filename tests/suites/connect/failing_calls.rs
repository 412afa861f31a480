//! Calls of libibverbs on one of two adapters that fail while connections are made and closed. They cost
//! no more than the rail of that adapter. What fails is named: by call, adapter, errno and cause.

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect, init, try_connect};
use mpib_tests::table::newest;
use mpib_tests::{SHORT, has_srq, here, isolated, mpib};
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
/// without a failure after it. Passes the words that belong in the log, and the log.
fn each(times: u32, judge: impl Fn(&[&str], &str)) {
    let (table, ctx) = (newest(), init(newest()));
    connect(table, ctx, 0).close();
    for ((call, named), (errno, name, cause)) in
        CALLS.iter().flat_map(|call| ERRNOS.map(|errno| (*call, errno)))
    {
        if matches!(call, Call::CreateSrq | Call::DestroySrq) && !has_srq() {
            continue;
        }
        let struck = faults_struck("soft1").unwrap();
        fail("soft1", call.fails(errno).times(times)).unwrap();
        let pair = connect(table, ctx, 0);
        // NCCL's memory is registered on all adapters.
        if call == Call::RegMr {
            fail("soft1", call.fails(0).times(0)).unwrap();
        }
        pair.message(5000, 5000, 1);
        pair.close();
        fail("soft1", call.fails(0).times(0)).unwrap();
        assert!(faults_struck("soft1").unwrap() > struck, "{call:?} is not called");
        let log = take_warnings().join("\n");
        let words = if is_silent(call, errno) { &[][..] } else { &[named, "soft1", name, cause] };
        judge(words, &log);
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
//= failover.md: fault: a call of verbs that makes a rail fails, at either end
#[test]
fn a_call_that_fails_once_costs_no_connection() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &RETRIES].concat()), || each(1, |_, _| ()));
}

//= troubleshooting.md: a refused call of verbs is explained by itself
//= failover.md: fault: a call of verbs that makes a rail fails, at either end
#[test]
fn a_call_that_fails_for_good_costs_its_rail_and_is_named_with_adapter_errno_and_cause() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &RETRIES].concat()), || {
        each(u32::MAX, |words, log| assert!(all_named(words, log), "{words:?}: {log}"));
    });
}

/// With MPIB_STRICT=1 no connection begins without a rail.
//= configuration.md: MPIB_STRICT
#[test]
fn with_strict_a_rail_that_cannot_be_made_is_an_error() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &[("MPIB_STRICT", "1")]].concat()), || {
        let (table, ctx) = (newest(), init(newest()));
        fail("soft1", Call::CreateQp.fails(libc::ENOMEM).times(u32::MAX)).unwrap();
        assert!(try_connect(table, ctx, 0).is_err());
        assert!(take_warnings().join("\n").contains("ibv_create_qp failed"));
    });
}
