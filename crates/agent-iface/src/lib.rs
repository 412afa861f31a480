//! What the plugin and its agent say to each other.
//!
//! An agent is a process of the same host that knows the fabrics. It tells the plugin, per pair of hosts, which part of
//! each transfer goes on the scale-up rail (SUP); the rest goes on the scale-out rail (SOUT). Two things join them:
//!
//! - a Unix stream socket, [`SOCKET_PATH`], on which the plugin registers each connection and learns the slot of its
//!   hint ([`Request`], [`Response`]);
//! - the hint file, [`HINTS_PATH`], which the agent writes ([`HintsWriter`]) and the plugin reads ([`Hint`], [`settle`]).
//!
//! All integers are little-endian but IPv4 addresses, which stand in network byte order, as [`Ipv4Addr::octets`] gives them.
//!
//! # An agent, step by step
//!
//! 1. [`HintsWriter::create`] puts an empty hint file in place; only then listen on the socket, so that whoever
//!    registers finds the file.
//! 2. For each connection keep the bytes that have come, and take messages off their front with [`Request::decode`].
//!    `Ok(None)` means that more bytes are needed; an error, that the peer is no plugin: close.
//! 3. Answer each request, in order, with one [`Response`]: a response names no connection, its place does.
//!    REGISTER gets a slot, of which [`HintsWriter::assign`] tells the addresses *before* the answer is sent.
//!    Connections with the same SOUT addresses should share one slot: there are only [`ENTRIES`].
//! 4. [`HintsWriter::set`] whenever the wanted share changes.
//! 5. Free a slot when its last connection deregisters, or when its socket closes: a killed process does not deregister.
//!    Key connections by (socket, `conn_id`), not by `conn_id` alone: it is unique within a process only.
//!
//! A restarted agent does the same from the start. It owes nothing to slots given before: the plugin registers every connection again.
//!
//! # What tools read
//!
//! Each process with the plugin keeps counters in a page that other processes map: [`stats`]. What the plugin finds on a host it
//! tells in a document: [`doctor`].
//!
//! [`Ipv4Addr::octets`]: std::net::Ipv4Addr::octets

pub mod agent;
pub mod doctor;
pub mod stats;
