//! Attributes of queue pairs: traffic classes, partition, timeouts, and retries of a failed change.
//! softverbs reports what was set.

use mpib_tests::code::{Code, InvalidUsage, RemoteError, Success, SystemError};
use mpib_tests::log::{LOG, take_warnings, warnings};
use mpib_tests::pair::{Pair, both_fail, connect, connect_between, init, until};
use mpib_tests::table::{Table, newest, set_traffic_class, table};
use mpib_tests::{NO_WAIT, here, isolated, mpib};
use softverbs::{Call, QpAttributes};

const RTR: Call = Call::ModifyRtr;

/// Fails so many changes to RTR on each of the two rails.
fn fail_all(errno: i32, times: u32) {
    for device in ["soft0", "soft1"] {
        softverbs::fail(device, RTR.fails(errno).times(times)).unwrap();
    }
}
/// `IBV_ACCESS_REMOTE_WRITE`
const REMOTE_WRITE: u32 = 2;

/// Settings with both rails and without a traffic class or a partition for either rail.
fn rails<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let quick = [
        ("MPIB_SOUT_QP", "2"),
        ("MPIB_SUP_QP", "3"),
        ("NCCL_IB_TIMEOUT", "12"),
        ("MPIB_PROBE_TIMEOUT_MS", "2000"),
    ];
    // Of two values of a variable, the later one counts.
    mpib("512", &[&quick, more].concat())
}

/// What was set of the queue pairs of both ends of one connection, which works.
fn attributes(table: &'static Table) -> Vec<QpAttributes> {
    let ctx = init(table);
    let pair = connect(table, ctx, 0);
    pair.message(5000, 5000, 1);
    let set = softverbs::qp_attributes();
    assert_eq!(set.len(), 10, "{set:?}");
    pair.close();
    assert_eq!((table.finalize(ctx), take_warnings()), (Success, Vec::new()));
    set
}

fn classes(table: &'static Table) -> Vec<(u8, u8)> {
    let mut all: Vec<_> = attributes(table).iter().map(|a| (a.service_level, a.traffic_class)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

//= configuration.md: NCCL_IB_TC
//= configuration.md: NCCL_IB_SL
#[test]
fn classes_are_the_settings_then_the_communicators() {
    isolated(here!(), &rails(&[]), || {
        assert_eq!(classes(newest()), [(0, 0)]);
        for version in [11, 12] {
            for (class, expected) in
                [(5, (5, 5)), (106, (0, 106)), (0, (0, 0)), (-1, (0, 0)), (255, (0, 255)), (256, (0, 0))]
            {
                set_traffic_class(class);
                assert_eq!(classes(table(version)), [expected], "v{version} {class}");
            }
        }
        set_traffic_class(5);
        mpib_tests::set("NCCL_IB_TC", Some("104"));
        assert_eq!(classes(newest()), [(5, 104)]);
        mpib_tests::set("NCCL_IB_SL", Some("3"));
        assert_eq!(classes(newest()), [(3, 104)]);
        // Versions without a class, and the one that passes it to the connecting end only.
        mpib_tests::set("NCCL_IB_TC", None::<&str>);
        assert_eq!(classes(table(9)), [(3, 0)]);
        set_traffic_class(106);
        assert_eq!(classes(table(10)), [(3, 106)]);
    });
}

//= configuration.md: NCCL_IB_FIFO_TC
#[test]
fn cts_writes_have_a_class_of_their_own() {
    isolated(here!(), &rails(&[("NCCL_IB_TC", "104"), ("NCCL_IB_FIFO_TC", "184")]), || {
        let pair = Pair::new(newest());
        let counted = || {
            let of = |device: softverbs::DeviceCounters| {
                device.qps.into_iter().map(move |qp| ((device.name.clone(), qp.qpn), qp.counters))
            };
            softverbs::counters().into_iter().flat_map(of).collect::<Vec<_>>()
        };
        let probed = counted();
        (0..30).for_each(|i| pair.message(4096, 4096, i));
        let set = softverbs::qp_attributes();
        let (cts, rest): (Vec<QpAttributes>, Vec<QpAttributes>) =
            set.iter().copied().partition(|a| a.traffic_class == 184);
        assert!(rest.iter().all(|a| a.traffic_class == 104) && set.len() == 10, "{set:?}");
        // The receiver has one on each rail, because it sends no data.
        let mut devices: Vec<_> = cts.iter().map(|a| a.device).collect();
        devices.sort_unstable();
        assert_eq!(devices, ["soft0", "soft1"]);
        let mut writes = 0;
        for ((qp, counters), (_, before)) in counted().iter().zip(&probed) {
            let is_cts = cts.iter().any(|a| (a.device, a.qpn) == (&qp.0, qp.1));
            let more = counters.writes - before.writes;
            assert!(if is_cts { counters.writes_with_imm == 0 } else { more == 0 }, "{qp:?}: {counters:?}");
            writes += more;
        }
        assert_eq!(writes, 30, "the CTS writes");
        pair.close();
    });
}

#[test]
fn a_class_for_cts_writes_alone_leaves_the_others_at_the_communicators() {
    isolated(here!(), &rails(&[("NCCL_IB_FIFO_TC", "0")]), || {
        set_traffic_class(96);
        assert_eq!(classes(newest()), [(0, 0), (0, 96)]);
    });
}

/// SECURITY.md: the peer may write, and not read.
#[test]
fn queue_pairs_of_connections_permit_remote_writes_alone() {
    isolated(here!(), &rails(&[]), || {
        let access: Vec<u32> = attributes(newest()).iter().map(|a| a.access).collect();
        assert_eq!(access, [REMOTE_WRITE; 10]);
    });
}

//= configuration.md: NCCL_IB_TIMEOUT
//= configuration.md: NCCL_IB_RETRY_CNT
#[test]
fn timeouts_and_retries_reach_every_queue_pair() {
    isolated(here!(), &rails(&[("NCCL_IB_TIMEOUT", "17"), ("NCCL_IB_RETRY_CNT", "3")]), || {
        for a in attributes(newest()) {
            assert_eq!((a.timeout, a.retry_cnt, a.rnr_retry, a.pkey_index), (17, 3, 7, 0), "{a:?}");
        }
    });
}

/// soft0 has the partition at 2, soft1 at 1, as a limited and as a full member.
const PARTITIONS: (&str, &str) = (
    "SOFTVERBS_DEVICES",
    "soft0:addr=10.1.0.1/24,pkey=0xffff+0x8001+0x0007+0x8007;soft1:addr=10.2.0.1/24,pkey=0x7fff+0x8007",
);

fn pkey_indices() -> Vec<(&'static str, u16)> {
    let mut all: Vec<_> = attributes(newest()).iter().map(|a| (a.device, a.pkey_index)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

//= configuration.md: NCCL_IB_PKEY_VALUE
#[test]
fn a_partition_is_found_by_its_number_wherever_it_stands() {
    isolated(here!(), &rails(&[PARTITIONS]), || {
        for (value, index, places) in [
            ("-1", "0", [0, 0]),
            ("-1", "1", [1, 1]),
            ("0x8007", "0", [2, 1]),
            // The P_Key's value has precedence over its index.
            ("7", "1", [2, 1]),
            ("0xffff", "1", [0, 0]),
        ] {
            mpib_tests::set("NCCL_IB_PKEY_VALUE", Some(value));
            mpib_tests::set("NCCL_IB_PKEY", Some(index));
            assert_eq!(pkey_indices(), [("soft0", places[0]), ("soft1", places[1])], "{value} {index}");
        }
    });
}

/// Checks that connect and accept fail. Returns the code of connect and the warnings of both ends.
fn refused() -> (Code, Vec<String>) {
    let ctx = init(newest());
    let mut handle = [0; 128];
    let (rc, listen) = newest().listen(ctx, 0, &mut handle);
    assert_eq!(rc, Success);
    let [code, _] = both_fail(newest(), ctx, &mut handle, listen);
    for call in ["connect: ", "accept: "] {
        assert!(warnings().iter().any(|line| line.contains(call)), "{call}");
    }
    assert_eq!(newest().close_listen(listen), Success);
    (code, take_warnings())
}

/// Lines of the log about a retry.
fn tries() -> Vec<String> {
    LOG.lock()
        .unwrap()
        .iter()
        .map(|(_, text)| text.clone())
        .filter(|t| t.contains("ibv_modify_qp failed"))
        .collect()
}

//= faults.md: 60: a neighbour is not resolved in time: the queue pair is connected again
//= configuration.md: NCCL_IB_MQP_RETRY_CNT
#[test]
fn a_queue_pair_that_times_out_is_retried() {
    let env = rails(&[("NCCL_IB_MQP_RETRY_CNT", "5"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1")]);
    isolated(here!(), &env, || {
        softverbs::fail("soft0", RTR.fails(libc::ETIMEDOUT).times(5)).unwrap();
        let pair = Pair::new(newest());
        pair.message(5000, 5000, 1);
        let tries = tries();
        assert_eq!(tries.len(), 5, "{tries:?}");
        for (n, line) in tries.iter().enumerate() {
            let said = format!("try {} of 5 follows in {}ms: to RTR, soft0 port 1", n + 1, n + 1);
            assert!(line.contains("timed out") && line.contains(&said), "{line}");
        }
        pair.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
        // One failure more than there are retries.
        softverbs::fail("soft0", RTR.fails(libc::ETIMEDOUT).times(6)).unwrap();
        mpib_tests::set("MPIB_STRICT", Some("1"));
        let (_, lines) = refused();
        assert!(lines.iter().any(|l| l.contains("failed 6 times") && l.contains("ETIMEDOUT")), "{lines:?}");
    });
}

#[test]
fn a_wait_that_is_too_long_for_the_handshake_is_none() {
    let env = rails(&[
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1000"),
        ("MPIB_CONNECT_TIMEOUT_MS", "900"),
        ("MPIB_STRICT", "1"),
    ]);
    isolated(here!(), &env, || {
        fail_all(libc::ETIMEDOUT, u32::MAX);
        let (code, lines) = refused();
        assert!(tries().is_empty() && [SystemError, InvalidUsage, RemoteError].contains(&code), "{lines:?}");
        fail_all(0, 0);
    });
}

//= troubleshooting.md: a refused call of verbs is explained by itself
#[test]
fn a_gid_without_an_interface_is_named_and_no_cable() {
    isolated(here!(), &rails(&[("MPIB_STRICT", "1")]), || {
        for (errno, said) in
            [(libc::ENODEV, "in another network namespace"), (libc::ENODATA, "entry is empty")]
        {
            fail_all(errno, u32::MAX);
            let (_, lines) = refused();
            let text = lines.join("\n");
            assert!(text.contains(said), "{text}");
            // What is advised where a probe is not answered.
            assert!(!text.contains("PFC/ECN") && !text.contains("driver reloaded"), "{text}");
        }
        fail_all(0, 0);
    });
}

//= configuration.md: NCCL_IB_MQP_RETRY_ALL
#[test]
fn a_queue_pair_that_fails_otherwise_is_retried_if_configured() {
    let env = rails(&[("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "0"), ("MPIB_STRICT", "1")]);
    isolated(here!(), &env, || {
        softverbs::fail("soft0", RTR.fails(libc::ENOMEM)).unwrap();
        let (_, lines) = refused();
        assert!(lines.iter().any(|l| l.contains("ENOMEM")) && tries().is_empty(), "{lines:?}");
        mpib_tests::set("NCCL_IB_MQP_RETRY_ALL", Some("1"));
        softverbs::fail("soft0", RTR.fails(libc::ENOMEM).times(3)).unwrap();
        let pair = Pair::new(newest());
        pair.message(5000, 5000, 1);
        assert_eq!(tries().len(), 3);
        pair.close();
    });
}

/// Options of soft0, of soft1, and the setting.
const ECE: [(&str, &str, &str); 5] = [
    (",ece=0x7", ",ece=0x15", "1"),
    (",ece=0x7", ",ece=0x8", "1"),
    ("", ",ece=0x7", "1"),
    (",ece=0x7", "", "1"),
    (",ece=0x7", ",ece=0x7", "0"),
];

/// softverbs takes options before RTR only, and returns those that remain.
//= configuration.md: NCCL_IB_ECE_ENABLE
#[test]
fn options_that_both_ends_have_hold_on_every_queue_pair() {
    for (case, (first, second, enable)) in ECE.iter().enumerate() {
        let devices = format!("soft0:addr=10.1.0.1/24{first};soft1:addr=10.1.0.2/24{second}");
        let case = case.to_string();
        let env =
            [("SOFTVERBS_DEVICES", devices.as_str()), ("NCCL_IB_ECE_ENABLE", enable), ("TEST_CASE", &case)];
        isolated(here!(), &env, || {
            let (.., enable) = ECE[std::env::var("TEST_CASE").unwrap().parse::<usize>().unwrap()];
            // The adapters of some providers have no options.
            let [here, there] = [0, 1].map(|i| softverbs::devices()[i].ece);
            let expected = here.zip(there).map(|(here, there)| here & there).filter(|_| enable == "1");
            for (from, to) in [(1, 0), (0, 1)] {
                let pair = connect_to(from, to);
                pair.message(5000, 5000, 1);
                let set = softverbs::qp_attributes();
                assert!(set.len() == 2 && set[0].device != set[1].device, "{set:?}");
                assert!(set.iter().all(|a| a.ece == expected), "{expected:?}: {set:?}");
                pair.close();
            }
            let lines: Vec<String> = LOG.lock().unwrap().iter().map(|(_, text)| text.clone()).collect();
            let reported = lines.iter().filter(|l| l.contains("without ECE")).count();
            let missing = enable == "1" && (here.is_none() || there.is_none());
            assert_eq!(reported, usize::from(missing), "once: {lines:?}");
            assert_eq!(take_warnings(), Vec::<String>::new());
        });
        if mpib_tests::is_child(here!()) {
            return;
        }
    }
}

/// One device connects to another.
fn connect_to(from: i32, to: i32) -> Pair {
    connect_between(newest(), init(newest()), from, to)
}

/// Two ports are in one subnet but on different wires: no packet arrives. The error names the limit
/// that was reached first.
//= configuration.md: MPIB_PROBE_TIMEOUT_MS
#[test]
fn a_probe_waits_as_long_as_the_settings_say() {
    let devices = "soft0:addr=10.1.0.1/24,wire=1;soft1:addr=10.1.0.2/24,wire=2";
    let patient = [("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "1"), ("MPIB_PROBE_TIMEOUT_MS", "20000")];
    // Four seconds of retries, less than the default of the probe's limit.
    let hasty = [("NCCL_IB_TIMEOUT", "17"), ("NCCL_IB_RETRY_CNT", "7"), ("MPIB_PROBE_TIMEOUT_MS", "100")];
    for (case, (limits, said)) in
        [(patient, "did not acknowledge"), (hasty, "did not complete in time (MPIB_PROBE_TIMEOUT_MS)")]
            .iter()
            .enumerate()
    {
        let case = case.to_string();
        if mpib_tests::is_child(here!()) && std::env::var("TEST_CASE").unwrap() != case {
            continue;
        }
        let more = [("SOFTVERBS_DEVICES", devices), ("MPIB_ROUTE", "strict"), NO_WAIT, ("TEST_CASE", &case)];
        let env = [&limits[..], &more];
        isolated(here!(), &env.concat(), || {
            let (table, ctx) = (newest(), init(newest()));
            let mut handle = [0; 128];
            let (_, listen) = table.listen(ctx, 1, &mut handle);
            let rc = until("connect to fail", || {
                let _ = table.accept(listen);
                let (rc, comm) = table.connect(ctx, 0, &mut handle);
                assert!(comm.is_null(), "connected without a wire");
                (rc != Success).then_some(rc)
            });
            let lines = take_warnings();
            assert!(
                rc != Success && lines.iter().any(|l| l.contains("connect: ") && l.contains(said)),
                "{lines:?}"
            );
            assert_eq!((table.close_listen(listen), table.finalize(ctx)), (Success, Success));
        });
    }
}
