//! One end of a short measurement between two machines over one route, for `mpib doctor`.

use std::{os::fd::OwnedFd, path::PathBuf, time::Duration};

use super::{args::Plan, link::Role, run::Run, ui::Ui, worker::Job};
use crate::failure::{Failure, Kind};

/// This end.
pub(crate) struct Probe {
    pub(crate) plugin: PathBuf,
    /// Version of the table, the same at both ends.
    pub(crate) version: u32,
    /// Variables of the worker: set, or unset if `None`.
    pub(crate) env: Vec<(String, Option<String>)>,
    /// Whether this end sends.
    pub(crate) sends: bool,
    /// Limit for a time without progress.
    pub(crate) timeout: Duration,
}

impl Probe {
    /// Moves checked data for a short time and returns the rate in 10^9 bytes per second. A plugin
    /// that crashes or makes no progress gives an error.
    pub(crate) fn run(self, peer: OwnedFd) -> Result<f64, Failure> {
        let plan = Plan {
            sizes: vec![1 << 20],
            time: Duration::from_millis(200),
            iterations: None,
            depth: 8,
            receives: 1,
            optional: false,
            bidirectional: false,
            ping_pong: false,
            connections: 0,
            at_once: 1,
            check: true,
            memory: 16 << 20,
            timeout: self.timeout,
            fault: None,
        };
        let job = Job {
            plugin: self.plugin,
            version: self.version,
            table: None,
            device: 0,
            merge: Vec::new(),
            pin: None,
            gpu: None,
            role: if self.sends { Role::A } else { Role::B },
            plan: plan.clone(),
            verbose: false,
            env: self.env,
        };
        let ui = Ui::silent();
        let (table, outcome) = Run::start(vec![(job, peer)], &plan, &ui)?.finish();
        outcome?;
        let result = table.results.first();
        result.map(|r| r.gigabytes_per_second).ok_or_else(|| Failure::new(Kind::Tool, "nothing was measured"))
    }
}
