//! `mpib --version`.

use std::sync::LazyLock;

use crate::{doctor, perf};

/// The version with the commit, and what must be equal at both ends of a run.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    let (newest, oldest) = (perf::TABLES.end(), perf::TABLES.start());
    format!(
        "{}\ncommit {}\ntables v{oldest} to v{newest}\nbetween two machines: perf {}, doctor {}\nstatistics page {}",
        env!("CARGO_PKG_VERSION"),
        env!("MPIB_COMMIT"),
        perf::PROTOCOL,
        doctor::PROTOCOL,
        nccl_net_mpib_agent_iface::stats::STATS_VERSION,
    )
});
