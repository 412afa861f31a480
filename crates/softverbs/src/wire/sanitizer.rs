//! What the sanitizers see of copies. The kernel moves the bytes (`process_vm_writev`), which a NIC
//! does by DMA. A sanitizer sees the local end of that system call alone. In a build with a
//! sanitizer, `build.rs` sets the cfg `sanitizer`, and this module shows the other end, if it is in
//! this process:
//!
//! - AddressSanitizer: an access to each remote range, so a write into freed memory is reported.
//! - ThreadSanitizer: ordinary loads from the source and atomic stores to the target, word by word
//!   in the order of addresses. That is what the target may rely on: a program that polls a word
//!   atomically sees all words before it. A program that reads the target as plain memory needs the
//!   order of a completion, else the read is a data race.
//!   An aligned word alone is loaded atomically: a NIC reads it at once, so the program may change
//!   it atomically while the request is in flight. The source of any other request may not change.

use crate::wire::copy::{Direction, Pieces};

/// Whether copies inside this process are made by [`store`] instead of the kernel.
pub(super) const STORES: bool = cfg!(sanitizer = "thread");

/// Shows AddressSanitizer the remote end of a copy inside this process.
#[cfg(sanitizer = "address")]
pub(super) fn access(direction: Direction, remote: &Pieces) {
    unsafe extern "C" {
        fn __asan_loadN(addr: usize, len: usize);
        fn __asan_storeN(addr: usize, len: usize);
    }
    for piece in remote.as_slice() {
        let (addr, len) = (piece.iov_base.addr(), piece.iov_len);
        // SAFETY: the functions look up whether the range may be accessed, and report it if not.
        unsafe {
            match direction {
                Direction::Write => __asan_storeN(addr, len),
                Direction::Read => __asan_loadN(addr, len),
            }
        }
    }
}

/// Does nothing without AddressSanitizer.
#[cfg(not(sanitizer = "address"))]
pub(super) fn access(_: Direction, _: &Pieces) {}

/// Copies `n` bytes as [`STORES`] has it.
///
/// # Safety
/// Both ranges are mapped, and the target writable. They do not overlap.
pub(super) unsafe fn store(from: *const u8, to: *mut u8, n: usize) {
    use std::sync::atomic::Ordering::{Relaxed, Release};
    use std::sync::atomic::{AtomicU8, AtomicU64};

    const WORD: usize = size_of::<u64>();
    let alone = n == WORD && from.addr().is_multiple_of(WORD);
    let mut at = 0;
    while at < n {
        // SAFETY: inside of both ranges, as the caller promises. A word of the target is aligned, and
        // so is a source that is a word alone.
        unsafe {
            if to.addr().wrapping_add(at) % WORD == 0 && n - at >= WORD {
                let value = match alone {
                    true => (*from.cast::<AtomicU64>()).load(Relaxed),
                    false => from.add(at).cast::<u64>().read_unaligned(),
                };
                (*to.add(at).cast::<AtomicU64>()).store(value, Release);
                at += WORD;
            } else {
                (*to.add(at).cast::<AtomicU8>()).store(from.add(at).read(), Release);
                at += 1;
            }
        }
    }
}
