//! What two plugins say to each other, as arithmetic: no I/O, no clock, no unsafe code.
//!
//! Every decoder is total: any bytes give either exactly one value or a reason for refusal.

mod cts;
mod ends;
mod frame;
mod handle;
mod hello;
mod imm;
mod mask;
mod message;
mod record;
mod role;
#[cfg(test)]
mod rules_tests;
mod slot;
mod split;
mod terms;
mod text;
mod wire;

pub use cts::{CTS_BYTES, CTS_WORDS, Cts, CtsError, Head};
pub use ends::{Ends, Role};
pub use frame::{FrameError, HEADER_BYTES, HELLO_PREFIX_BYTES, HelloPrefix, MAX_FRAME_BYTES, Peeked};
pub use handle::{Addr, HANDLE_BYTES, Handle, HandleError, STATE_OFFSET};
pub use hello::{GidKind, Hello, LinkLayer, LostRail, MAX_OFFERS, MAX_RAIL_ADDRS, Mtu, RailAddr, RailInfo};
pub use imm::{Imm, ImmLayout, SizeQ};
pub use mask::{Arrivals, Step, Violation, rails};
pub use message::{Ece, Memory, Message, QpWiring, RouteWiring, Wiring};
pub use record::{RECORD_BYTES, Record, RecordError};
pub use role::RailRole;
pub use slot::{CACHE_LINE, FIFO_BYTES, RECORDS_BYTES, SLOTS, Sequence, qp_of_slot};
pub use split::{Part, SHARE_ONE, SPLIT_ALIGN, Split};
pub use terms::{MAX_PLAIN_QPS, MAX_RAIL_QPS, Mode, RoutePolicy, Terms};
pub(crate) use text::head;
pub use text::printable;
pub use wire::DecodeError;

/// Most rails in a connection: a mask is a byte.
pub const MAX_RAILS: usize = 8;
/// Most receives that share a slot; the CTS entry and the completion record have room for these.
pub const MAX_RECVS: usize = 8;
/// Says which rules both ends follow. Ends of different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 6;
/// First bytes of a handle and of a HELLO.
pub const MAGIC: [u8; 4] = *b"MPIB";
/// Random bytes that only those know who were given the handle.
pub type Nonce = [u8; 16];
