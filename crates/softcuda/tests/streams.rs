//! Operations of a stream on values in memory, as NCCL finds and calls them.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr::null_mut,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
};

use softcuda::unknown::EXIT_CODE;

use super::attach::{Loaded, again_of, attach, inside, passed, three_devices};

const NOT_READY: c_int = 600;
const INVALID_VALUE: c_int = 1;

// The driver's functions that softcuda exports.
unsafe extern "C" {
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *const c_void,
        version: c_int,
        flags: c_ulonglong,
        result: *mut c_int,
    ) -> c_int;
    fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) -> c_int;
    fn cuStreamQuery(stream: *mut c_void) -> c_int;
    fn cuStreamSynchronize(stream: *mut c_void) -> c_int;
}

/// `CUstreamBatchMemOpParams` of a wait or a write.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Operation {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    alias: u64,
    reserved: u64,
}

const WAIT_32: c_uint = 1;
const WRITE_32: c_uint = 2;
const WAIT_64: c_uint = 4;
const WRITE_64: c_uint = 5;
const BARRIER: c_uint = 6;

fn operation<T>(operation: c_uint, cell: &T, value: u64, flags: c_uint) -> Operation {
    let address = (&raw const *cell).expose_provenance() as u64;
    Operation { operation, address, value, flags, alias: 0, reserved: 0 }
}

type Batch = unsafe extern "C" fn(*mut c_void, c_uint, *const Operation, c_uint) -> c_int;

/// A stream in a process with softcuda.
struct Stream {
    raw: *mut c_void,
    batch: Batch,
    _library: Loaded,
}

impl Stream {
    /// Attaches softcuda and creates a stream.
    fn new(library: &std::path::Path) -> Self {
        let loaded = Loaded::open(library);
        assert_eq!(attach(library, &three_devices()), 0);
        let (mut raw, mut function, mut result) = (null_mut(), std::ptr::null(), -1);
        let name: &CStr = c"cuStreamBatchMemOp";
        // SAFETY: a C string and places for results.
        unsafe {
            assert_eq!(cuStreamCreate(&raw mut raw, 1), 0);
            let found = cuGetProcAddress_v2(name.as_ptr(), &raw mut function, 11_070, 0, &raw mut result);
            assert_eq!((found, result), (0, 0));
        }
        // SAFETY: the function of cuda.h, whose signature the type has.
        let batch = unsafe { std::mem::transmute::<*const c_void, Batch>(function) };
        Self { raw, batch, _library: loaded }
    }

    fn add(&self, operations: &[Operation]) {
        // SAFETY: this stream; the cells stay until it is done.
        let code = unsafe { (self.batch)(self.raw, operations.len() as c_uint, operations.as_ptr(), 0) };
        assert_eq!(code, 0);
    }

    /// Returns whether the stream is done, after three jobs of a later one. They take a round of the
    /// polling thread each, in which this stream comes first, and its jobs are done if they can be.
    fn is_done(&self) -> bool {
        let mut later = null_mut();
        let cell = AtomicU32::new(0);
        // SAFETY: a place for a stream.
        assert_eq!(unsafe { cuStreamCreate(&raw mut later, 1) }, 0);
        for value in 1..=3 {
            // SAFETY: a stream; the cell stays until it is synchronized.
            unsafe {
                assert_eq!((self.batch)(later, 1, &operation(WRITE_32, &cell, value, 0), 0), 0);
                assert_eq!(cuStreamSynchronize(later), 0);
            }
        }
        // SAFETY: this stream.
        match unsafe { cuStreamQuery(self.raw) } {
            NOT_READY => false,
            code => {
                assert_eq!(code, 0);
                true
            }
        }
    }
}

#[test]
fn a_batch_waits_and_writes_in_its_order() {
    let Some(path) = inside() else {
        return passed(&again_of("streams", "a_batch_waits_and_writes_in_its_order", &[]));
    };
    let stream = Stream::new(&path);
    let (first, second) = (AtomicU32::new(0xffff_fff0), AtomicU64::new(0));
    // The neighbour of a written value of 32 bits stays.
    let pair = [AtomicU32::new(1), AtomicU32::new(2)];
    stream.add(&[
        // As signed numbers 0xfffffff0 is less than 3.
        operation(WAIT_32, &first, 3, 0),
        operation(WRITE_32, &pair[0], 0xdead_beef_0000_0007, 1),
        operation(BARRIER, &first, 0, 0),
        operation(WAIT_64, &second, 1 << 40, 1),
        operation(WRITE_64, &second, u64::MAX, 0),
    ]);
    assert!(!stream.is_done());
    assert_eq!(pair[0].load(SeqCst), 1);
    first.store(4, SeqCst);
    // The stream's thread writes.
    while pair[0].load(SeqCst) == 1 {
        std::thread::yield_now();
    }
    assert!(!stream.is_done());
    assert_eq!((pair[0].load(SeqCst), pair[1].load(SeqCst)), (7, 2));
    second.store(1 << 40, SeqCst);
    assert!(stream.is_done());
    assert_eq!(second.load(SeqCst), u64::MAX);
}

#[test]
fn each_condition_holds_when_cuda_says_so() {
    let Some(path) = inside() else {
        return passed(&again_of("streams", "each_condition_holds_when_cuda_says_so", &[]));
    };
    let stream = Stream::new(&path);
    let (and, equal, nor) = (2, 1, 3);
    // Of values of 32 bits, the upper half is not a part of the value.
    let noise = 0x1234_5678_0000_0000;
    for (flags, wanted, too_early, right) in [
        (0, 5, 4, 6),
        (equal, 5, 6, 5),
        (and, 6, 9, 2),
        (nor, 0xffff_fff0, 0xf, 0xe),
        // The option of flushing remote writes changes nothing.
        (1 << 30 | equal, 5, 6, 5),
    ] {
        let cell = AtomicU32::new(too_early);
        stream.add(&[operation(WAIT_32, &cell, noise | wanted, flags)]);
        assert!(!stream.is_done(), "{flags}");
        cell.store(right, SeqCst);
        assert!(stream.is_done(), "{flags}");
    }
    for (flags, wanted, too_early, right) in [
        (0, 5 << 32, 6, 5 << 32),
        (equal, 5 << 32, 0, 5 << 32),
        (and, 1 << 63, 1, 1 << 63),
        (nor, u64::MAX >> 1, u64::MAX, 1),
    ] {
        let cell = AtomicU64::new(too_early);
        stream.add(&[operation(WAIT_64, &cell, wanted, flags)]);
        assert!(!stream.is_done(), "{flags} of 64 bits");
        cell.store(right, SeqCst);
        assert!(stream.is_done(), "{flags}");
    }
}

#[test]
fn an_operation_that_softcuda_lacks_ends_the_process_with_its_number() {
    let test = "an_operation_that_softcuda_lacks_ends_the_process_with_its_number";
    let Some(path) = inside() else {
        let output = again_of("streams", test, &[]);
        assert_eq!(output.status.code(), Some(EXIT_CODE));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("operation of cuStreamBatchMemOp 3 is unknown"), "{text}");
        return;
    };
    let stream = Stream::new(&path);
    // SAFETY: no operations, which the function must refuse to read.
    assert_eq!(unsafe { (stream.batch)(stream.raw, 1, std::ptr::null(), 0) }, INVALID_VALUE);
    stream.add(&[operation(3, &AtomicU32::new(0), 0, 0)]);
    panic!("the process goes on");
}
