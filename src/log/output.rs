//! The way of lines to NCCL's logger.
//!
//! The logger takes a lock and writes to a pipe that nobody may read, so a call of it can take
//! arbitrarily long, or for ever. Nobody waits for such a call but its caller: lines of the plugin's
//! threads and of the data path go through a thread that does nothing else. Lines of other calls
//! wait until the call holds no lock any more ([`leave`]). The logger may be unloaded after the last
//! `finalize`, and is not called then.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nccl_net_abi::NCCL_NET;
use nccl_net_versions::{Level, Logger, in_call, in_callback};
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
    static OF_CALL: RefCell<OfCall> = const { RefCell::new(OfCall(Vec::new())) };
}

/// The records of a call under way. At the end of their thread they are written.
struct OfCall(Vec<Record>);

impl Drop for OfCall {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|record| record.write());
    }
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

/// Writes the lines of this thread, and waits until those of the plugin's threads are written, unless
/// the logger blocks. Not to be called under a lock.
pub fn flush() {
    write_of_call();
    wait_while(Instant::now() + PATIENCE, || QUEUE.lock().running);
}

fn wait_while(until: Instant, goes_on: impl Fn() -> bool) {
    while goes_on() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Passes the lines of this thread's call to the logger. To be called without a lock.
fn write_of_call() {
    // The list is empty meanwhile: the logger may log through the plugin.
    let records = OF_CALL.try_with(|records| OfCall(std::mem::take(&mut records.borrow_mut().0)));
    drop(records);
}

/// Passes lines to the logger at the end of a call. After one of the data path, which has failed, this
/// waits for the thread: NCCL prints the last line that it has.
pub(crate) fn leave() {
    match (in_callback(), in_call()) {
        (true, _) => {}
        (false, true) => write_of_call(),
        (false, false) => flush(),
    }
}

impl Record {
    /// Passes the record to the logger, later. Calls of the data path do not wait for the logger.
    pub(super) fn send(self) {
        if background::is_ours() || in_callback() || !in_call() {
            return self.queue();
        }
        let mut record = Some(self);
        // `exit` destroys the list of its thread before it calls the handlers of `atexit`.
        let _ = OF_CALL.try_with(|records| records.borrow_mut().0.extend(record.take()));
        if let Some(record) = record {
            record.write();
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
