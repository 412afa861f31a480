//! The statistics page of a process that nobody trusts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;

use arbitrary::{Arbitrary, Unstructured};
use nccl_net_mpib_agent_iface::stats::{
    STATS_ENTRIES, STATS_ENTRY_SIZE, STATS_HEADER_SIZE, STATS_MAGIC, STATS_PORT_SIZE, STATS_PORTS,
    STATS_RAILS, STATS_SIZE, STATS_VERSION, StatsPage,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Entries and ports in use.
const USED: usize = 4;
/// Offset of the revision. While it is odd, a reader of everything waits for 100 ms.
const REVISION: usize = 88;
/// Times that another thread repeats its changes during a reading.
const REPEATS: usize = 20;

/// A word of the page.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Place {
    Header(u8),
    Port(u8, u8),
    Entry(u8, u8),
    Anywhere(u32),
}

/// A word that is written.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Change {
    place: Place,
    value: u64,
}

#[derive(Debug, Arbitrary)]
struct Input {
    before: Vec<Change>,
    /// By another thread during the reading.
    during: Vec<Change>,
}

/// A page, and its content before any change.
struct Page {
    file: File,
    page: StatsPage,
    template: Vec<u8>,
}

impl Change {
    fn offset(self) -> usize {
        let words = |byte: u8, size: usize| usize::from(byte) * 8 % size;
        let at = match self.place {
            Place::Header(word) => words(word, STATS_HEADER_SIZE),
            Place::Port(port, word) => {
                STATS_HEADER_SIZE + usize::from(port) % USED * STATS_PORT_SIZE + words(word, STATS_PORT_SIZE)
            }
            Place::Entry(entry, word) => {
                let first = STATS_HEADER_SIZE + STATS_PORTS * STATS_PORT_SIZE;
                first + usize::from(entry) % USED * STATS_ENTRY_SIZE + words(word, STATS_ENTRY_SIZE)
            }
            Place::Anywhere(at) => at as usize / 8 * 8,
        };
        at % STATS_SIZE
    }

    fn write(self, file: &File) {
        let (at, value) = (self.offset(), self.value);
        // One odd number is enough: each reading with one takes 100 ms.
        let value = if at == REVISION && value != u64::MAX { value & !1 } else { value };
        file.write_all_at(&value.to_le_bytes(), at as u64).expect("a write to the page");
    }
}

/// Changes words of a page, before and while it is read. No reading ends the process or takes long,
/// and no text is longer than its field.
pub fn stats(data: &[u8]) {
    thread_local! {
        static PAGE: Page = Page::new();
    }
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    PAGE.with(|page| {
        input.before.iter().for_each(|change| change.write(&page.file));
        match StatsPage::open(&page.file) {
            Ok(opened) => read(&opened),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
        // A page that was opened before.
        if input.during.is_empty() {
            read(&page.page);
        } else {
            let changes = input.during.iter().filter(|change| change.offset() != REVISION);
            thread::scope(|scope| {
                let changer = scope.spawn(|| {
                    for _ in 0..REPEATS {
                        changes.clone().for_each(|change| change.write(&page.file));
                    }
                });
                (0..2).for_each(|_| read(&page.page));
                // The scope would not wait until the thread has freed what it owns, and the leak
                // check at the end of the process may come before.
                changer.join().expect("the changes");
            });
        }
        input.before.iter().chain(&input.during).for_each(|change| page.restore(change.offset()));
    });
}

fn read(page: &StatsPage) {
    let short = |text: &str, most: usize| assert!(text.chars().count() <= most, "{text:?}");
    let statistics = page.read();
    short(&statistics.summary.plugin, 32);
    assert!(statistics.ports.len() <= STATS_PORTS);
    for port in &statistics.ports {
        short(&port.name, 64);
    }
    assert!(statistics.connections.len() <= STATS_ENTRIES);
    for connection in &statistics.connections {
        assert!(connection.index < STATS_ENTRIES && connection.rails.len() <= STATS_RAILS);
        short(&connection.peer, 128);
        connection.reason.iter().for_each(|reason| short(reason, 256));
        connection.rails.iter().for_each(|rail| short(&rail.name, 64));
        let in_flight = connection.rails.iter().map(|rail| rail.in_flight());
        in_flight.chain([connection.in_flight()]).for_each(|_| {});
        page.carried(connection.index);
    }
    assert!(page.senders(0..STATS_ENTRIES).count() <= STATS_ENTRIES);
    page.events();
}

impl Page {
    fn new() -> Self {
        let template = template();
        let file = File::from(memfd_create("page", MFdFlags::MFD_ALLOW_SEALING).expect("a file in memory"));
        file.write_all_at(&template, 0).expect("room for a page");
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("the file can be sealed");
        let page = StatsPage::open(&file).expect("a page");
        Self { file, page, template }
    }

    fn restore(&self, at: usize) {
        let until = (at + 8).min(STATS_SIZE);
        self.file.write_all_at(&self.template[at..until], at as u64).expect("a write to the page");
    }
}

/// Returns a page with some ports and connections.
fn template() -> Vec<u8> {
    let mut page = vec![0; STATS_SIZE];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    let number = |n: usize| u32::try_from(n).expect("a size of the layout").to_ne_bytes();
    for (at, n) in [
        (4, STATS_VERSION as usize),
        (8, STATS_HEADER_SIZE),
        (12, STATS_ENTRY_SIZE),
        (16, STATS_ENTRIES),
        (20, STATS_RAILS),
        (24, STATS_SIZE),
        (64, USED),
        (72, STATS_PORTS),
        (76, STATS_PORT_SIZE),
        (80, USED),
    ] {
        put(at, &number(n));
    }
    put(0, &STATS_MAGIC.to_ne_bytes());
    for port in 0..USED {
        put(STATS_HEADER_SIZE + port * STATS_PORT_SIZE, b"mlx5_0:1");
    }
    for entry in 0..USED {
        let at = STATS_HEADER_SIZE + STATS_PORTS * STATS_PORT_SIZE + entry * STATS_ENTRY_SIZE;
        // In use, established, a sender (but one), with two rails.
        put(at, &1u64.to_ne_bytes());
        put(at + 8, &[1, 0, 0, 0, 1 + (entry == 0) as u8, 1, 1, 2]);
        put(at + 64, b"host-b, pid 7");
        for rail in 0..2 {
            let at = at + 256 + 128 * rail;
            put(at + 40, &number(rail));
            put(at + 44, &number(rail + 1));
            put(at + 64, b"mlx5_0:1");
        }
    }
    page
}
