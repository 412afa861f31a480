//! What softcuda does not know, and the end of a rank that meets it.

use std::{io::Write, process};

/// Exit code of a rank that met something unknown.
pub const EXIT_CODE: i32 = 70;

/// Something that NCCL requested and softcuda does not know. The message names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name} is unknown{context}")]
pub struct Unknown {
    what: &'static str,
    name: String,
    context: String,
}

impl Unknown {
    /// Returns an unknown `what` (a noun: "kernel", "device attribute") with its name or number.
    pub fn new(what: &'static str, name: impl ToString) -> Self {
        Self { what, name: name.to_string(), context: String::new() }
    }

    /// Adds where it was found, for instance "in the work of channel 3".
    #[must_use]
    pub fn found(mut self, context: impl ToString) -> Self {
        self.context += &format!(" ({})", context.to_string());
        self
    }
}

/// Writes one line to stderr and ends the process with [`EXIT_CODE`].
///
/// Destructors and exit handlers do not run: NCCL's threads still use the memory.
pub fn end_rank(unknown: &Unknown) -> ! {
    // The process ends in any case; a closed stderr changes nothing.
    let _ = writeln!(std::io::stderr().lock(), "softcuda[{}]: {unknown}", process::id());
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(EXIT_CODE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_name_and_the_place() {
        let unknown = Unknown::new("kernel", "ncclDevKernel_New").found("at launch");
        assert_eq!(unknown.to_string(), "kernel ncclDevKernel_New is unknown (at launch)");
        assert_eq!(Unknown::new("device attribute", 7).to_string(), "device attribute 7 is unknown");
    }
}
