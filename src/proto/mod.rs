//! The wire protocol: the handle, the frames and messages of the control connection, the layouts of
//! CTS entries, immediates and completion records, and the split of transfers. No I/O, no clock, no
//! unsafe code.
//!
//! Every decoder is total: any bytes are either exactly one value or an error.

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
mod terms;
mod wire;
mod wiring;

pub use auth::{Claim, Keys, Secret, Session, TAG_BYTES, Transcript, ended_commitment};
pub(crate) use auth::{ListenerId, Tag, ended_proof, same_tag};
pub use control_memory::{
    CACHE_LINE, FIFO_BYTES, SCRATCH, Sequence, memory_bytes, qp_of_slot, written_bytes,
};
pub(crate) use control_memory::{MAILBOX, MAILBOX_STAGING, RECORDS_BYTES, SCRATCH_BYTES, SLOTS};
pub(crate) use cts::CtsError;
pub use cts::{CTS_BYTES, Cts};
pub(crate) use cts::{CTS_WORDS, Head, checksum_of_keys};
pub use episode::{OpenGroup, SenderState, Verdict};
pub use failback::{Attempt, NewRails, Offer, RebuildFailed, Up};
pub use frame::{FrameError, HELLO_PREFIX_BYTES, HelloPrefix, MAX_FRAME_BYTES, Peeked};
pub(crate) use frame::{REDIAL_BYTES, hello_of_version};
pub use handle::{Addr, HANDLE_BYTES, Handle, STATE_OFFSET};
pub(crate) use handle::{HandleError, is_in_network};
pub use hello::{GidKind, Hello, LinkLayer, Mtu, RailAddr, RailInfo, UnusableRail};
pub(crate) use hello::{MAX_OFFERS, MAX_RAIL_ADDRS, unusable_gid};
pub use ids::{Ends, RailRole, Role};
pub(crate) use ids::{HostId, Subnet, flid};
pub(crate) use imm::Imm;
pub use imm::{ImmLayout, PROBE_IMM, Replay, SizeQ};
pub(crate) use mailbox::MAX_WRITES;
pub use mailbox::{MailState, MailboxError, RING_BYTES};
pub(crate) use mask::{Arrivals, Step, Violation, rails};
pub use message::{Message, Numbered};
pub(crate) use message::{NO_ANSWER, NO_ROUTE, NOT_TRIED, PORT_CHANGED, SRQ_FAILED};
pub(crate) use one_sided::COMMAND_MESSAGE_BYTES;
pub use one_sided::{COMMAND_BYTES, COMMAND_WORDS, Command, Extent, LinkKind, MAX_CARRIED, Signal, Way};
pub(crate) use rail_set::RailSet;
pub use record::RECORD_BYTES;
pub(crate) use record::{Record, RecordError};
pub(crate) use redial::MAX_CALLBACK_ADDRS;
pub use redial::{Callback, Redial};
pub use release::Release;
pub(crate) use search::MAX_SEARCH;
pub use search::{Found, Search};
pub(crate) use split::{Part, SHARE_ONE, SPLIT_ALIGN, Split, Weights};
pub(crate) use terms::{MAX_PLAIN_QPS, MAX_RAIL_QPS};
pub use terms::{Mode, RoutePolicy, Terms};
pub(crate) use wire::{DecodeError, head};
pub use wire::{HEADER_BYTES, printable};
pub(crate) use wiring::Ece;
pub use wiring::{Memory, QpWiring, RouteWiring, Wiring};

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
