//! An operation of NCCL's in words.

use mpib_host_view::Operation;

use crate::output::units::{decimal, duration};

/// Formats what an operation took: `AllReduce of 32.00 MB took 812.0 ms, 4.1 times the usual 198.0 ms`.
pub(crate) fn operation(operation: &Operation) -> String {
    let bytes = operation.bytes.map_or(String::new(), |bytes| format!(" of {}", decimal(bytes.0)));
    let time = |ms: f64| duration((ms * 1e6) as u64);
    let Some(took) = operation.took_ms else { return format!("{}{bytes} is not over", operation.name) };
    let usual = operation
        .usual_ms
        .filter(|usual| *usual > 0.0)
        .map_or(String::new(), |usual| format!(", {:.1} times the usual {}", took / usual, time(usual)));
    format!("{}{bytes} took {}{usual}", operation.name, time(took))
}
