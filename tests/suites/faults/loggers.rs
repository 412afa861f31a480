//! Loggers that block or are unloaded, and the plugin's file when it is unloaded.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fs;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mpib_proto::ImmLayout;
use mpib_tests::code::Success;
use mpib_tests::log::{WARN, as_logger};
use mpib_tests::misbehaving_peer::receiver;
use mpib_tests::pair::{Buffer, Pair, connect, failure, init, until};
use mpib_tests::paths::artifact;
use mpib_tests::table::{Ptr, Table, newest, table};
use mpib_tests::{SHORT, here, isolated, mpib};
use nccl_net_abi::ncclDebugLogger_t;
use softverbs::{EventTarget, qp_attributes, raise_event};

const QP_FATAL: u32 = 1;
const PKEY_CHANGE: u32 = 12;
/// A failed queue ends its connection.
const ALONE: (&str, &str) = ("MPIB_FAILOVER", "0");

/// The text of the line that [`blocking_logger`] does not return from, and whether one is there.
static BLOCKS: Mutex<(&str, bool)> = Mutex::new(("", false));
static RELEASED: Condvar = Condvar::new();

/// As NCCL's logger while nobody reads the pipe that it writes to.
pub(crate) unsafe extern "C" fn blocking_logger(
    _: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    text: *const c_char,
) {
    // SAFETY: a C string of the plugin.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut blocks = BLOCKS.lock().unwrap();
    while !blocks.0.is_empty() && text.contains(blocks.0) {
        blocks.1 = true;
        blocks = RELEASED.wait(blocks).unwrap();
    }
}

/// From now on [`blocking_logger`] blocks at a line with `text`.
pub(crate) fn block_at(text: &'static str) {
    *BLOCKS.lock().unwrap() = (text, false);
}

/// Initialises with [`blocking_logger`], which blocks at a line with `text`.
fn init_blocking(table: &Table, text: &'static str) -> Ptr {
    block_at(text);
    init_with(table, as_logger(blocking_logger))
}

pub(crate) fn init_with(table: &Table, logger: ncclDebugLogger_t) -> Ptr {
    let mut ctx = null_mut();
    assert_eq!(table.raw().init(&raw mut ctx, 1, null_mut(), logger, None), Success);
    ctx
}

pub(crate) fn until_it_blocks() {
    until("the logger to block", || BLOCKS.lock().unwrap().1.then_some(()));
}

pub(crate) fn release() {
    BLOCKS.lock().unwrap().0 = "";
    RELEASED.notify_all();
}

//= faults.md: 85: NCCL's logger blocks: connections are made, move data, and fail, all the same
#[test]
fn a_logger_that_blocks_holds_up_no_event() {
    isolated(here!(), &mpib("512", &[ALONE]), || {
        let table = newest();
        let ctx = init_blocking(table, "IBV_EVENT_PKEY_CHANGE");
        let (pair, other) = (connect(table, ctx, 0), connect(table, ctx, 0));
        let to = pair.recv_buffer(100);
        let request = pair.irecv(&[(to.addr(), 100, 1, to.mr)]);
        raise_event(PKEY_CHANGE, EventTarget::Device("soft0")).unwrap();
        until_it_blocks();
        // The next event is handled, although the line of the first one is not written.
        let ours = qp_attributes();
        let of_pair = &ours[..ours.len() / 2];
        of_pair.iter().for_each(|qp| raise_event(QP_FATAL, EventTarget::Qp(qp.device, qp.qpn)).unwrap());
        assert_ne!(failure(table, request), Success);
        other.message(5000, 5000, 1);
        let third = connect(table, ctx, 0);
        third.message(5000, 5000, 2);
        release();
        to.dereg();
        [pair, other, third].into_iter().for_each(Pair::close);
        assert_eq!(table.finalize(ctx), Success);
    });
}

//= faults.md: 85
#[test]
fn a_logger_that_blocks_a_connect_blocks_no_other() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init_blocking(table, "the peer's listener cannot be reached yet").expose_provenance();
        let ctx = || std::ptr::with_exposed_provenance_mut::<c_void>(ctx);
        // A handle whose listener is closed.
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(ctx(), 0, &mut handle);
        assert_eq!((rc, table.close_listen(listen)), (Success, Success));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until("connect to fail", || {
                    Some(table.connect(ctx(), 0, &mut handle).0).filter(|rc| *rc != Success)
                })
            });
            until_it_blocks();
            let pair = connect(table, ctx(), 0);
            pair.message(5000, 5000, 1);
            pair.close();
            release();
        });
        assert_eq!(table.finalize(ctx()), Success);
    });
}

/// Warnings whose call of [`slow_logger`] has returned.
static WRITTEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// As NCCL's logger whose pipe is read slowly.
unsafe extern "C" fn slow_logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    text: *const c_char,
) {
    // SAFETY: a C string of the plugin.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    if level == WARN {
        std::thread::sleep(std::time::Duration::from_millis(100));
        WRITTEN.lock().unwrap().push(text);
    }
}

/// NCCL prints the last warning that it has with the error.
//= failover.md: the reason of an error is in the log before a call returns the error
#[test]
fn the_reason_that_housekeeping_has_found_is_written_before_a_call_returns_its_error() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &[("MPIB_PEER_TIMEOUT_MS", "1000")]].concat()), || {
        let (table, layout) = (newest(), ImmLayout::new(2).unwrap());
        let (comm, liar) = receiver(init_with(table, as_logger(slow_logger)));
        let to = Buffer::new(table, comm, vec![0; 4096]);
        let (rc, request) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
        assert_eq!(rc, Success);
        // Rail 0 has a part, too, which never comes.
        liar.signal(1, layout.encode(1, 0b11, layout.size(1000)));
        assert_ne!(failure(table, request), Success);
        let written = WRITTEN.lock().unwrap();
        assert!(written.iter().any(|line| line.contains("that has not come for 1.0 s")), "{written:?}");
        drop(written);
        to.dereg();
        drop(liar);
        assert_eq!(table.close_recv(comm), Success);
    });
}

/// A library with a logger that counts its lines.
fn library_with_a_logger(folder: &Path) -> (Library, CString) {
    let (source, object) = (folder.join("nccl.c"), folder.join("libnccl.so.2"));
    let code = "int lines;\n\
                void logger(int l, unsigned long f, const char *s, int n, const char *t, ...) { lines++; }\n";
    fs::write(&source, code).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&object, &source]);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    // SAFETY: the library has no constructors.
    let library = unsafe { Library::open(Some(&object), RTLD_NOW | RTLD_LOCAL) }.unwrap();
    (library, CString::new(object.to_str().unwrap()).unwrap())
}

/// Whether the dynamic linker has the file.
fn is_loaded(file: &CString) -> bool {
    // SAFETY: loads nothing; the handle is closed at once.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // SAFETY: as above.
    !library.is_null() && unsafe { libc::dlclose(library) } == 0
}

//= faults.md: 69: NCCL is unloaded: its logger is not called later, or stays loaded before v11
#[test]
fn a_logger_that_may_be_called_is_never_unloaded() {
    isolated(here!(), &mpib("512", &[]), || {
        let folder = tempfile::tempdir().unwrap();
        // Finalized, hence free to be unloaded: an event that nobody may log comes afterwards.
        for (version, stays) in [(12, false), (11, false), (10, true)] {
            let (library, file) = library_with_a_logger(folder.path());
            // SAFETY: the function and the number of the library above.
            let (logger, lines) = unsafe {
                let logger = library.get::<ncclDebugLogger_t>(b"logger\0").unwrap();
                let logger = std::mem::transmute::<*mut c_void, ncclDebugLogger_t>(logger.into_raw());
                (logger, library.get::<*mut c_int>(b"lines\0").unwrap().into_raw().cast::<c_int>())
            };
            let table = table(version);
            let ctx = init_with(table, logger);
            let pair = connect(table, ctx, 0);
            // SAFETY: the library is loaded.
            assert!(unsafe { *lines } > 0, "v{version}: the logger is used");
            if !stays {
                pair.close();
                assert_eq!(table.finalize(ctx), Success);
                drop(library);
                assert!(!is_loaded(&file), "v{version}");
                // Refused, and not logged.
                assert_ne!(table.properties(99).0, Success);
                continue;
            }
            drop(library);
            assert!(is_loaded(&file), "v{version}");
            // SAFETY: still loaded, as was seen.
            let count = || unsafe { lines.read_volatile() };
            let before = count();
            raise_event(PKEY_CHANGE, EventTarget::Device("soft0")).unwrap();
            until("a line of the event", || (count() > before).then_some(()));
            pair.close();
        }
    });
}

//= faults.md: 68: the plugin is unloaded with comms alive: its code stays and they move data
#[test]
fn a_plugin_that_is_unloaded_moves_data() {
    let plugin = artifact("libnccl-net-mpib.so");
    let libraries = plugin.parent().unwrap().join("softverbs");
    let env = mpib("512", &[("LD_LIBRARY_PATH", libraries.to_str().unwrap())]);
    isolated(here!(), &env, || {
        // SAFETY: this repository's plugin, whose constructors may run at any time.
        let library = unsafe { Library::open(Some(&plugin), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        // SAFETY: the symbol is the table of this version, of a plugin that keeps to the header.
        let table = unsafe {
            let symbol = library.get::<*mut c_void>(b"ncclNetPlugin_v12\0").unwrap().into_raw();
            Table::at(12, symbol)
        };
        let ctx = init(table);
        let pair = connect(table, ctx, 0);
        pair.message(100_000, 100_000, 1);
        // As often as it was opened: NCCL closes it with the last communicator.
        library.close().unwrap();
        pair.message(100_000, 100_000, 2);
        let again = connect(table, ctx, 0);
        again.message(5000, 5000, 3);
        [pair, again].into_iter().for_each(Pair::close);
        assert_eq!(table.finalize(ctx), Success);
    });
}
