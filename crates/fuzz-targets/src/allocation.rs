//! Counts the bytes that each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Returns the bytes that this thread allocates while `f` runs, and the result. Freed bytes count too.
pub(crate) fn of<T>(f: impl FnOnce() -> T) -> (usize, T) {
    let before = BYTES.get();
    let result = f();
    (BYTES.get().wrapping_sub(before), result)
}

fn count(bytes: usize) {
    // Fails only while the thread ends.
    let _ = BYTES.try_with(|sum| sum.set(sum.get().wrapping_add(bytes)));
}

// SAFETY: every call goes to the system's allocator with the same arguments. Counting allocates
// nothing: the variable needs no initialisation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}
