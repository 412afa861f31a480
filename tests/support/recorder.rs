//! A profiler in place of NCCL's, which keeps its events and checks them as strictly as NCCL, which
//! follows each pointer that it gets.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nccl_net_abi as abi;

use crate::table::{Ptr, set_profiler_handles};

/// An event that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The operation's handle, as a number.
    pub handle: usize,
    pub device: c_int,
    pub wr_id: u64,
    pub opcode: c_int,
    pub qpn: u32,
    pub len: usize,
    /// How often it was ended.
    pub stops: usize,
}

/// What a profiler does with an event that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    /// Takes it.
    #[default]
    Takes,
    /// Leaves its place alone, as NCCL does where nobody asks for these events.
    Leaves,
    /// Fails, though it has written the place.
    Fails,
}

/// What one profiler got.
#[derive(Debug)]
pub struct Record {
    pub mood: Mood,
    pub calls: usize,
    pub events: Vec<Event>,
    /// What NCCL, or who profiles behind it, would die of.
    faults: Vec<String>,
    /// Handles that nobody may look behind any more, and why.
    over: BTreeMap<usize, &'static str>,
}

/// A profiler. There are two, for communicators that each have their own.
pub struct Recorder(Mutex<Record>);

pub static FIRST: Recorder = Recorder::new();
pub static SECOND: Recorder = Recorder::new();

macro_rules! callback {
    ($name:ident, $recorder:ident) => {
        /// Its callback.
        ///
        /// # Safety
        /// As NCCL's: `event` is writable, `data` what `plugin` and `kind` say.
        pub unsafe extern "C" fn $name(
            event: *mut Ptr,
            kind: c_int,
            handle: Ptr,
            plugin: i64,
            data: *mut c_void,
        ) -> abi::ncclResult_t {
            // SAFETY: what the caller promises.
            unsafe { $recorder.called(event, kind, handle, plugin, data) }
        }
    };
}
callback!(first, FIRST);
callback!(second, SECOND);

/// Added to an event's number, which makes it differ from other pointers.
const EVENT: usize = 0xE000_0000;

impl Recorder {
    const fn new() -> Self {
        Self(Mutex::new(Record {
            mood: Mood::Takes,
            calls: 0,
            events: Vec::new(),
            faults: Vec::new(),
            over: BTreeMap::new(),
        }))
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing here may unwind: faults are kept, and [`checked`](Self::checked) reports them.
    unsafe fn called(
        &self,
        event: *mut Ptr,
        kind: c_int,
        handle: Ptr,
        plugin: i64,
        data: *mut c_void,
    ) -> abi::ncclResult_t {
        let mut record = self.record();
        record.calls += 1;
        // SAFETY: what the caller promises.
        let held = unsafe { *event }.addr();
        if kind != 0 {
            // NCCL 2.26 takes all but a start for a stop, so the plugin may give no other.
            record.stopped(kind, held);
            return abi::ncclSuccess;
        }
        // SAFETY: as above.
        let Some(d) = (unsafe { data.cast::<abi::ncclProfilerNetIbDescr_v1_t>().as_ref() }) else {
            record.faults.push("a start without a descriptor".into());
            return abi::ncclSuccess;
        };
        let (type_, d) = (d.type_, &d.qp);
        let known = Event {
            handle: handle.addr(),
            device: d.device,
            wr_id: d.wr_id,
            opcode: d.opcode,
            qpn: d.qpNum as u32,
            len: d.length,
            stops: 0,
        };
        record.started(known, (plugin, type_, held));
        match record.mood {
            Mood::Leaves => return abi::ncclSuccess,
            Mood::Takes | Mood::Fails => {
                let number = EVENT + record.events.len() - 1;
                // SAFETY: as above.
                unsafe { *event = without_provenance_mut(number) };
            }
        }
        if record.mood == Mood::Fails { abi::ncclSystemError } else { abi::ncclSuccess }
    }

    /// Handles for the next calls of this thread: one for each receive, or the first for a send.
    pub fn handles(&self) -> [usize; 8] {
        static NEXT: Mutex<usize> = Mutex::new(0x1000);
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = std::array::from_fn(|i| *next + 16 * i);
        *next += 0x1000;
        set_profiler_handles(Some(handles.map(without_provenance_mut)));
        handles
    }

    /// The events of an operation.
    pub fn of(&self, handle: usize) -> Vec<Event> {
        self.record().events.iter().filter(|e| e.handle == handle).cloned().collect()
    }

    /// An operation has completed: its events have ended, and its handle must not be used any more.
    pub fn over(&self, handle: usize, why: &'static str) -> Vec<Event> {
        let events = self.of(handle);
        let mut record = self.record();
        let ends = usize::from(record.mood == Mood::Takes);
        assert!(events.iter().all(|e| e.stops == ends), "{why}, and its events are {events:?}");
        record.over.insert(handle, why);
        drop(record);
        self.checked();
        events
    }

    /// Checks that no event of any operation is in progress.
    pub fn all_over(&self, why: &'static str) {
        let mut record = self.record();
        let open: Vec<_> = record.events.iter().filter(|e| e.stops != 1).cloned().collect();
        assert!(open.is_empty(), "{why}, and events are under way: {open:?}");
        let handles: Vec<_> = record.events.iter().map(|e| e.handle).collect();
        record.over.extend(handles.into_iter().map(|handle| (handle, why)));
        drop(record);
        self.checked();
    }

    /// Nothing that NCCL would die of has happened.
    pub fn checked(&self) {
        let record = self.record();
        assert!(record.faults.is_empty(), "{:?}", record.faults);
    }

    pub fn calls(&self) -> usize {
        self.record().calls
    }

    pub fn set(&self, mood: Mood) {
        self.record().mood = mood;
    }
}

impl Record {
    fn started(&mut self, event: Event, said: (i64, u8, usize)) {
        if event.handle == 0 {
            self.faults.push(format!("a start without an operation: {event:?}"));
        }
        if let Some(why) = self.over.get(&event.handle) {
            self.faults.push(format!("a start after {why}: {event:?}"));
        }
        if said != (0x10001, 1, 0) {
            self.faults
                .push(format!("plugin {:#x}, type {}, a place that holds {:#x}", said.0, said.1, said.2));
        }
        self.events.push(event);
    }

    fn stopped(&mut self, kind: c_int, held: usize) {
        let open = held.checked_sub(EVENT).and_then(|i| self.events.get_mut(i)).filter(|e| e.stops == 0);
        match open {
            Some(event) => event.stops += 1,
            None => self.faults.push(format!("the end of {held:#x}, which is no event under way")),
        }
        if kind != 1 {
            self.faults.push(format!("a call of type {kind}"));
        }
    }
}
