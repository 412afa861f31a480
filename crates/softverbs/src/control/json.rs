//! The counters as JSON, for programs in other languages.

use crate::process::counters::counters;

/// Returns [`counters()`] as JSON:
/// `[{"device":NAME,"writes":N,…,"qps":[{"qpn":N,"writes":N,…},…]},…]`.
pub(crate) fn json() -> String {
    let devices = counters().into_iter().map(|device| {
        let qps = device.qps.iter().map(|qp| format!("{{\"qpn\":{},{}}}", qp.qpn, qp.counters.json()));
        let qps = qps.collect::<Vec<_>>().join(",");
        // Device names contain no character that JSON and `Debug` escape differently.
        format!("{{\"device\":{:?},{},\"qps\":[{qps}]}}", device.name, device.total.json())
    });
    format!("[{}]", devices.collect::<Vec<_>>().join(","))
}

/// Writes the counters as NUL-terminated JSON and returns the number of bytes needed, including the
/// NUL. If the result exceeds `len`, the text is truncated: call again with a larger buffer.
///
/// # Safety
/// `buf` is writable for `len` bytes. It may be null if `len` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_counters_json(buf: *mut std::ffi::c_char, len: usize) -> usize {
    let text = std::panic::catch_unwind(json).unwrap_or_default();
    if len > 0 && !buf.is_null() {
        let n = text.len().min(len - 1);
        // SAFETY: `n` bytes and the NUL fit into `len`, and a fresh string does not overlap the
        // buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), n);
            buf.add(n).write(0);
        }
    }
    text.len() + 1
}
