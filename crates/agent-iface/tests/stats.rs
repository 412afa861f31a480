//! The statistics page as other processes see it. A process has one page, therefore the tests use
//! it in turn.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nccl_net_mpib_agent_iface::stats::{
    Awaited, BadPage, Carried, Connection, ConnectionEntry, Data, Direction, Islands, Lack, MEMFD_NAME,
    Measured, NewConnection, NewOperation, NoPage, OperationPlace, Port, PortState, PortTotals, Rail, Reason,
    STATS_COMMUNICATORS, STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_HEADER_SIZE, STATS_MAGIC, STATS_OPERATIONS,
    STATS_PORTS, STATS_SIZE, STATS_SIZE_WITHOUT_OPERATIONS, STATS_VERSION, Sender, State, StatsPage,
    StatsWriter, Summary, Traffic, UnlistedEntry, Wait, monotonic, pages_of,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Returns the page of this process, for one test at a time.
fn writer() -> (MutexGuard<'static, ()>, &'static StatsWriter) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, StatsWriter::for_this_process("1.2.3").unwrap())
}

const NAMES: [(u8, &str); 2] = [(0, "mlx5_0:1"), (1, "mlx5_1:2")];

fn opening(peer: &str) -> NewConnection<'_> {
    let (direction, islands, data, traffic) = (Direction::Send, Islands::Two, Data::Split, Traffic::Windows);
    NewConnection { direction, islands, data, traffic, peer, rails: &NAMES, substituted: false }
}

fn page() -> StatsPage {
    let mut pages = pages_of(std::process::id()).unwrap();
    assert_eq!(pages.len(), 1);
    pages.remove(0)
}

fn connections() -> Vec<Connection> {
    page().connections()
}

/// Opens the file of the page as a program in another language does.
fn file() -> File {
    let link = |fd: &fs::DirEntry| fs::read_link(fd.path()).unwrap_or_default();
    let wanted = format!("/memfd:{MEMFD_NAME} (deleted)");
    let fds = fs::read_dir(format!("/proc/{}/fd", std::process::id())).unwrap().map(Result::unwrap);
    let mut found: Vec<_> = fds.filter(|fd| link(fd).to_str() == Some(wanted.as_str())).collect();
    assert_eq!(found.len(), 1);
    File::open(found.remove(0).path()).unwrap()
}

#[test]
fn every_number_stands_where_the_layout_has_it() {
    let (_turn, writer) = writer();
    let taken = writer.add(&opening("host-b, pid 7"));
    let entry = taken.entry();
    for _ in 0..3 {
        entry.request();
    }
    entry.done(2, 5000);
    entry.share(341);
    (0..4).for_each(|_| entry.wait_for_peer());
    (0..5).for_each(|_| entry.wait_for_queue());
    entry.rail(0).posted(7, 6, 3000);
    entry.rail(1).posted(9, 8, 2000);
    entry.rail(1).completed(4);
    entry.rail(1).arrived();
    entry.rail(1).error();
    let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    for (code, what) in (1..).zip(Awaited::ALL) {
        entry.waits(Some((*what, since)));
        let index = connections()[0].index;
        let mut word = [0; 8];
        file().read_exact_at(&mut word, (512 + 64 * 768 + index * 2560 + 40) as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 1_700_000_000_123 * 256 + code);
        assert_eq!(connections()[0].wait, Some(Wait { what: *what, since_ms: 1_700_000_000_123 }));
    }
    entry.failure("the first reason");
    entry.failure("another");

    writer.name_job("4711");
    let file = file();
    let mut bytes = vec![0; STATS_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 512 + 64 * 768 + 1024 * 2560 + 16 * 131 * 256);
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let text = |at: usize| CStr::from_bytes_until_nul(&bytes[at..]).unwrap().to_str().unwrap();
    assert_eq!([0, 4, 8, 12, 16, 20].map(word), [0x4D50_4953, 5, 512, 2560, 1024, 8]);
    assert_eq!([72, 76].map(word), [64, 768]);
    assert_eq!((long(24), word(32)), (STATS_SIZE as u64, std::process::id()));
    assert!(long(40) > 1_600_000_000_000_000_000 && long(48) >= 1);
    assert_eq!((word(56), word(60), text(96), text(216)), (1, 0, "1.2.3", "4711"));
    let index = connections()[0].index;
    assert!(word(64) as usize > index);
    let at = 512 + 64 * 768 + index * 2560;
    assert_eq!((long(at) % 2, word(at + 8), &bytes[at + 12..at + 16]), (1, 2, &[1, 2, 2, 2][..]));
    assert!(long(at + 16) >= long(40) && long(at + 24) >= long(at + 16));
    assert_eq!((text(at + 64), text(at + 2304)), ("host-b, pid 7", "the first reason"));
    assert_eq!([192, 200, 208, 216, 224, 232, 240].map(|o| long(at + o)), [3, 1, 2, 5000, 4, 5, 2]);
    assert_eq!((long(at + 40), word(at + 248)), (0, 341), "a failed connection waits for nothing");
    let rail = |i: usize| [0, 8, 16, 24, 32].map(|o| long(at + 256 + 256 * i + o));
    assert_eq!((rail(0), rail(1)), ([3000, 6, 7, 0, 0], [2000, 9, 9, 4, 1]));
    for (i, (role, name)) in NAMES.iter().enumerate() {
        assert_eq!((word(at + 256 + 256 * i + 40), text(at + 256 + 256 * i + 64)), ((*role).into(), *name));
        let port = word(at + 256 + 256 * i + 44) as usize;
        assert!(port > 0 && port <= word(80) as usize);
        assert_eq!(text(512 + 768 * (port - 1)), *name);
    }

    // The reader returns the same values.
    let seen = &connections()[0];
    assert_eq!((seen.state, seen.direction), (Some(State::Failed), Some(Direction::Send)));
    assert_eq!((seen.islands, seen.data, seen.share), (Some(Islands::Two), Some(Data::Split), Some(341)));
    assert_eq!(seen.traffic, Some(Traffic::Windows));
    assert_eq!((seen.totals.requests, seen.totals.done, seen.in_flight()), (3, 1, 2));
    assert_eq!(
        (seen.totals.messages, seen.totals.bytes, seen.totals.waits_peer, seen.totals.waits_queue),
        (2, 5000, 4, 5)
    );
    assert_eq!((seen.totals.errors, seen.reason.as_deref()), (2, Some("the first reason")));
    assert_eq!(seen.rails.iter().map(|r| (r.posted, r.in_flight())).collect::<Vec<_>>(), [(7, 7), (9, 5)]);
    assert_eq!((seen.rails[1].bytes, seen.rails[1].parts, seen.rails[1].errors), (Some(2000), 9, 1));
}

#[test]
fn an_entry_is_used_again_from_zero_with_another_generation() {
    let (_turn, writer) = writer();
    let count = |taken: &ConnectionEntry| {
        let entry = taken.entry();
        entry.request();
        entry.done(1, 10);
        entry.share(7);
        entry.rail(0).posted(1, 1, 10);
        entry.waits(Some((Awaited::Room, SystemTime::now())));
        entry.failure("ended");
    };
    let taken = writer.add(&opening("the first"));
    count(&taken);
    let first = connections().remove(0);
    drop(taken);
    assert_eq!(connections(), [], "a closed connection is not shown");
    let receives =
        NewConnection { direction: Direction::Receive, rails: &NAMES[1..], ..opening("the second") };
    let _taken = writer.add(&receives);
    let second = connections().remove(0);
    assert_eq!((first.index, first.generation + 2), (second.index, second.generation));
    assert_eq!((second.peer.as_str(), second.state), ("the second", Some(State::Open)));
    assert_eq!(
        (second.totals.requests, second.totals.done, second.totals.messages, second.totals.bytes),
        (0, 0, 0, 0)
    );
    assert_eq!((second.totals.errors, second.share, second.reason, second.wait), (0, None, None, None));
    let [rail] = &second.rails[..] else { panic!("{:?}", second.rails) };
    assert_eq!((rail.name.as_str(), rail.role, rail.posted, rail.bytes), ("mlx5_1:2", 1, 0, None));
}

#[test]
fn connections_beyond_the_last_entry_are_counted_and_harmless() {
    let (_turn, writer) = writer();
    let before = page().summary();
    let mut all: Vec<ConnectionEntry> =
        (0..STATS_ENTRIES + 3).map(|_| writer.add(&opening("many"))).collect();
    assert!(all[STATS_ENTRIES - 1].is_listed() && !all[STATS_ENTRIES].is_listed());
    let now = || {
        let Summary { opened, open, hidden, .. } = page().summary();
        (opened - before.opened, open, hidden, connections().len())
    };
    let n = STATS_ENTRIES as u32;
    assert_eq!(now(), (u64::from(n) + 3, n + 3, 3, STATS_ENTRIES));
    // One that is shown makes room for the next one, not for those that were not.
    drop(all.swap_remove(5));
    assert_eq!(now(), (u64::from(n) + 3, n + 2, 3, STATS_ENTRIES - 1));
    all.push(writer.add(&opening("late")));
    assert_eq!(now(), (u64::from(n) + 4, n + 3, 3, STATS_ENTRIES));
    all.clear();
    assert_eq!(now(), (u64::from(n) + 4, 0, 0, 0));
}

/// Readers beside connections that come and go: what they see is of one connection, and counters
/// never go back.
#[test]
fn a_reader_never_sees_two_connections_as_one() {
    let (_turn, writer) = writer();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let taken = writer.add(&opening(&format!("peer {n}")));
                let entry = taken.entry();
                // All numbers of a connection follow from its first.
                for _ in 0..n % 5 {
                    entry.request();
                    entry.done(1, n as usize);
                }
            }
        });
        // The writer goes on until the reader has seen enough, or has found a fault.
        let _over = Over(&over);
        let (page, mut seen, mut last) = (page(), 0, (0, 0));
        while seen < 1_000 {
            for c in page.connections() {
                let n: u64 = c.peer.strip_prefix("peer ").unwrap().parse().unwrap();
                assert!(c.totals.done <= c.totals.requests && c.totals.requests <= n % 5, "{c:?}");
                assert_eq!(c.totals.bytes % n.max(1), 0, "{c:?}");
                assert!(c.totals.bytes / n.max(1) <= n % 5, "{c:?}");
                let now = (c.generation, c.totals.done);
                assert!(now >= last, "{now:?} after {last:?}");
                (last, seen) = (now, seen + 1);
            }
        }
    });
}

#[test]
fn a_forked_process_does_not_write_to_its_parents_page() {
    let (_turn, writer) = writer();
    let taken = writer.add(&opening("of the parent"));
    let entry = taken.entry();
    entry.request();
    let (read, write) = nix::unistd::pipe().unwrap();
    // SAFETY: the child allocates and reads files, which glibc allows after a fork of a threaded
    // process, and always ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let said = std::panic::catch_unwind(|| {
            (0..100).for_each(|_| entry.request());
            let none = matches!(pages_of(std::process::id()), Err(NoPage::None));
            let own = StatsWriter::for_this_process("child").unwrap();
            let mine = own.add(&opening("of the child"));
            mine.entry().request();
            let pages = pages_of(std::process::id()).unwrap();
            let seen = pages[0].connections();
            format!("{none} {} {} {} {}", pages.len(), seen.len(), seen[0].peer, seen[0].totals.requests)
        });
        let said = said.unwrap_or_else(|_| "it panicked".into());
        let _ = File::from(write).write_all(said.as_bytes());
        // SAFETY: ends the child without running destructors of the parent.
        unsafe { libc::_exit(0) };
    }
    drop(write);
    let said = std::io::read_to_string(File::from(read)).unwrap();
    let mut status = 0;
    // SAFETY: a child of ours, and a writable int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(said, "true 1 1 of the child 1");
    let here = connections();
    assert_eq!((here.len(), here[0].totals.requests, here[0].peer.as_str()), (1, 1, "of the parent"));
    assert_eq!(page().summary().plugin, "1.2.3");
}

/// Creates a memfd with these seals, which `write` fills.
fn sealed(name: &str, seals: SealFlag, write: impl FnOnce(&mut File)) -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags).unwrap());
    write(&mut file);
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

/// Creates a memfd with these seals and words.
fn forged(seals: SealFlag, size: usize, words: &[(usize, u32)]) -> File {
    // Not the name of a page: other tests count the pages of this process.
    sealed("forged", seals, |file| {
        file.set_len(size as u64).unwrap();
        for (at, word) in words {
            file.write_all_at(&word.to_ne_bytes(), *at as u64).unwrap();
        }
    })
}

/// Creates a memfd with the name of a page. A test that has this process's turn may do so.
fn named(write: impl FnOnce(&mut File)) -> File {
    sealed(MEMFD_NAME, SealFlag::F_SEAL_SHRINK, write)
}

/// The bytes of this process's page.
fn bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    file().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn of_many_pages_a_few_are_read() {
    let (_turn, _writer) = writer();
    let bytes = bytes();
    let copies: Vec<File> = (0..100).map(|_| named(|file| file.write_all(&bytes).unwrap())).collect();
    assert_eq!(pages_of(std::process::id()).unwrap().len(), 8);
    drop(copies);
    page();
}

/// With a lease on a file its owner makes others wait who open it, 45 s by default. A page without
/// its magic is not complete, and costs a search no less.
#[test]
fn nobody_can_make_a_search_wait() {
    let (_turn, _writer) = writer();
    // A lease that is broken is a signal to its owner, which would end this process.
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let bytes = bytes();
    let first = named(|file| file.write_all(&bytes).unwrap());
    let leased = File::open(format!("/proc/self/fd/{}", first.as_raw_fd())).unwrap();
    drop(first);
    let begin = Instant::now();
    // SAFETY: a descriptor of this function.
    while unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
        // A child that another test has just forked still has the first descriptor.
        let why = std::io::Error::last_os_error();
        assert!(begin.elapsed() < Duration::from_secs(20), "{why}");
        std::thread::yield_now();
    }
    assert_eq!(pages_of(std::process::id()).unwrap().len(), 1, "the search has waited for the lease");
    drop(leased);

    // They come before the copy of a page, which is not reached.
    let many: Vec<File> = (0..8).map(|_| named(|file| file.set_len(STATS_SIZE as u64).unwrap())).collect();
    let last = named(|file| file.write_all(&bytes).unwrap());
    // Behind all descriptors of this process.
    let behind = fcntl(&last, FcntlArg::F_DUPFD_CLOEXEC(500)).unwrap();
    drop(last);
    assert_eq!(pages_of(std::process::id()).unwrap().len(), 1);
    // SAFETY: a new descriptor, which nothing else owns.
    drop((many, unsafe { OwnedFd::from_raw_fd(behind) }));
}

#[test]
fn operations_stand_where_the_layout_has_them() {
    let (_turn, writer) = writer();
    let taken = writer.add(&opening("host-b, pid 7"));
    let port = taken.entry().rail(1).port();
    let operations = writer.operations();
    let place = operations.open(0xc0ffee, "world", (3, 8), true).unwrap();
    let before = monotonic();
    let new = NewOperation {
        sequence: 9,
        name: "AllReduce",
        algorithm: "RING",
        protocol: "LL128",
        bytes: 4000,
        channels: 2,
    };
    let first = operations.begin(place, &new).unwrap();
    let second = operations.begin(place, &NewOperation { sequence: 10, ..new }).unwrap();
    // An episode of the process is none of an operation without data.
    writer.episode("mlx5_1:2", Reason::Stall, 0, Duration::from_micros(5));
    assert!(operations.part_begins(first));
    operations.part_ends(first);
    assert!(operations.part_begins(second));
    assert_eq!(operations.sends(second, 0, 1), None, "a port without a record takes no rail");
    let rail = operations.sends(second, port, 700).unwrap();
    assert_eq!(operations.sends(second, port, 300), Some(rail));
    writer.episode("mlx5_1:2", Reason::Stall, 0, Duration::from_micros(5));
    operations.sent(second, rail, Duration::from_micros(30));
    let file = file();
    let mut bytes = vec![0; STATS_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let text = |at: usize| CStr::from_bytes_until_nul(&bytes[at..]).unwrap().to_str().unwrap();
    let at = 512 + 64 * 768 + 1024 * 2560 + place * 131 * 256;
    assert_eq!((long(at) % 2, long(at + 8), long(at + 24), long(at + 32)), (1, 0xc0ffee, 2, 0));
    assert!(long(at + 16) >= long(40));
    assert_eq!((word(at + 40), word(at + 44), text(at + 48)), (3, 8, "world"));
    assert_eq!(([112, 116].map(|o| word(at + o)), bytes[at + 152]), ([port, 0], 1));
    assert_eq!([256, 512].map(|o| long(at + o) % 2), [0, 0], "nothing was overwritten");
    let at = at + 768 + 256;
    assert_eq!((long(at) % 2, long(at + 8), long(at + 40)), (1, 10, 4000));
    let times = [16, 24, 32].map(|o| long(at + o));
    assert!(times[0] > 1_600_000_000_000_000_000, "{times:?}");
    assert!(times[1] >= before && times[1..].is_sorted() && times[2] <= monotonic(), "{times:?}");
    assert_eq!([48, 64, 80].map(|o| text(at + o)), ["AllReduce", "RING", "LL128"]);
    assert_eq!([88, 92].map(|o| word(at + o)), [2, 1]);
    assert_eq!([104, 120].map(|o| long(at + o)), [1, 5000]);
    assert_eq!([128, 136, 144].map(|o| long(at + o)), [1000, 30_000, 0]);
    // The reader returns the same values.
    let read = &page().communicators()[0];
    let quiet = &read.operations[0];
    assert_eq!((quiet.begun, quiet.ended, quiet.episodes, quiet.stalled), (None, None, 0, 0));
    assert_eq!((read.operations[1].sequence, read.operations[1].episodes), (10, 1));
    assert_eq!((read.operations[1].stalled, read.operations[1].is_running), (5000, true));
    assert_eq!(read.operations[1].rails[0].in_flight, 30_000);
    operations.part_ends(second);
    assert!(!page().communicators()[0].operations[1].is_running);
    operations.close(place);
    assert!(page().communicators().is_empty());
    assert!(!operations.part_begins(first), "its communicator is closed");
}

/// Begins parts of the operation that is overwritten next, while another thread does so.
#[test]
fn a_part_that_begins_while_its_operation_is_overwritten_keeps_no_place() {
    const ROUNDS: usize = 300_000;
    let (_turn, writer) = writer();
    let operations = writer.operations();
    let communicator = operations.open(1, "race", (0, 2), false).unwrap();
    let new = NewOperation {
        sequence: 1,
        name: "AllReduce",
        algorithm: "RING",
        protocol: "SIMPLE",
        bytes: 1,
        channels: 1,
    };
    let begin = || operations.begin(communicator, &new);
    let first: Vec<_> = (0..STATS_OPERATIONS).map(|_| begin().unwrap()).collect();
    let generations: Vec<_> = first.iter().map(|place| AtomicU64::new(place.generation)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let index = round % STATS_OPERATIONS;
                next.store(round, Ordering::Relaxed);
                // It is kept if a part of it runs.
                if let Some(place) = begin() {
                    generations[index].store(place.generation, Ordering::Relaxed);
                }
            }
            next.store(ROUNDS, Ordering::Relaxed);
        });
        loop {
            let round = next.load(Ordering::Relaxed);
            if round == ROUNDS {
                break;
            }
            let index = round % STATS_OPERATIONS;
            let generation = generations[index].load(Ordering::Relaxed);
            let place = OperationPlace { communicator, index, generation };
            if operations.part_begins(place) {
                operations.part_ends(place);
            }
        }
    });
    let lost = (0..STATS_OPERATIONS).filter(|_| begin().is_none()).count();
    operations.close(communicator);
    assert_eq!(lost, 0, "places are in use, and no part runs");
}

#[test]
fn a_page_of_the_version_before_has_no_communicators() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let size = STATS_SIZE_WITHOUT_OPERATIONS;
    let words = |version: u32, size: usize| {
        let sizes =
            [(8, STATS_HEADER_SIZE as u32), (12, STATS_ENTRY_SIZE as u32), (16, STATS_ENTRIES as u32)];
        let others = [(20, 8), (24, size as u32), (72, 64), (76, 768)];
        [&[(0, STATS_MAGIC), (4, version)], &sizes[..], &others].concat()
    };
    let page = StatsPage::open(&forged(seals, size, &words(4, size))).unwrap();
    assert!(page.communicators().is_empty() && page.read().connections.is_empty());
    // Each version has one size.
    for (version, size) in [(4, STATS_SIZE), (5, size)] {
        let e = StatsPage::open(&forged(seals, size, &words(version, size))).unwrap_err();
        assert!(matches!(e, BadPage::Size(found) if found == size as u64), "{version}: {e}");
    }
}

#[test]
fn what_is_no_page_is_refused_by_name() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    let good = [
        (0, STATS_MAGIC),
        (4, STATS_VERSION),
        (8, STATS_HEADER_SIZE as u32),
        (12, STATS_ENTRY_SIZE as u32),
        (16, STATS_ENTRIES as u32),
        (20, 8),
        (24, STATS_SIZE as u32),
        (72, 64),
        (76, 768),
    ];
    assert!(StatsPage::open(&forged(seals, STATS_SIZE, &good)).is_ok());
    let unsealed = forged(SealFlag::F_SEAL_GROW, STATS_SIZE, &good);
    assert!(matches!(StatsPage::open(&unsealed), Err(BadPage::Unsealed)));
    let on_disk = tempfile::tempfile().unwrap();
    on_disk.set_len(STATS_SIZE as u64).unwrap();
    assert!(matches!(StatsPage::open(&on_disk), Err(BadPage::Unsealed)));
    assert!(matches!(StatsPage::open(&File::open("/dev/zero").unwrap()), Err(BadPage::Unsealed)));
    for size in [0, 4096, STATS_SIZE - 1, STATS_SIZE + 4096] {
        let file = forged(seals, size, &[]);
        assert!(matches!(StatsPage::open(&file), Err(BadPage::Size(n)) if n == size as u64));
    }
    // Each number in turn is wrong by one.
    for (i, (at, value)) in good.iter().enumerate() {
        let mut words = good;
        words[i].1 = value + 1;
        let e = StatsPage::open(&forged(seals, STATS_SIZE, &words)).unwrap_err();
        match (i, &e) {
            (0, BadPage::Magic(found)) => assert_eq!(*found, value + 1),
            (1, BadPage::Version(found)) => assert_eq!(*found, value + 1),
            (_, BadPage::Layout { at: place, found, .. }) => {
                assert_eq!((*place, *found), (*at, u64::from(value + 1)));
            }
            _ => panic!("{at}: {e}"),
        }
        assert!(e.to_string().contains("expected"), "{e}");
    }
}

/// Reading a page with random entries terminates and returns at most [`STATS_ENTRIES`] connections.
#[test]
fn garbage_in_a_page_does_no_harm() {
    let file = forged(SealFlag::F_SEAL_SHRINK, STATS_SIZE, &[]);
    let mut bytes: Vec<u8> = (0..STATS_SIZE).map(|i| (i * i / 7 + i) as u8 | 1).collect();
    let good = [STATS_MAGIC, STATS_VERSION, 512, 2560, 1024, 8, STATS_SIZE as u32, 0];
    for (place, word) in bytes.chunks_exact_mut(4).zip(good) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes[72..80].copy_from_slice(&[64u32.to_ne_bytes(), 768u32.to_ne_bytes()].concat());
    file.write_all_at(&bytes, 0).unwrap();
    let page = StatsPage::open(&file).unwrap();
    let ports = page.read().ports;
    assert_eq!(ports.len(), 64);
    assert!(ports.iter().all(|port| port.state.is_none() && !port.name.chars().any(char::is_control)));
    let all = page.connections();
    assert_eq!(all.len(), STATS_ENTRIES);
    assert!(all.iter().all(|c| c.rails.len() <= 8 && !c.peer.chars().any(char::is_control)));
    let communicators = page.communicators();
    assert_eq!(communicators.len(), STATS_COMMUNICATORS);
    assert!(communicators.iter().all(|c| c.operations.len() <= STATS_OPERATIONS));
    let mut names = communicators.iter().flat_map(|c| &c.operations).map(|o| &o.name);
    assert!(names.all(|name| !name.chars().any(char::is_control)));
}

#[test]
fn a_missing_process_differs_from_one_without_a_page() {
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let without = pages_of(child.id());
    child.kill().unwrap();
    // Not reaped yet: while it exits, it may look alive.
    let start = Instant::now();
    while !matches!(pages_of(child.id()), Err(NoPage::NoProcess)) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is still there");
        std::thread::yield_now();
    }
    child.wait().unwrap();
    assert!(matches!(without, Err(NoPage::None)), "{without:?}");
    assert!(matches!(pages_of(child.id()), Err(NoPage::NoProcess)));
    // Larger than any process id.
    assert!(matches!(pages_of(u32::MAX), Err(NoPage::NoProcess)));
}

#[test]
fn failovers_are_counted() {
    let (_turn, writer) = writer();
    let before = page().summary();
    writer.episode("f:1", Reason::Stall, 4096, Duration::from_millis(25));
    writer.episode("f:1", Reason::Peer, 0, Duration::from_millis(5));
    writer.episode("f:1", Reason::Peer, 1, Duration::from_micros(5_001));
    writer.episode("f:1", Reason::Peer, 1, Duration::from_secs(61));
    writer.returned();
    let after = page().summary();
    let added = (after.episodes - before.episodes, after.replayed - before.replayed);
    assert_eq!(added, (4, 4098));
    let stalled = 25_000_000 + 5_000_000 + 5_001_000 + 61_000_000_000;
    assert_eq!((after.stalled - before.stalled, after.returns - before.returns), (stalled, 1));
    let port = port("f:1");
    assert_eq!((port.episodes, port.replayed, port.stalled), ([0, 0, 1, 0, 0, 3], 4098, stalled));
    assert_eq!(port.stalls, [0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let file = file();
    let mut bytes = vec![0; STATS_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = (0..64).map(|i| 512 + 768 * i).find(|at| bytes[*at..].starts_with(b"f:1\0")).unwrap();
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let found = [192 + 8 * 2, 192 + 8 * 5, 256, 264, 272 + 8 * 2, 272 + 8 * 14].map(|o| long(at + o));
    assert_eq!(found, [1, 3, 4098, stalled, 1, 1]);
}

/// Returns a port of this process.
fn port(name: &str) -> Port {
    page().read().ports.into_iter().find(|port| port.name == name).unwrap()
}

/// Opens a connection with these rails.
fn one_rail(direction: Direction, rails: &[(u8, &'static str)]) -> ConnectionEntry {
    let writer = StatsWriter::for_this_process("1.2.3").unwrap();
    writer.add(&NewConnection { direction, rails, ..opening("totals") })
}

//= stats.md: totals have closed connections and those that are not shown
#[test]
fn totals_have_each_connection_once_before_and_after_its_end() {
    let (_turn, writer) = writer();
    let before = page().read().totals;
    let added = || {
        let now = page().read().totals;
        [0, 1].map(|i| (now[i].done - before[i].done, now[i].bytes - before[i].bytes))
    };
    let count = |taken: &ConnectionEntry, bytes: usize| {
        let entry = taken.entry();
        entry.request();
        entry.done(1, bytes);
        entry.rail(0).posted(2, 1, bytes);
        entry.rail(0).completed(1);
        entry.rail(0).error();
    };
    let sends = one_rail(Direction::Send, &[(0, "t:1")]);
    let receives = one_rail(Direction::Receive, &[(0, "t:1"), (0, "t:1")]);
    count(&sends, 100);
    receives.entry().rail(0).arrived();
    receives.entry().rail(1).arrived();
    receives.entry().request();
    receives.entry().done(1, 7);
    let totals = PortTotals { bytes: 100, parts_sent: 1, parts_received: 2, posted: 2, done: 1, errors: 1 };
    let seen = || (port("t:1").totals, port("t:1").connections, added());
    assert_eq!(seen(), (totals, 2, [(1, 100), (1, 7)]));
    drop(sends);
    assert_eq!(seen(), (totals, 1, [(1, 100), (1, 7)]));
    drop(receives);
    assert_eq!(seen(), (totals, 0, [(1, 100), (1, 7)]));

    // Beyond the last entry.
    let all: Vec<_> = (0..STATS_ENTRIES).map(|_| writer.add(&opening("many"))).collect();
    let unlisted = one_rail(Direction::Send, &[(0, "t:1")]);
    assert!(!unlisted.is_listed());
    count(&unlisted, 10);
    assert_eq!(seen(), (totals, 1, [(1, 100), (1, 7)]), "its counters are in no page");
    let more = PortTotals { bytes: 110, parts_sent: 2, parts_received: 2, posted: 4, done: 2, errors: 2 };
    (0..3).for_each(|_| writer.count_unlisted());
    assert_eq!(seen(), (more, 1, [(2, 110), (1, 7)]));
    count(&unlisted, 1);
    drop(unlisted);
    let last = PortTotals { bytes: 111, parts_sent: 3, parts_received: 2, posted: 6, done: 3, errors: 3 };
    assert_eq!(seen(), (last, 0, [(3, 111), (1, 7)]));
    drop(all);
    assert_eq!(seen(), (last, 0, [(3, 111), (1, 7)]));
}

/// A reader beside connections that count and close while it reads: totals never go back, and nothing
/// is lost.
#[test]
fn totals_never_decrease_while_connections_close() {
    const ROUNDS: u64 = 5_000;
    let (_turn, _writer) = writer();
    let before = page().read();
    let (readings, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let taken = one_rail(Direction::Send, &[(0, "c:1")]);
                taken.entry().done(1, 3);
                taken.entry().rail(0).posted(1, 1, 3);
                // One closes in each reading.
                while readings.load(Ordering::Acquire) <= round && !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        // Ends the writer if an assertion fails.
        let _over = Over(&over);
        let (page, mut last) = (page(), (0, 0));
        while !over.load(Ordering::Relaxed) {
            readings.fetch_add(1, Ordering::Release);
            let now = page.read();
            let of_port = now.ports.iter().find(|port| port.name == "c:1").map_or(0, |p| p.totals.bytes);
            let now = (now.totals[0].bytes, of_port);
            assert!(now.0 >= last.0 && now.1 >= last.1, "{now:?} after {last:?}");
            last = now;
        }
    });
    let after = page().read();
    assert_eq!(after.totals[0].bytes - before.totals[0].bytes, 3 * ROUNDS);
    assert_eq!(port("c:1").totals.bytes, 3 * ROUNDS);
}

/// Sets a mark when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//= stats.md: ports
#[test]
fn the_state_of_a_port_has_its_cause_and_time() {
    let (_turn, writer) = writer();
    let start = SystemTime::now();
    let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let record = writer.port("s:1").unwrap();
    let new = port("s:1");
    assert_eq!((new.state, new.cause, new.scale), (Some(PortState::Healthy), None, 1024));
    assert_eq!((new.goodput, new.weight), (None, None));
    assert!(new.since >= nanos(start));
    writer.port_state("s:1", PortState::Down, Some(("the link went down", start)));
    let down = port("s:1");
    assert_eq!((down.state, down.since), (Some(PortState::Down), nanos(start)));
    assert_eq!(down.cause.as_deref(), Some("the link went down"));
    writer.port_state("s:1", PortState::Healthy, None);
    record.measured(25_000_000_000, 512);
    record.add_measured(1000, 20, 0);
    record.add_measured(1 << 20, 5, 3);
    record.set_scale(4096);
    let back = port("s:1");
    assert_eq!((back.state, back.cause, back.scale), (Some(PortState::Healthy), None, 1024));
    assert_eq!((back.goodput, back.weight), (Some(25_000_000_000), Some(512)));
    let queued = Measured { bytes: 1 << 20, time: 5 };
    let all = Measured { bytes: 1000 + (1 << 20), time: 25 };
    assert_eq!(back.carried, Carried { all, queued, waited: 3 });
    assert!(back.since >= new.since);
}

//= stats.md: goodput is bytes over the time in which measured parts were in flight
#[test]
fn goodput_is_bytes_over_busy_time() {
    let of = |bytes, time| Measured { bytes, time };
    let carried = |all, queued| Carried { all, queued, waited: 2 };
    let (second, none) = (1_000_000_000, of(0, 0));
    assert_eq!(carried(of(2 << 30, second / 2), none).goodput(), Some(4 << 30));
    let partly = carried(of(2 << 30, second), of(1 << 30, second / 4));
    assert_eq!(partly.goodput(), Some(4 << 30), "parts that have waited show no latency");
    assert_eq!(carried(of(2 << 30, second), of(1, 1)).goodput(), Some(2 << 30));
    assert_eq!(carried(of(Carried::LEAST - 1, second), none).goodput(), None, "too little to know");
    assert_eq!(carried(of(1 << 30, 0), none).goodput(), None);
    assert_eq!(carried(of(u64::MAX, 1), none).goodput(), Some(u64::MAX));
    let mut sum = partly;
    sum += partly;
    assert_eq!(sum - partly, partly);
}

/// What an agent reads at short intervals, without the entries.
#[test]
fn ports_and_senders_are_read_without_the_connections() {
    let (_turn, writer) = writer();
    let page = page();
    let taken = [Direction::Send, Direction::Receive]
        .map(|direction| writer.add(&NewConnection { direction, ..opening("a peer") }));
    let ports = page.ports();
    let place = |name: &str| ports.iter().position(|port| port.name == name).unwrap();
    let both = NAMES.map(|(_, name)| place(name));
    let senders = || page.senders(0..STATS_ENTRIES).collect::<Vec<_>>();
    assert_eq!(senders(), [Sender { ports: both, share: None }], "the receiver is none");
    taken[0].entry().share(341);
    assert_eq!(senders(), [Sender { ports: both, share: Some(341) }]);
    let before = page.carried(both[1]);
    writer.port(NAMES[1].1).unwrap().add_measured(7, 3, 0);
    assert_eq!((page.carried(both[1]) - before).all, Measured { bytes: 7, time: 3 });
    assert_eq!(page.carried(STATS_PORTS), Carried::default(), "no such record");

    let events = page.events();
    assert_eq!(page.events(), events);
    writer.port_state(NAMES[0].1, PortState::Down, Some(("a test", SystemTime::now())));
    let down = page.events();
    assert_ne!(down, events);
    writer.episode(NAMES[0].1, Reason::Port, 0, Duration::ZERO);
    assert_ne!(page.events(), down);
    writer.port_state(NAMES[0].1, PortState::Healthy, None);
    drop(taken);
    assert_eq!(senders(), []);
}

/// Runs in another process: a page has 64 records for good.
#[test]
fn ports_beyond_the_last_record_are_counted_and_harmless() {
    const CHILD: &str = "MPIB_TEST_MANY_PORTS";
    if std::env::var_os(CHILD).is_none() {
        let name = "ports_beyond_the_last_record_are_counted_and_harmless";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (_turn, writer) = writer();
    (0..STATS_PORTS).for_each(|i| assert!(writer.port(&format!("p{i}:1")).is_some()));
    assert!(writer.port("late:1").is_none() && writer.port("p63:1").is_some());
    let taken = one_rail(Direction::Send, &[(0, "late:1"), (1, "p63:1")]);
    taken.entry().rail(0).posted(1, 1, 5);
    taken.entry().rail(1).posted(1, 1, 6);
    writer.episode("late:1", Reason::Port, 1, Duration::ZERO);
    writer.port_state("late:1", PortState::Down, None);
    let seen = page().read();
    assert_eq!((seen.ports.len(), seen.summary.ports_missing, seen.summary.episodes), (STATS_PORTS, 1, 1));
    let rails: Vec<_> = seen.connections[0].rails.iter().map(|rail| rail.port).collect();
    assert_eq!(rails, [None, Some(63)]);
    assert_eq!(seen.ports.iter().map(|port| port.totals.bytes).sum::<u64>(), 6);
    drop(taken);
    assert_eq!(page().read().ports.iter().map(|port| port.totals.bytes).sum::<u64>(), 6);
}

/// A page without its memory kills its process by SIGBUS when memory is short.
//= stats.md: the page has its memory when it is made
#[test]
fn the_page_has_its_memory_from_the_beginning() {
    let (_turn, _writer) = writer();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file().metadata().unwrap());
    assert!(blocks * 512 >= STATS_SIZE as u64, "{blocks} blocks");
}

#[test]
fn a_rail_is_given_up_until_it_is_in_use_again() {
    let (_turn, writer) = writer();
    let new = |peer| NewConnection {
        direction: Direction::Send,
        islands: Islands::Unknown,
        data: Data::Plain,
        traffic: Traffic::Messages,
        peer,
        rails: &[(0, "a:1"), (1, "b:1")],
        substituted: false,
    };
    let given_up = |peer: &str| {
        let all = page().connections();
        let found = all.iter().find(|c| c.peer == peer).unwrap();
        <[bool; 2]>::try_from(found.rails.iter().map(|rail| rail.given_up_at.is_some()).collect::<Vec<_>>())
            .unwrap()
    };
    let connection = writer.add(&new("first"));
    assert_eq!(given_up("first"), [false, false]);
    let entry = connection.entry();
    entry.rail(1).missing(Some((Lack::GivenUp(Reason::Port), "the link went down")));
    assert_eq!(given_up("first"), [false, true]);
    entry.rail(1).missing(None);
    assert_eq!(given_up("first"), [false, false]);
    entry.rail(0).missing(Some((Lack::Connect, "no answer")));
    connection.leave_out(2, "c:1", "no common subnet");
    let found = page().connections().into_iter().find(|c| c.peer == "first").unwrap();
    let why = |rail: &Rail| (rail.missing.clone(), rail.lack);
    assert_eq!(
        found.rails.iter().map(why).collect::<Vec<_>>(),
        [
            (Some("no answer".into()), Some(Lack::Connect)),
            (None, None),
            (Some("no common subnet".into()), Some(Lack::LeftOut)),
        ]
    );
    drop(connection);
    // The entry that was freed last is used next.
    let _second = writer.add(&new("second"));
    assert_eq!(given_up("second"), [false, false]);
    assert!(page().connections().iter().all(|c| c.rails.iter().all(|rail| rail.lack.is_none())));
}

#[test]
fn an_unlisted_entry_counts_from_zero_and_is_in_no_page() {
    let (_turn, _writer) = writer();
    let before = page().connections();
    let first = UnlistedEntry::new();
    first.entry().rail(1).posted(5, 5, 100);
    first.entry().rail(1).completed(3);
    assert_eq!(first.entry().rail(1).progress(), (5, 3));
    let second = UnlistedEntry::new();
    assert_eq!(second.entry().rail(1).progress(), (0, 0), "an entry of its own");
    let place = std::ptr::from_ref(first.entry());
    drop(first);
    let third = UnlistedEntry::new();
    assert_eq!((std::ptr::from_ref(third.entry()), third.entry().rail(1).progress()), (place, (0, 0)));
    assert_eq!(page().connections(), before);
}
