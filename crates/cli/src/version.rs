//! `mpib --version`.

use std::sync::LazyLock;

use nccl_net_mpib_agent_iface::{COMMIT, WIRE_PROTOCOL};

use crate::{doctor, perf};

/// The version with the commit, and what must be equal at both ends of a run.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    let (newest, oldest) = (perf::TABLES.end(), perf::TABLES.start());
    format!(
        "{}\ncommit {COMMIT}\nwire protocol {WIRE_PROTOCOL}\ntables v{oldest} to v{newest}\nbetween two machines: perf {}, doctor {}\nstatistics page {}",
        env!("CARGO_PKG_VERSION"),
        perf::PROTOCOL,
        doctor::PROTOCOL,
        nccl_net_mpib_agent_iface::stats::STATS_VERSION,
    )
});
