//! Several inits in one process: of one table, of several tables, after a failed init, and after
//! changed settings.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::ptr::null_mut;
use std::sync::Mutex;

use mpib_tests::code::{InvalidUsage, Success, SystemError};
use mpib_tests::log::{LOG, as_logger, take_warning, take_warnings};
use mpib_tests::pair::{connect, init};
use mpib_tests::table::{TABLES, Table, newest, table};
use mpib_tests::{here, isolated, set};

/// One connection of each table at the same time, and messages in turn.
fn side_by_side(tables: &[&'static Table]) {
    let rigs: Vec<_> = tables.iter().map(|t| (init(t), *t)).collect();
    let pairs: Vec<_> = rigs.iter().map(|(ctx, t)| connect(t, *ctx, 0)).collect();
    for round in 0..3 {
        pairs.iter().for_each(|pair| pair.message(5000, 5000, round));
    }
    for ((ctx, table), pair) in rigs.into_iter().zip(pairs) {
        pair.close();
        assert_eq!(table.finalize(ctx), Success);
    }
}

#[test]
fn every_table_may_be_initialised_twice() {
    isolated(here!(), &mpib_tests::TWO_RAILS, || {
        for table in TABLES {
            side_by_side(&[*table, *table]);
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn two_tables_work_side_by_side_in_one_process() {
    isolated(here!(), &mpib_tests::TWO_RAILS, || {
        side_by_side(&[table(8), table(12)]);
        side_by_side(&[table(11), table(6), table(12), table(10)]);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn init_works_once_the_environment_is_repaired() {
    isolated(here!(), &mpib_tests::mpib("1025", &[]), || {
        for table in TABLES {
            // A new communicator, with the fault still present.
            for _ in 0..2 {
                let (rc, ctx) = table.init();
                assert_eq!((rc, ctx.is_null()), (InvalidUsage, true), "v{}", table.version());
                assert_eq!(take_warnings().len(), 1);
                // NCCL 2.28.3 to 2.29.3 call finalize after a failed init.
                assert_eq!(table.finalize(ctx), Success);
                assert_eq!(table.devices(), (InvalidUsage, 0));
                assert_eq!(take_warnings().len(), 1);
            }
        }
        set("MPIB_SUP_SHARE", Some("512"));
        set("NCCL_IB_GID_INDEX", Some("200"));
        assert_eq!(newest().init().0, InvalidUsage, "the next fault of the same environment");
        take_warning(&["NCCL_IB_GID_INDEX names GID index 200"]);
        set("NCCL_IB_GID_INDEX", None::<&str>);
        TABLES.iter().for_each(|table| side_by_side(&[*table]));
    });
}

#[test]
fn init_works_once_there_are_devices_that_can_be_used() {
    let env = [("NCCL_IB_GID_INDEX", "200")];
    isolated(here!(), &env, || {
        for table in [table(8), table(12)] {
            assert_eq!(table.init().0, SystemError);
            let said = take_warnings();
            assert!(said[0].contains("no usable RDMA port") && said[0].contains("soft1:1"), "{said:?}");
        }
        set("NCCL_IB_GID_INDEX", None::<&str>);
        side_by_side(&[table(8), table(12)]);
    });
}

static SECOND: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn second_logger(
    _: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's C string, alone behind "%s".
    SECOND.lock().unwrap().push(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
}

/// Two libnccl in one process, one of them unloaded later: lines go to the logger of the latest
/// init.
#[test]
fn lines_go_to_the_logger_of_the_latest_init() {
    isolated(here!(), &[], || {
        for version in [8, 10, 12] {
            let table = table(version);
            let first = init(table);
            take_warnings();
            let mut second = null_mut();
            let rc = table.raw().init(&raw mut second, 1, null_mut(), as_logger(second_logger), None);
            assert_eq!(rc, Success);
            // Of the adapters, and of the plugin.
            assert_ne!(table.properties(-1).0, Success);
            assert_ne!(table.properties(99).0, Success);
            let lines = std::mem::take(&mut *SECOND.lock().unwrap());
            assert_eq!(LOG.lock().unwrap().len(), 0, "the first logger is done with");
            assert!(lines.iter().any(|l| l.contains("-1")), "v{version}: {lines:?}");
            assert!(lines.iter().any(|l| l.contains("99")), "v{version}: {lines:?}");
            assert_eq!((table.finalize(second), table.finalize(first)), (Success, Success));
        }
    });
}

/// A host without a logger: lines are dropped, and the codes are the same.
#[test]
fn without_a_logger_failures_are_silent_and_the_same() {
    isolated(here!(), &[], || {
        for version in [8, 10, 12] {
            let (table, mut ctx) = (table(version), null_mut());
            set("MPIB_STRICT", Some("2"));
            let rc = table.raw().init(&raw mut ctx, 1, null_mut(), None, None);
            set("MPIB_STRICT", None::<&str>);
            // v10 finds the context that v8 has made, and reads nothing again.
            assert_eq!(rc.is_success(), version == 10, "v{version}");
            let rc = table.raw().init(&raw mut ctx, 1, null_mut(), None, None);
            assert_eq!(rc, Success);
            assert_ne!(table.properties(-1).0, Success);
            assert_ne!(table.properties(99).0, Success);
            let pair = connect(table, ctx, 0);
            pair.message(100, 100, 1);
            pair.close();
            assert_eq!(table.finalize(ctx), Success);
        }
        assert!(LOG.lock().unwrap().is_empty());
    });
}

/// Several threads make communicators of one process at the same time.
#[test]
fn inits_at_the_same_time_open_devices_once() {
    isolated(here!(), &mpib_tests::TWO_RAILS, || {
        std::thread::scope(|scope| {
            for table in TABLES.iter().chain(TABLES) {
                scope.spawn(|| {
                    for _ in 0..3 {
                        side_by_side(&[*table]);
                    }
                });
            }
        });
        let opened = LOG
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, line)| line.contains("protocol 10, table v") && line.contains("device: soft0+soft1"))
            .count();
        assert_eq!((opened, take_warnings().len()), (1, 0));
    });
}

/// Devices are opened once. If their settings differ at a later init, the change has no effect and
/// is reported.
#[test]
fn settings_of_devices_that_change_between_inits_are_reported_once() {
    isolated(here!(), &[("NCCL_IB_HCA", "soft0")], || {
        let ctx = init(newest());
        set("NCCL_IB_HCA", Some("soft1"));
        let second = init(newest());
        take_warning(&["NCCL_IB_HCA=soft1 (was soft0)"]);
        assert_eq!(newest().properties(0).1.unwrap().name.as_deref(), Some("soft0"));
        set("MPIB_STRICT", Some("1"));
        assert_eq!(newest().init().0, InvalidUsage);
        let said = take_warnings();
        assert!(said[0].contains("NCCL_IB_HCA=soft1 (was soft0)"), "{said:?}");
        assert!(said[0].contains("MPIB_STRICT=1"), "{said:?}");
        // The existing communicators still work.
        let pair = connect(newest(), second, 0);
        pair.message(1000, 1000, 1);
        pair.close();
        assert_eq!((newest().finalize(ctx), newest().finalize(second)), (Success, Success));
    });
}
