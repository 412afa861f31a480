//! The counters as JSON, for programs in other languages.

use crate::process::counters::counters;

/// [`counters()`] as JSON: `[{"device":NAME,"writes":N,…,"qps":[{"qpn":N,"writes":N,…},…]},…]`.
pub(crate) fn json() -> String {
    let devices = counters().into_iter().map(|device| {
        let qps = device.qps.iter().map(|qp| format!("{{\"qpn\":{},{}}}", qp.qpn, qp.counters.json()));
        let qps = qps.collect::<Vec<_>>().join(",");
        // Names are letters, digits and the like: nothing to escape that `Debug` would not.
        format!("{{\"device\":{:?},{},\"qps\":[{qps}]}}", device.name, device.total.json())
    });
    format!("[{}]", devices.collect::<Vec<_>>().join(","))
}

/// Writes the counters as a NUL-terminated JSON text and returns the bytes needed with the NUL; a text that
/// does not fit into `len` is cut, so call again with more.
///
/// # Safety
/// `buf` is writable for `len` bytes; it may be null where `len` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_counters_json(buf: *mut std::ffi::c_char, len: usize) -> usize {
    let text = std::panic::catch_unwind(json).unwrap_or_default();
    if len > 0 && !buf.is_null() {
        let n = text.len().min(len - 1);
        // SAFETY: `n` bytes and the NUL fit into `len`, and a fresh string does not overlap the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), n);
            buf.add(n).write(0);
        }
    }
    text.len() + 1
}
