//! The wire protocol: the handle, the frames and messages of the control connection, the layouts of
//! CTS entries, immediates and completion records, and the split of transfers. No I/O, no clock, no
//! unsafe code.
//!
//! Every decoder is total: any bytes are either exactly one value or an error.

#![forbid(unsafe_code)]

mod auth;
mod control_memory;
mod cts;
mod episode;
mod failback;
mod frame;
#[cfg(test)]
mod golden_tests;
mod handle;
mod hello;
mod ids;
mod imm;
mod mailbox;
mod mask;
mod message;
mod one_sided;
mod rail_set;
mod record;
mod redial;
mod release;
#[cfg(test)]
mod rules_tests;
mod search;
mod split;
mod sync;
mod terms;
mod wire;
mod wiring;

pub use auth::{
    Claim, Keys, ListenerId, Secret, Session, TAG_BYTES, Tag, Transcript, ended_commitment, ended_proof,
    same_tag,
};
pub use control_memory::{
    CACHE_LINE, FIFO_BYTES, MAILBOX, MAILBOX_STAGING, RECORDS_BYTES, SCRATCH, SCRATCH_BYTES, SLOTS, Sequence,
    memory_bytes, qp_of_slot, written_bytes,
};
pub use cts::{CTS_BYTES, CTS_WORDS, Cts, CtsError, Head, checksum_of_keys};
pub use episode::{OpenGroup, SenderState, Verdict};
pub use failback::{Attempt, NewRails, Offer, RebuildFailed, Up};
pub use frame::{
    FrameError, HELLO_PREFIX_BYTES, HelloPrefix, MAX_FRAME_BYTES, Peeked, REDIAL_BYTES, hello_of_version,
};
pub use handle::{Addr, HANDLE_BYTES, Handle, HandleError, STATE_OFFSET, is_in_network};
pub use hello::{
    GidKind, Hello, LinkLayer, MAX_OFFERS, MAX_RAIL_ADDRS, Mtu, RailAddr, RailInfo, UnusableRail,
    unusable_gid,
};
pub use ids::{Ends, HostId, RailRole, Role, Subnet, flid};
pub use imm::{Imm, ImmLayout, PROBE_IMM, Replay, SizeQ};
pub use mailbox::{MAX_WRITES, MailState, MailboxError, RING_BYTES};
pub use mask::{Arrivals, Step, Violation, rails};
pub use message::{Message, NO_ANSWER, NO_ROUTE, NOT_TRIED, Numbered, PORT_CHANGED, SRQ_FAILED};
pub use one_sided::{
    COMMAND_BYTES, COMMAND_MESSAGE_BYTES, COMMAND_WORDS, Command, Extent, LinkKind, MAX_CARRIED, Signal, Way,
};
pub use rail_set::RailSet;
pub use record::{RECORD_BYTES, Record, RecordError};
pub use redial::{Callback, MAX_CALLBACK_ADDRS, Redial};
pub use release::Release;
pub use search::{Found, MAX_SEARCH, Search};
pub use split::{Part, SHARE_ONE, SPLIT_ALIGN, Split, Weights};
pub use terms::{MAX_PLAIN_QPS, MAX_RAIL_QPS, Mode, RoutePolicy, Terms};
pub use wire::{DecodeError, HEADER_BYTES, head, printable};
pub use wiring::{Ece, Memory, QpWiring, RouteWiring, Wiring};

/// The maximum number of rails of a connection: a mask is a byte.
pub const MAX_RAILS: usize = 8;
/// The maximum number of receives in a group: the size of CTS groups and completion records.
pub const MAX_RECVS: usize = 8;
/// The version of the protocol. Ends with different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = nccl_net_mpib_agent_iface::WIRE_PROTOCOL;
/// The first bytes of a handle and of a HELLO.
pub(crate) const MAGIC: [u8; 4] = *b"MPIB";
/// Random bytes: a secret, a token or a challenge.
pub type Nonce = [u8; 16];
