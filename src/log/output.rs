//! The way of lines to NCCL's logger.
//!
//! The logger takes a lock and writes to a pipe that nobody may read, so a call of it can take
//! arbitrarily long. Nobody waits for such a call but its caller: lines of the plugin's threads go
//! through a thread that does nothing else, and lines under a lock of the plugin wait until it is
//! released ([`later`]). The logger may be unloaded after the last `finalize`, and is not called
//! then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nccl_net_abi::NCCL_NET;
use nccl_net_versions::{Level, Logger};
use parking_lot::{Mutex, RwLock};

use crate::{background, nccl};

/// Most records that wait for the thread. Later ones are counted and dropped.
const WAITING: usize = 1024;
/// How long the last `finalize` waits for calls of the logger.
const PATIENCE: Duration = Duration::from_secs(1);

/// A static: `tracing` has one subscriber for the whole process, and threads log without a context.
static OUTPUT: RwLock<Output> = RwLock::new(Output { logger: None, contexts: 0, fresh: false });
/// Calls of the logger under way.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static QUEUE: Mutex<Queue> = Mutex::new(Queue { records: VecDeque::new(), dropped: 0, running: false });

thread_local! {
    /// How many values of [`Later`] this thread has.
    static HELD: Cell<usize> = const { Cell::new(0) };
    static LATER: RefCell<Vec<Record>> = const { RefCell::new(Vec::new()) };
}

struct Output {
    /// The logger of the latest init. NCCL may close the plugin and open it again with another one.
    logger: Option<Logger>,
    /// Values of [`Hold`].
    contexts: usize,
    /// Whether the logger is of an init that has no context yet.
    fresh: bool,
}

struct Queue {
    records: VecDeque<Record>,
    dropped: usize,
    /// Whether the thread exists, or is about to.
    running: bool,
}

/// One message, as the lines that the logger gets.
pub(super) struct Record {
    pub(super) level: Level,
    pub(super) file: CString,
    pub(super) number: c_int,
    pub(super) lines: Vec<CString>,
}

/// Sends lines to `logger` from now on.
pub(super) fn set_logger(logger: Logger) {
    let mut output = OUTPUT.write();
    (output.logger, output.fresh) = (Some(logger), true);
}

/// Keeps the library of the present logger loaded until the process ends, for contexts that are
/// never finalized.
pub(crate) fn keep_logger() {
    if let Some(address) = OUTPUT.read().logger.and_then(|logger| logger.address()) {
        nccl::keep_loaded(address);
    }
}

/// A context's hold on the logger. The logger is not called after the last one is dropped, until the
/// next init.
#[derive(Debug)]
pub(crate) struct Hold(());

impl Hold {
    /// Holds the logger of the latest init.
    pub(crate) fn new() -> Self {
        let mut output = OUTPUT.write();
        (output.contexts, output.fresh) = (output.contexts + 1, false);
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        flush();
        let is_last = {
            let mut output = OUTPUT.write();
            output.contexts -= 1;
            output.contexts == 0
        };
        if is_last {
            wait_while(until, || CALLS.load(Ordering::SeqCst) > 0);
        }
    }
}

/// Waits until the lines of the plugin's threads are written, unless the logger blocks.
pub fn flush() {
    wait_while(Instant::now() + PATIENCE, || QUEUE.lock().running);
}

fn wait_while(until: Instant, goes_on: impl Fn() -> bool) {
    while goes_on() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Delays the lines of this thread while it exists: it is made before a lock is taken, and dropped
/// after the lock is released.
#[derive(Debug)]
pub(crate) struct Later(());

/// Returns what delays the lines of this thread.
pub(crate) fn later() -> Later {
    HELD.set(HELD.get() + 1);
    Later(())
}

impl Drop for Later {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        if HELD.get() == 0 {
            // `exit` destroys the list of its thread before it calls the handlers of `atexit`.
            let records = LATER.try_with(RefCell::take).unwrap_or_default();
            records.iter().for_each(Record::write);
        }
    }
}

impl Record {
    /// Passes the record to the logger, now or later.
    pub(super) fn send(self) {
        if background::is_ours() {
            self.queue();
        } else if HELD.get() > 0 {
            let _ = LATER.try_with(|records| records.borrow_mut().push(self));
        } else {
            self.write();
        }
    }

    fn write(&self) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let logger = {
            let output = OUTPUT.read();
            output.logger.filter(|_| (output.contexts > 0 || output.fresh) && !background::has_exited())
        };
        // Not under the lock: NCCL's logger takes its own.
        if let Some(logger) = logger {
            self.lines.iter().for_each(|line| logger.log(self.level, &self.file, self.number, line));
        }
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }

    fn queue(self) {
        let mut queue = QUEUE.lock();
        if queue.records.len() >= WAITING {
            queue.dropped += 1;
            return;
        }
        queue.records.push_back(self);
        // Without a thread the next line tries again.
        queue.running = queue.running || background::spawn("mpib-log", || {}, write_all).is_ok();
    }
}

/// Writes the records that wait, and ends.
fn write_all() {
    loop {
        let (record, dropped) = {
            let mut queue = QUEUE.lock();
            match queue.records.pop_front() {
                Some(record) => (record, std::mem::take(&mut queue.dropped)),
                None => {
                    queue.running = false;
                    return;
                }
            }
        };
        record.write();
        if dropped > 0 {
            let line = c"NET/MPIB : NCCL's logger is too slow: lines were dropped here";
            Record { level: Level::Info(NCCL_NET), lines: vec![line.to_owned()], ..record }.write();
        }
    }
}
