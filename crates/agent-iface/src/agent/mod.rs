//! The agent's contract: registration messages and the hint file.

mod hints;
mod message;
mod seqlock;
#[cfg(not(loom))]
mod writer;

pub use hints::{
    BadHeader, ENTRIES, ENTRY_SIZE, HEADER_SIZE, HINTS_MAGIC, HINTS_SIZE, Hint, SHARE_ONE, check_header,
    entry_offset, header,
};
pub use message::{MESSAGE_MAGIC, MESSAGE_MAX, Malformed, Register, Request, Response, Status};
pub use seqlock::{Entry, Snapshot, snapshot};
#[cfg(not(loom))]
pub use writer::HintsWriter;

/// Default path of the hint file.
pub const HINTS_PATH: &str = "/tmp/mpib/hints";

/// Default path of the agent's socket.
pub const SOCKET_PATH: &str = "/tmp/mpib/agent.sock";
