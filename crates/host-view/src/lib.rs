//! What the processes with the NCCL plugin MPIB do on this host.
//!
//! [`Source`] reads the statistics pages that this user may read, and the adapters' counters in
//! sysfs, into one document: [`Host`]. [`Host::rates`] compares two of them; [`Waits`] is who waits for
//! whom, from several. [`Ledger`] keeps the counts of processes that have ended. [`metrics()`] formats
//! a document for Prometheus.

mod budget;
mod count;
mod gather;
mod jobs;
mod ledger;
mod metrics;
mod model;
mod operations;
mod owner;
mod rates;
mod state;
mod sums;
mod sysfs;
mod textfile;
mod verdict;
mod waits;

pub use count::Count;
pub use gather::{Passed, Source, hostname};
pub use ledger::Ledger;
pub use metrics::{MAX_PEERS, MetricsOptions, manual, metrics};
pub use model::{
    Adapter, Connection, Failover, Host, Job, MAX_PORTS, Port, PortCounts, Process, Rail, Stalls, Totals,
    TwoWays, Wait, peer_process, schema,
};
pub use operations::{Communicator, Operation, OperationRail};
pub use owner::Owner;
pub use state::State;
pub use sysfs::{interfaces_of, ports};
pub use textfile::write_textfile;
pub use verdict::{DRAINED, Verdict, lasted};
pub use waits::{Awaited, Peer, WAITS_MAX, Waiter, Waiting, Waits};
