//! The agent's contract: registration messages on a socket, and the hint file.
//!
//! - On the Unix stream socket [`SOCKET_PATH`] the plugin registers each connection and receives
//!   the slot of its hint ([`Request`], [`Response`]).
//! - The agent writes the hint file [`HINTS_PATH`] ([`HintsWriter`]), and the plugin reads it
//!   ([`Hint`], [`snapshot`]).
//!
//! All integers are little-endian, except IPv4 addresses: these are in network byte order, as
//! [`Ipv4Addr::octets`] returns them.
//!
//! # An agent, step by step
//!
//! 1. Create the hint file with [`HintsWriter::create`], and only then listen on the socket. A
//!    plugin that registers must find the file.
//! 2. For each connection of the socket, append received bytes to a buffer and decode messages from
//!    its front with [`Request::decode`]. `Ok(None)` means that more bytes are needed. An error
//!    means that the peer is not a plugin: close the connection.
//! 3. Answer each request with one [`Response`], in order. A response carries no connection number;
//!    its position identifies the request.
//! 4. Give each REGISTER a slot, and call [`HintsWriter::assign`] *before* sending the response.
//!    Let connections with the same SOUT addresses share one slot: there are only [`ENTRIES`].
//! 5. Call [`HintsWriter::set`] whenever the wanted share changes.
//! 6. Free a slot when its last connection deregisters, and also when the socket closes: a killed
//!    process does not deregister. Identify connections by (socket, `conn_id`): `conn_id` is unique
//!    within one process only.
//!
//! # Beyond the hint file
//!
//! An agent can pass each plugin a [memory file](memory) instead. A new share then takes effect at
//! the next transfer, the plugin does not have to read a file a thousand times a second, a process
//! sees no flow of another, and ports can be scaled. `mpib agent` does that.
//!
//! A restarted agent starts again at step 1. Slots of its predecessor mean nothing to it, because
//! the plugin registers every connection again.
//!
//! The core of an agent that gives every connection the same share:
//!
//! ```
//! use std::io::{self, Read, Write};
//! use std::os::unix::net::UnixStream;
//!
//! use nccl_net_mpib_agent_iface::agent::{HintsWriter, Request, Response, Status};
//!
//! /// Answers one plugin until it closes the socket. All its connections use slot 0.
//! fn serve(mut plugin: UnixStream, hints: &mut HintsWriter, share: u16) -> io::Result<()> {
//!     let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
//!     loop {
//!         let n = plugin.read(&mut buffer)?;
//!         if n == 0 {
//!             return Ok(());
//!         }
//!         received.extend_from_slice(&buffer[..n]);
//!         while let Some((request, len)) = Request::decode(&received).map_err(io::Error::other)? {
//!             received.drain(..len);
//!             let status = Status::SUCCESS;
//!             let response = match request {
//!                 Request::Register(connection) => {
//!                     hints.assign(0, connection.sout_src, connection.sout_dst);
//!                     hints.set(0, share);
//!                     Response::Registered { status, slot: 0 }
//!                 }
//!                 Request::Deregister { .. } | Request::Attach => Response::Deregistered { status },
//!             };
//!             let (bytes, len) = response.encode();
//!             plugin.write_all(&bytes[..len])?;
//!         }
//!     }
//! }
//!
//! # use std::net::Ipv4Addr;
//! # use nccl_net_mpib_agent_iface::agent::Register;
//! # fn main() -> io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! let mut hints = HintsWriter::create(dir.path().join("hints"))?;
//! let (mut plugin, socket) = UnixStream::pair()?;
//! # let [src, dst] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
//! # let (sout_src, sout_dst, sup_src, sup_dst) = (src, dst, src, dst);
//! // The plugin's end of the socket:
//! let request = Request::Register(Register { conn_id: 1, sout_src, sout_dst, sup_src, sup_dst });
//! let (bytes, len) = request.encode();
//! plugin.write_all(&bytes[..len])?;
//! plugin.shutdown(std::net::Shutdown::Write)?;
//!
//! serve(socket, &mut hints, 341)?;
//!
//! let mut bytes = Vec::new();
//! plugin.read_to_end(&mut bytes)?;
//! let (response, _) = Response::decode(&bytes).unwrap().unwrap();
//! assert_eq!(response, Response::Registered { status: Status::SUCCESS, slot: 0 });
//! assert_eq!((hints.hint(0).dst, hints.hint(0).share()), (sout_dst, 341));
//! # Ok(())
//! # }
//! ```
//!
//! [`Ipv4Addr::octets`]: std::net::Ipv4Addr::octets

#[cfg(not(loom))]
mod connect;
mod hints;
#[cfg(not(loom))]
pub mod memory;
mod message;
#[cfg(not(loom))]
pub mod passing;
pub mod paths;
mod seqlock;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use connect::{NoAgent, connect};
pub use hints::{
    BadHeader, ENTRIES, ENTRY_SIZE, HEADER_SIZE, HINTS_MAGIC, HINTS_SIZE, Hint, SHARE_ONE, check_header,
    entry_offset, header,
};
pub use message::{
    IN_MEMORY, MESSAGE_MAGIC, MESSAGE_MAX, Malformed, Register, Request, Response, Status, TAKES_MEMORY,
    flags,
};
pub use seqlock::{Entry, PORT_NAME_MAX, PortEntry, PortScale, Snapshot, snapshot};
#[cfg(not(loom))]
pub use writer::HintsWriter;

/// Path of the hint file in the folder where agents were expected first.
pub const HINTS_PATH: &str = "/tmp/mpib/hints";

/// Path of the agent's socket in the folder where agents were expected first. Plugins look there
/// last; see [`paths::folders`].
pub const SOCKET_PATH: &str = "/tmp/mpib/agent.sock";
