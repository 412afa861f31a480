//! Devices that are missing or cannot be used.

use mpib_tests::code::{Code, InvalidUsage, Success, SystemError};
use mpib_tests::log::{take_warning, take_warnings};
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::table::{Ptr, TABLES, newest};
use mpib_tests::vdevices::{carried, rails};
use mpib_tests::{here, isolated};
use softverbs::{Call, fail, faults_struck};

/// Devices `a` and `b`; only `a` has a GID at index 5.
const UNEVEN: (&str, &str) =
    ("SOFTVERBS_DEVICES", "a:addr=10.0.0.1/24+10.0.1.1/24;b:addr=10.0.2.1/24;c:addr=10.0.3.1/24+10.0.4.1/24");

/// In this environment `init` of every table fails with `code` and one line that has all `parts`.
/// Gives what was said on stderr.
fn no_init(test: &str, env: &[(&str, &str)], code: Code, parts: &[&str]) -> Option<String> {
    isolated(test, env, || {
        for table in TABLES {
            let (rc, ctx) = table.init();
            let lines = take_warnings();
            assert_eq!((rc, ctx.is_null()), (code, true), "v{}: {lines:?}", table.version());
            let [line] = &lines[..] else { panic!("v{}: not one line but {lines:?}", table.version()) };
            assert!(line.starts_with("NET/MPIB : init: "), "{line}");
            assert!(parts.iter().all(|p| line.contains(p)), "{parts:?} in {line}");
            assert_ne!(table.devices().0, Success);
            take_warnings();
        }
    })
}

#[test]
fn no_device_is_an_error_that_says_where_to_look() {
    let list = "soft0:addr=10.0.0.1,rate=4GB";
    let parts =
        ["no RDMA device found", "does ibv_devices list one", "driver loaded", "/dev/infiniband", "ENODEV"];
    let said = no_init(here!(), &[("SOFTVERBS_DEVICES", list)], SystemError, &parts);
    // What softverbs itself says of its variable: once, with text and form.
    if let Some(said) = said {
        let lines: Vec<_> = said.lines().filter(|l| l.contains("SOFTVERBS_DEVICES")).collect();
        let [line] = lines[..] else { panic!("not one line: {said}") };
        for part in
            [list, "found \"10.0.0.1\"", "expected an address with its prefix length", "expected form"]
        {
            assert!(line.contains(part), "{part:?} in {line}");
        }
    }
}

/// With `MPIB_STRICT=1`, which reports the loss each time.
//= troubleshooting.md: a refused call of verbs is explained by itself
#[test]
fn each_call_of_init_that_fails_is_named_with_its_adapter() {
    let env = [("SOFTVERBS_DEVICES", "a:addr=10.0.0.1/24;b:addr=10.0.1.1/24"), ("MPIB_STRICT", "1")];
    isolated(here!(), &env, || {
        for (call, named) in [
            (Call::OpenDevice, "ibv_open_device"),
            (Call::QueryDevice, "ibv_query_device"),
            (Call::QueryPort, "ibv_query_port"),
            (Call::QueryGid, "ibv_query_gid"),
            (Call::AllocPd, "ibv_alloc_pd"),
        ] {
            for (errno, name, cause) in [
                (libc::EIO, "EIO", "The adapter was removed or reset"),
                (libc::ETIMEDOUT, "ETIMEDOUT", "firmware does not answer"),
            ] {
                fail("b", call.fails(errno).times(u32::MAX)).unwrap();
                let (rc, ctx) = newest().init();
                let log = take_warnings().join("\n");
                assert!(rc != Success && ctx.is_null(), "{call:?}: {log}");
                let words = [named, name, cause];
                assert!(words.iter().all(|word| log.contains(word)), "{words:?}: {log}");
                assert!(log.contains("b:1 (") || log.contains("; b"), "{log}");
                fail("b", call.fails(0).times(0)).unwrap();
            }
        }
        let ctx = init(newest());
        assert_eq!((take_warnings(), newest().devices().1), (Vec::new(), 2));
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= adapters.md: 64 adapters in one host
#[test]
fn each_of_sixty_four_adapters_is_a_device() {
    const MANY: usize = 64;
    isolated(here!(), &[("SOFTVERBS_DEVICES", &rails(MANY, 1))], || {
        let ctx = init(newest());
        assert_eq!(newest().devices(), (Success, MANY as i32));
        for dev in [0, MANY as i32 - 1] {
            let pair = connect(newest(), ctx, dev);
            pair.message(5000, 5000, 1);
            pair.close();
            assert!(carried(MANY)[dev as usize].bytes >= 5000);
        }
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

#[test]
fn no_device_is_the_same_error_where_rails_are_named() {
    let mut env = mpib_tests::TWO_RAILS.to_vec();
    env.push(("SOFTVERBS_DEVICES", ""));
    no_init(here!(), &env, SystemError, &["no RDMA device found", "does ibv_devices list one"]);
}

#[test]
fn an_unusable_fabric_is_an_error_of_the_first_call_that_needs_it() {
    let said = no_init(
        here!(),
        &[("SOFTVERBS_FABRIC", "a b")],
        SystemError,
        &["ibv_alloc_pd failed", "EINVAL", "soft0"],
    );
    if let Some(said) = said {
        assert!(said.contains("SOFTVERBS_FABRIC=\"a b\": expected 1 to 64 letters"), "{said}");
    }
}

#[test]
fn a_filter_that_leaves_nothing_is_an_error_that_lists_what_there_is() {
    isolated(here!(), &[], || {
        for filter in ["mlx5", "=soft", "^soft", "soft0:2", "^=soft0,soft1"] {
            mpib_tests::set("NCCL_IB_HCA", Some(filter));
            let said = format!("init: NCCL_IB_HCA=\"{filter}\": expected a filter that leaves a port");
            for table in TABLES {
                assert_eq!(table.init().0, InvalidUsage, "{filter}");
                let line = take_warning(&[&said]);
                assert!(line.contains("soft0:1, soft1:1"), "{line}");
            }
        }
        mpib_tests::set("NCCL_IB_HCA", Some("^=soft0"));
        let ctx = init(newest());
        assert_eq!((newest().devices(), newest().finalize(ctx)), ((Success, 1), Success));
    });
}

#[test]
fn ports_none_of_which_can_be_used_are_listed_with_their_reasons() {
    let reason = "NCCL_IB_GID_INDEX names GID index 77, which is empty; the port has 0 (";
    let (a, c) = (format!("a:1 ({reason}"), format!("c:1 ({reason}"));
    let parts = ["no usable RDMA port", "ibv_devinfo -v", &a, &c, "3 (10.0.0.1, RoCE v2)"];
    no_init(here!(), &[UNEVEN, ("NCCL_IB_GID_INDEX", "77")], SystemError, &parts);
}

/// Two rails that are not both there: one environment after another in one process, as none of them
/// opens anything.
//= mpib.md: rails that do not exist or repeat are named with those that exist
//= configuration.md: MPIB_HCA_SOUT
#[test]
fn rails_that_cannot_be_are_named_with_what_there_is() {
    isolated(here!(), &[], || {
        for (sout, sup, said) in [
            ("soft0", "mlx5_1", "MPIB_HCA_SUP=\"mlx5_1\": expected an HCA of this host, which has"),
            ("mlx5_0:1", "soft1", "MPIB_HCA_SOUT=\"mlx5_0:1\": expected an HCA of this host, which has"),
            ("soft", "soft1", "MPIB_HCA_SOUT=\"soft\": expected an HCA of this host, which has"),
            ("Soft0", "soft1", "MPIB_HCA_SOUT=\"Soft0\": expected an HCA of this host, which has"),
            ("soft0:2", "soft1", "MPIB_HCA_SOUT=\"soft0:2\": expected a port of that HCA; this host has"),
            ("soft0:1", "soft0:2", "MPIB_HCA_SUP=\"soft0:2\": expected a port of that HCA; this host has"),
            ("soft0", "soft1:255", "MPIB_HCA_SUP=\"soft1:255\": expected a port of that HCA; this host has"),
        ] {
            mpib_tests::set("MPIB_HCA_SOUT", Some(sout));
            mpib_tests::set("MPIB_HCA_SUP", Some(sup));
            for table in TABLES {
                assert_eq!(table.init().0, InvalidUsage, "{sout} {sup}");
                let line = take_warning(&[said]);
                assert!(line.contains("soft0:1, soft1:1"), "{line}");
            }
        }
        mpib_tests::set("MPIB_HCA_SOUT", Some("soft1:1"));
        mpib_tests::set("MPIB_HCA_SUP", Some("soft0"));
        let ctx = init(newest());
        assert_eq!(newest().properties(0).1.unwrap().name.as_deref(), Some("soft1+soft0"));
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= configuration.md: MPIB_HCA_SUP
#[test]
fn a_rail_that_cannot_be_used_fails_init() {
    let env = [UNEVEN, ("NCCL_IB_GID_INDEX", "5"), ("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")];
    let parts = ["MPIB_HCA_SUP=\"b\": expected a port that can be used", "a:1, b:1 (", "GID index 5", "c:1"];
    no_init(here!(), &env, InvalidUsage, &parts);
}

/// Without rails, a port with a fault costs that device only, and one line says so.
fn left_out(test: &str, filter: Option<&str>, warned: bool) {
    let mut env = vec![UNEVEN, ("NCCL_IB_GID_INDEX", "5")];
    env.extend(filter.map(|f| ("NCCL_IB_HCA", f)));
    isolated(test, &env, || {
        let ctx = init(newest());
        let lines = take_warnings();
        assert_eq!(lines.len(), usize::from(warned), "{lines:?}");
        for part in ["ports that cannot be used", "b:1 (NCCL_IB_GID_INDEX names GID index 5"] {
            assert!(lines.iter().all(|l| l.contains(part)), "{part}: {lines:?}");
        }
        let (_, n) = newest().devices();
        let names: Vec<_> = (0..n).map(|dev| newest().properties(dev).1.unwrap().name.unwrap()).collect();
        assert_eq!(names, ["a", "c"]);
        // Once a process is enough.
        let second = init(newest());
        assert_eq!(take_warnings(), Vec::<String>::new());
        let pair = connect(newest(), second, 1);
        pair.message(10_000, 10_000, 1);
        pair.close();
        assert_eq!((newest().finalize(ctx), newest().finalize(second)), (Success, Success));
    });
}

#[test]
fn a_faulty_port_is_skipped_with_one_warning() {
    left_out(here!(), None, true);
}

#[test]
fn a_faulty_port_that_was_requested_is_skipped_with_one_warning() {
    left_out(here!(), Some("=a,b,c"), true);
}

#[test]
fn a_faulty_port_that_no_setting_selects_is_ignored() {
    left_out(here!(), Some("^b"), false);
}

#[test]
fn a_faulty_port_fails_a_strict_init() {
    let env = [UNEVEN, ("NCCL_IB_GID_INDEX", "5"), ("MPIB_STRICT", "1")];
    no_init(
        here!(),
        &env,
        InvalidUsage,
        &["ports that cannot be used: b:1 (", "GID index 5", "(MPIB_STRICT=1)"],
    );
}

#[test]
fn a_strict_init_succeeds_if_nothing_is_lost() {
    isolated(here!(), &mpib_tests::mpib("512", &[("MPIB_STRICT", "1")]), || {
        let ctx = init(newest());
        let pair = connect(newest(), ctx, 0);
        pair.message(100_000, 100_000, 1);
        pair.close();
        assert_eq!(newest().finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// Beside adapter `a`, one that lacks each thing without which no connection can be.
const UNFIT: (&str, &str) =
    ("SOFTVERBS_DEVICES", "a:addr=10.0.0.1/24;b:addr=10.0.1.1/24,quirks=siw;c:addr=10.0.2.1/24,without=link");
const UNFIT_SAID: [&str; 2] = [
    "b:1 (its adapter speaks iWARP, and neither InfiniBand nor RoCE: irdma's E810 changes to RoCE by devlink (enable_roce), erdma by compat_mode=Y; siw has iWARP alone)",
    "c:1 (its link layer is 0: expected 1 (InfiniBand) or 2 (Ethernet, for RoCE))",
];

//= reach.md: adapters that cannot hold a connection are left out with the reason
#[test]
fn adapters_that_lack_what_connections_need_are_skipped_with_the_reason() {
    isolated(here!(), &[UNFIT], || {
        let ctx = init(newest());
        let lines = take_warnings();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.ends_with(&format!("ports that cannot be used: {}", UNFIT_SAID.join("; "))), "{line}");
        assert_eq!(
            (newest().devices(), newest().properties(0).1.unwrap().name),
            ((Success, 1), Some("a".into()))
        );
        let pair = connect(newest(), ctx, 0);
        pair.message(10_000, 10_000, 1);
        pair.close();
        assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
    });
}

#[test]
fn an_adapter_that_lacks_what_connections_need_fails_init_if_it_is_named() {
    let said = format!("ports that cannot be used: {}", UNFIT_SAID[1]);
    let strict = [UNFIT, ("MPIB_STRICT", "1"), ("NCCL_IB_HCA", "a,c")];
    no_init(here!(), &strict, InvalidUsage, &[&said, "(MPIB_STRICT=1)"]);
}

#[test]
fn a_rail_that_lacks_what_connections_need_fails_init() {
    let rails = [UNFIT, ("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")];
    let parts = [&["MPIB_HCA_SUP=\"b\": expected a port that can be used"][..], &UNFIT_SAID].concat();
    no_init(here!(), &rails, InvalidUsage, &parts);
}

//= reach.md: adapters that cannot hold a connection are left out with the reason
#[test]
fn a_port_of_an_unknown_mtu_costs_itself_and_no_connection() {
    let devices =
        ("SOFTVERBS_DEVICES", "a:addr=10.0.0.1/24;b:addr=10.0.1.1/24,without=mtu;c:addr=10.0.2.1/24");
    isolated(here!(), &[devices], || {
        let ctx = init(newest());
        let said = "ports that cannot be used: b:1 (its active MTU is number 0: expected 1 to 5 (256 to 4096 bytes))";
        let line = take_warning(&[]);
        assert!(line.ends_with(said), "{line}");
        two_devices_work(ctx);
    });
}

/// There are two devices, and each carries a message.
fn two_devices_work(ctx: Ptr) {
    assert_eq!(newest().devices(), (Success, 2));
    for dev in [0, 1] {
        let pair = connect(newest(), ctx, dev);
        pair.message(10_000, 10_000, 1);
        pair.close();
    }
    assert_eq!((take_warnings(), newest().finalize(ctx)), (Vec::new(), Success));
}

#[test]
fn a_gid_index_for_all_costs_no_infiniband_port() {
    let devices = ("SOFTVERBS_DEVICES", "i:link=ib;r:addr=10.0.0.1/24");
    isolated(here!(), &[devices, ("NCCL_IB_GID_INDEX", "3"), ("MPIB_ROUTE", "strict")], || {
        let ctx = init(newest());
        two_devices_work(ctx);
    });
}

/// A table of rdma_rxe has 1024 places. Its used entries come in one call, for all connections of a
/// second.
//= adapters.md: A6: a GID table of any length is read in one call, and not for each connection
#[test]
fn a_long_gid_table_is_not_read_entry_by_entry() {
    const PLACES: u64 = 1024;
    let devices = "a:addr=10.0.0.1/24,quirks=rxe;b:addr=10.0.1.1/24,quirks=rxe";
    isolated(here!(), &[("SOFTVERBS_DEVICES", devices)], || {
        let read = || ["a", "b"].map(|device| faults_struck(device).unwrap()).iter().sum::<u64>();
        for device in ["a", "b"] {
            fail(device, Call::QueryGid.fails(0).times(u32::MAX)).unwrap();
        }
        let table = newest();
        let ctx = init(table);
        let at_init = read();
        assert!(0 < at_init && at_init < PLACES / 4, "{at_init} calls at init");
        let pairs: Vec<_> = (0..8).map(|_| connect(table, ctx, 0)).collect();
        let connected = read() - at_init;
        assert!(connected < PLACES / 4, "{connected} calls for {} connections", pairs.len());
        pairs.iter().for_each(|pair| pair.message(5000, 5000, 1));
        pairs.into_iter().for_each(Pair::close);
        assert_eq!(table.finalize(ctx), Success);
    });
}
