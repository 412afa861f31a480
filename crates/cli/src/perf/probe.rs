//! One end of a run between two machines, for "mpib doctor" and "mpib hwcheck".

use std::{os::fd::OwnedFd, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    link::Role,
    plan::{Operation, Plan},
    report::{AbiReport, Account, Closing, Connections, SizeResult},
    run::Run,
    ui::Ui,
    worker::{Job, Trial},
};
use crate::failure::Failure;

/// This end.
pub(crate) struct Probe {
    pub(crate) plugin: PathBuf,
    /// Version of the table, the same at both ends.
    pub(crate) version: u32,
    /// Variables of the worker: set, or unset if `None`.
    pub(crate) env: Vec<(String, Option<String>)>,
    /// Number of the device.
    pub(crate) device: i32,
    /// The GPU whose memory has the messages; `None`: the host's.
    pub(crate) gpu: Option<i32>,
    /// Whether this end sends, and leads the run.
    pub(crate) sends: bool,
    pub(crate) plan: Plan,
    pub(crate) trial: Trial,
    /// How long the run may take in all.
    pub(crate) limit: Duration,
}

/// What one end of a run found.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Outcome {
    pub(crate) results: Vec<SizeResult>,
    pub(crate) connections: Option<Connections>,
    /// How long the close of the further connections took: at this end, and at the other one. The end
    /// that leads knows it.
    pub(crate) closing: Option<[Closing; 2]>,
    /// The plugin's warnings.
    pub(crate) warnings: Vec<String>,
    /// The plugin's statistics at the end.
    pub(crate) account: Account,
    /// How many seconds after the death of the other end's process a call failed, and how.
    pub(crate) survived: Option<(f64, Failure)>,
    /// Why the run did not end as it should.
    pub(crate) failure: Option<Failure>,
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }
}

impl Outcome {
    /// Returns the lowest rate of all sizes in 10^9 bytes per second.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.results.iter().map(|result| result.gigabytes_per_second).reduce(f64::min)
    }
}

impl Probe {
    /// Runs to the end. A plugin that crashes or makes no progress gives an outcome with a failure.
    pub(crate) fn run(self, peer: OwnedFd) -> Outcome {
        let job = Job {
            plugin: self.plugin,
            version: self.version,
            table: None,
            device: self.device,
            merge: Vec::new(),
            pin: None,
            gpu: self.gpu,
            role: if self.sends { Role::A } else { Role::B },
            plan: self.plan.clone(),
            verbose: false,
            env: self.env,
            trial: self.trial,
        };
        let ui = Ui::silent();
        let run = match Run::start(vec![(job, peer)], &self.plan, &ui) {
            Ok(run) => run,
            Err(failure) => return failure.into(),
        };
        let (report, outcome) = run.finish(Some(self.limit));
        let AbiReport { results, connections, closing, warnings, account, survived, .. } = report;
        let survived = survived.map(|(after, failure)| (after.as_secs_f64(), failure));
        Outcome { results, connections, closing, warnings, account, survived, failure: outcome.err() }
    }
}

impl Plan {
    /// Makes the plan of a run with these sizes and this time for each.
    pub(crate) fn of(sizes: &[usize], time: Duration, timeout: Duration) -> Self {
        Self {
            operation: Operation::Messages,
            sizes: sizes.to_vec(),
            time,
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
            timeout,
            fault: None,
        }
    }
}
