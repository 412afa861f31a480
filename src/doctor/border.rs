//! The doctor's C functions. They know nothing of the documents' content.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

/// Reports what the plugin would do on this host, with the environment of this process, as a JSON
/// document (`nccl_net_mpib_agent_iface::doctor::Report`). May be called at any time, also before
/// init or if init fails. Changes nothing that NCCL uses, and logs nothing.
///
/// Returns the size of the whole document in bytes, its NUL included, and writes as much of it as
/// `cap` has room for, NUL-terminated. If the document was cut, call again with more room, and
/// check the new return value: the host may have changed. Returns 0 if there is no document, which
/// is a bug in this plugin.
///
/// # Safety
/// `out` is writable for `cap` bytes; it may be NULL where `cap` is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mpib_doctor_v1(out: *mut c_char, cap: usize) -> usize {
    let document = caught(|| serde_json::to_vec(&super::report()).ok());
    // SAFETY: the caller's promise.
    unsafe { give(document, out, cap) }
}

/// Reports which ports of this host, whose report is `ours`, reach which of the host whose report
/// is `theirs`, as a JSON document (`nccl_net_mpib_agent_iface::doctor::Routes`). Both ends of a
/// connection run the same code. `ours` and `theirs` are the `hello` fields of the two reports, in
/// hexadecimal, and are not trusted. Returns and writes like [`mpib_doctor_v1`].
///
/// # Safety
/// `ours` and `theirs` are readable for `ours_len` and `theirs_len` bytes, `out` is writable for
/// `cap`. Each may be NULL if its length is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mpib_doctor_routes_v1(
    ours: *const c_char,
    ours_len: usize,
    theirs: *const c_char,
    theirs_len: usize,
    out: *mut c_char,
    cap: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let (ours, theirs) = unsafe { (bytes(ours, ours_len), bytes(theirs, theirs_len)) };
    let document = caught(|| serde_json::to_vec(&super::routes(ours, theirs)).ok());
    // SAFETY: the caller's promise.
    unsafe { give(document, out, cap) }
}

/// # Safety
/// `text` is readable for `len` bytes and stays so for as long as the slice is used; it may be NULL
/// where `len` is 0.
unsafe fn bytes<'a>(text: *const c_char, len: usize) -> &'a [u8] {
    if text.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: readable for `len` bytes (the caller's promise), and bytes have no alignment.
    unsafe { slice::from_raw_parts(text.cast(), len) }
}

/// Returns `None` if `make` panics or has no document.
fn caught(make: impl FnOnce() -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(document) => document,
        Err(payload) => {
            // A payload may panic again when it is dropped, and is leaked.
            std::mem::forget(payload);
            None
        }
    }
}

/// Copies a document to C memory.
///
/// # Safety
/// `out` is writable for `cap` bytes; it may be NULL where `cap` is 0.
unsafe fn give(document: Option<Vec<u8>>, out: *mut c_char, cap: usize) -> usize {
    let Some(document) = document else { return 0 };
    if !out.is_null() && cap > 0 {
        // SAFETY: writable for `cap` bytes (the caller's promise), and bytes have no alignment.
        let room = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), cap) };
        let n = document.len().min(cap - 1);
        room[..n].copy_from_slice(&document[..n]);
        room[n] = 0;
    }
    document.len() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_without_room_is_cut_and_its_size_returned() {
        for (cap, expected) in [(0, &b"####"[..]), (1, b"\0###"), (3, b"ab\0#"), (4, b"abc\0")] {
            let mut room = *b"####";
            // SAFETY: at least `cap` bytes.
            let needed = unsafe { give(Some(b"abc".to_vec()), room.as_mut_ptr().cast(), cap) };
            assert_eq!((needed, &room[..]), (4, expected), "{cap}");
        }
        // SAFETY: NULL where there is no room.
        assert_eq!(unsafe { give(Some(b"abc".to_vec()), std::ptr::null_mut(), 0) }, 4);
    }

    //= faults.md: 72
    #[test]
    fn a_panic_is_no_document() {
        let none = caught(|| panic!("doctor test"));
        let mut room = *b"##";
        // SAFETY: two bytes.
        assert_eq!(unsafe { give(none, room.as_mut_ptr().cast(), 2) }, 0);
        assert_eq!(&room, b"##");
    }
}
