//! The jobs of a stream.

use std::{
    ffi::c_void,
    fmt, ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::Mark;

/// What one step of a job did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The job has finished.
    Done,
    /// The job went on and has more to do.
    Moved,
    /// The job waits for another thread or process.
    Waiting,
}

/// A job that runs in steps. A step does not block.
pub(crate) trait Steps: Send {
    fn step(&mut self) -> Progress;
}

/// A function of the program, which may block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFunction {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) argument: *mut c_void,
}

// SAFETY: the program passed the argument for use on another thread.
unsafe impl Send for HostFunction {}

impl HostFunction {
    /// Calls the function.
    pub(super) fn call(self) {
        // SAFETY: the function and its argument belong together, by the contract of
        // cudaLaunchHostFunc; the stream calls it once.
        unsafe { (self.function)(self.argument) }
    }
}

/// A job.
pub(crate) enum Job {
    /// Runs in steps on the thread that polls.
    Steps(Box<dyn Steps>),
    /// Runs on the thread for functions of the program.
    Host(HostFunction),
    /// Waits for another stream.
    Await(Mark),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(_) => f.write_str("Steps"),
            Self::Host(function) => function.fmt(f),
            Self::Await(mark) => mark.fmt(f),
        }
    }
}

/// A job of one step.
struct Once<F>(Option<F>);

impl<F: FnOnce() + Send> Steps for Once<F> {
    fn step(&mut self) -> Progress {
        if let Some(run) = self.0.take() {
            run();
        }
        Progress::Done
    }
}

/// A job that waits until a condition holds.
struct Until<F>(F);

impl<F: FnMut() -> bool + Send> Steps for Until<F> {
    fn step(&mut self) -> Progress {
        if (self.0)() { Progress::Done } else { Progress::Waiting }
    }
}

/// The condition of `cuStreamWaitValue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The value in memory minus the wanted one, as a signed number, is not negative.
    GreaterOrEqual,
    Equal,
    And,
    Nor,
}

impl Condition {
    fn holds<const BITS: u32>(self, value: u64, wanted: u64) -> bool {
        let sign = 1_u64 << (BITS - 1);
        match self {
            Self::GreaterOrEqual => value.wrapping_sub(wanted) & sign == 0,
            Self::Equal => value == wanted,
            Self::And => value & wanted != 0,
            Self::Nor => !(value | wanted) & (sign | (sign - 1)) != 0,
        }
    }
}

impl Job {
    fn once(run: impl FnOnce() + Send + 'static) -> Self {
        Self::Steps(Box::new(Once(Some(run))))
    }

    /// Copies bytes, which may overlap.
    ///
    /// # Safety
    ///
    /// Both ranges must be valid until the job has finished.
    pub(crate) unsafe fn copy(to: usize, from: usize, len: usize) -> Self {
        Self::once(move || {
            // SAFETY: both ranges are valid (caller).
            unsafe {
                ptr::copy::<u8>(
                    ptr::with_exposed_provenance(from),
                    ptr::with_exposed_provenance_mut(to),
                    len,
                );
            }
        })
    }

    /// Writes bytes.
    ///
    /// # Safety
    ///
    /// The range at `to` must be valid until the job has finished.
    pub(crate) unsafe fn write(to: usize, bytes: Box<[u8]>) -> Self {
        Self::once(move || {
            let to = ptr::with_exposed_provenance_mut(to);
            // SAFETY: the destination is valid (caller); the source is owned by the job.
            unsafe { ptr::copy_nonoverlapping::<u8>(bytes.as_ptr(), to, bytes.len()) }
        })
    }

    /// Fills bytes with a value.
    ///
    /// # Safety
    ///
    /// The range must be valid until the job has finished.
    pub(crate) unsafe fn fill(to: usize, value: u8, len: usize) -> Self {
        Self::once(move || {
            // SAFETY: the range is valid (caller).
            unsafe { ptr::write_bytes::<u8>(ptr::with_exposed_provenance_mut(to), value, len) }
        })
    }

    /// Runs a closure.
    pub(crate) fn run(run: impl FnOnce() + Send + 'static) -> Self {
        Self::once(run)
    }

    /// Stores a value of 32 or 64 bits.
    ///
    /// # Safety
    ///
    /// The aligned address must be valid until the job has finished.
    pub(crate) unsafe fn store<const BITS: u32>(to: usize, value: u64) -> Self {
        Self::once(move || {
            if BITS == 32 {
                // SAFETY: valid and aligned (caller).
                let cell = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(to)) };
                cell.store(value as u32, Ordering::Release);
            } else {
                // SAFETY: as above.
                let cell = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(to)) };
                cell.store(value, Ordering::Release);
            }
        })
    }

    /// Waits until a value of 32 or 64 bits meets a condition.
    ///
    /// # Safety
    ///
    /// The aligned address must be valid until the job has finished.
    pub(crate) unsafe fn until<const BITS: u32>(at: usize, wanted: u64, condition: Condition) -> Self {
        Self::Steps(Box::new(Until(move || {
            let value = if BITS == 32 {
                // SAFETY: valid and aligned (caller).
                let cell = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(at)) };
                u64::from(cell.load(Ordering::Acquire))
            } else {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(at)) }.load(Ordering::Acquire)
            };
            condition.holds::<BITS>(value, wanted)
        })))
    }
}
