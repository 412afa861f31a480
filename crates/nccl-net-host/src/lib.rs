//! The host's side of the NCCL network-plugin interface: calls any plugin, through any table from
//! v6 to v12, as NCCL's core calls it.
//!
//! For tests, benchmarks and tools of plugins. A plugin is a file ([`Plugin`]) or a static table in
//! the same process ([`Table::from_static`]). The differences between the versions are hidden where
//! NCCL hides them from its transports: the configuration of a communicator, the profiler's
//! callback, widths of sizes, virtual devices, optional receives.
//!
//! # Life cycle
//!
//! 1. [`Plugin::open`] loads the file; [`Plugin::table`] returns one version's table.
//! 2. [`Net::init`] calls `init` with [`Settings`]. [`Net::devices`] and [`Net::properties`]
//!    describe the devices.
//! 3. [`Net::listen`] returns a [`Listener`]. Its [`Handle`] goes to the peer, over any channel.
//! 4. The peer polls [`Net::connect`] for a [`SendComm`], this end polls [`Listener::accept`] for a
//!    [`RecvComm`]. Both ends can be in one process: [`Net::connect_to_itself`].
//! 5. [`Comm::register`] registers bytes, [`Comm::reg_mr`] memory of the caller.
//! 6. [`SendComm::isend`] and [`RecvComm::irecv`] return a [`Request`], or `None`: not now, call
//!    again.
//! 7. [`Comm::test`] is polled until the request is done, and gives the sizes.
//!    [`RecvComm::irecv_consumed`] and [`RecvComm::iflush`] follow if the plugin needs them.
//! 8. [`Comm::release`] or [`Comm::dereg_mr`] ends registrations; `close` ends comms and listeners.
//! 9. [`Net::finalize`] ends the use of the table.
//!
//! Handles are moved, not copied, so a closed comm cannot be used. Nothing is closed by dropping:
//! after a failed call only the end of the process is safe.
//!
//! ```no_run
//! use std::{path::Path, time::Duration};
//! use nccl_net_host::{Error, Net, Plugin, Recv, Settings};
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! fn main() -> Result<(), Error> {
//!     // SAFETY: the file is a NCCL plugin.
//!     let plugin = unsafe { Plugin::open(Path::new("libnccl-net-example.so"))? };
//!     let net = Net::init(plugin.table(12)?, &Settings::default())?;
//!     let (send, recv) = net.connect_to_itself(0, LIMIT)?;
//!
//!     let to = recv.register(vec![0; 5])?;
//!     let from = send.register(b"hello".to_vec())?;
//!     let (group, tag) = ([Recv { mr: to.mr(), offset: 0, len: 5, tag: 7 }], 7);
//!     let mut receive = recv.irecv(&group)?.expect("a new connection has room");
//!     let mut sent = loop {
//!         if let Some(request) = send.isend(from.mr(), 0, 5, tag)? {
//!             break request;
//!         }
//!     };
//!     send.wait(&mut sent, LIMIT)?;
//!     assert_eq!(recv.wait(&mut receive, LIMIT)?[0], 5);
//!     assert_eq!(recv.release(to)?, b"hello");
//!
//!     send.release(from)?;
//!     send.close()?;
//!     recv.close()?;
//!     net.finalize()
//! }
//! ```
//!
//! # Wrong calls
//!
//! Tests call a plugin in ways that NCCL never would. [`Raw`] has every function with any pointer
//! and any size, and returns the result [`Code`]. [`Table::raw`] makes one; the `as_ptr` methods of
//! the typed handles give the pointers for it.
//!
//! # One-sided traffic
//!
//! [`Plugin::rma_table`] returns a table for puts, signals and gets. [`Rma`] has its functions as C
//! has them. [`Family`] finds the tables of a file without running it.
//!
//! # Logs and hanging calls
//!
//! [`logger`] receives what plugins log. A [`Watch`] shows another process which [`Call`] a plugin
//! is in, which names a call that does not return.

mod code;
mod comm;
mod error;
mod family;
pub mod logger;
mod loopback;
mod memory;
mod net;
mod plugin;
mod properties;
mod raw;
mod rma;
mod settings;
mod symtab;
mod table;
mod watch;

pub use code::Code;
pub use comm::{Comm, Receiver, RecvComm, SendComm, Sender};
pub use error::{Error, Result};
pub use family::Family;
pub use loopback::until;
pub use memory::{Buffer, MAX_GROUP, Mr, NO_SIZES, Recv, Request, Sizes};
pub use nccl_net_abi as abi;
pub use net::{HANDLE_BYTES, Handle, Listener, Net};
pub use plugin::{Plugin, check_hidden_table, exported_versions};
pub use properties::Properties;
pub use raw::{MAX_RAW_GROUP, Ptr, Raw};
pub use rma::{Place, RMA_VERSIONS, Rma};
pub use settings::Settings;
pub use table::{Net as NetTable, Table, VERSIONS, size, symbol};
pub use watch::{Call, Watch};

/// The examples of README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
