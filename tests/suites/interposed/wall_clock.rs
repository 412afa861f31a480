//! A wall clock that jumps by a day at each reading.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mpib_tests::code::RemoteError;
use mpib_tests::log::{assert_warned, take_warnings, warnings};
use mpib_tests::misbehaving_peer::MisbehavingPeer;
use mpib_tests::pair::{Pair, init};
use mpib_tests::peer::{Peer, from_peer};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};

/// Set by the test, in its own process.
static JUMPS: AtomicBool = AtomicBool::new(false);
static READINGS: AtomicU64 = AtomicU64::new(0);
const DAY: i64 = 86_400;

/// Takes the place of the C library's function in this program.
///
/// # Safety
/// `time` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> i32 {
    // SAFETY: the system call behind the function, with the caller's pointer.
    let rc = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as i32;
    if rc == 0 && clock == libc::CLOCK_REALTIME && JUMPS.load(Ordering::Relaxed) {
        let jumps = READINGS.fetch_add(1, Ordering::Relaxed) % 3;
        // SAFETY: writable, as the caller guarantees, and written above.
        unsafe { (*time).tv_sec += (jumps as i64 - 1) * DAY };
    }
    rc
}

//= faults.md: 46: the wall clock jumps: no limit of time is reached sooner or later
#[test]
fn no_limit_follows_the_wall_clock() {
    let env = mpib("512", &[("MPIB_CONNECT_TIMEOUT_MS", "20000"), ("MPIB_STALL_MS", "10000")]);
    isolated(here!(), &env, || {
        JUMPS.store(true, Ordering::Relaxed);
        let before = std::time::SystemTime::now();
        let jumped = (0..3).any(|_| {
            let now = std::time::SystemTime::now();
            now.duration_since(before).unwrap_or_else(|e| e.duration()).as_secs() > 80_000
        });
        assert!(jumped, "this program's clock is not the one that the plugin reads");
        let (table, ctx) = (newest(), init(newest()));
        for seed in 0..5 {
            let pair = Pair::new(table);
            pair.message(100_000, 100_000, seed);
            pair.close();
        }
        // Another process, of the same program.
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        assert_eq!(table.close_recv(comm), mpib_tests::code::Success);
        drop(peer);
        assert_eq!(warnings(), [""; 0]);
        // A limit is not missed either.
        mpib_tests::set("MPIB_CONNECT_TIMEOUT_MS", Some("300"));
        let ctx = init(table);
        assert_eq!(MisbehavingPeer::connect_to_silent(table, ctx), RemoteError);
        assert_warned(&["connect", "while waiting for WIRING (MPIB_CONNECT_TIMEOUT_MS)"]);
        take_warnings();
    });
}
