//! The steps, what each is for, and how long it may take.

use std::time::Duration;

use clap::ValueEnum;
use nccl_net_mpib_agent_iface::doctor::{Check, Level};
use schemars::JsonSchema;
use serde::Serialize;

use super::counters::Growth;
use crate::failure::{Failure, Kind};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Step {
    /// Both hosts by themselves, each pair of ports, each device
    Host,
    /// Checked data of many sizes and kinds, and the rate of each rail
    Data,
    /// Checked data in the memory of GPUs
    Gpu,
    /// A rail's link goes down and up under load
    Link,
    /// A rail's adapter loses its driver and gets it back under load
    Driver,
    /// A process dies under load; the other one reports it
    Death,
    /// Many connections, and the time of each control verb
    Control,
    /// All rails in both directions, without a lost packet
    Steady,
    /// The network by which the hosts reach each other is silent under load
    Network,
    /// Collectives of nccl-tests over the plugin and over NCCL's own transport
    Nccl,
}

impl Step {
    pub(super) const ALL: [Self; 10] = [
        Self::Host,
        Self::Data,
        Self::Gpu,
        Self::Link,
        Self::Driver,
        Self::Death,
        Self::Control,
        Self::Steady,
        Self::Network,
        Self::Nccl,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Data => "data",
            Self::Gpu => "gpu",
            Self::Link => "link",
            Self::Driver => "driver",
            Self::Death => "death",
            Self::Control => "control",
            Self::Steady => "steady",
            Self::Network => "network",
            Self::Nccl => "nccl",
        }
    }

    /// Returns how long the step may take, without `--budget`. `Steady` has that on top of `--steady`,
    /// `Network` on top of `--network-time`.
    pub(super) const fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Host | Self::Gpu | Self::Link | Self::Driver => 180,
            Self::Data => 300,
            Self::Death | Self::Control | Self::Network => 120,
            Self::Steady => 240,
            Self::Nccl => 600,
        })
    }

    /// Returns what to look at if the step does not end.
    const fn look(self) -> &'static str {
        match self {
            Self::Host => "mpib doctor at each end by itself; ibv_devinfo -v, and dmesg of both hosts",
            Self::Data | Self::Steady => {
                "mpib stats at both ends while the step runs, and the log of NCCL_DEBUG=INFO"
            }
            Self::Gpu => "dmesg of both hosts, and nvidia-smi topo -m",
            Self::Link | Self::Driver => {
                "mpib stats while the step runs: state and cause of each port; dmesg"
            }
            Self::Death => {
                "the firewall between the hosts: it must not drop the packets that end a connection"
            }
            Self::Network => {
                "ip route: does a route to the other host end in a blackhole? And the plugin's log of both ends"
            }
            Self::Nccl => {
                "the commands that it prints, by hand; mpib stats and nvidia-smi of both hosts meanwhile"
            }
            Self::Control => "the times of the verbs in the report of the step host, and dmesg",
        }
    }
}

/// The result of a step, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) enum Verdict {
    #[serde(rename = "passed")]
    Passed,
    #[serde(rename = "failed")]
    Failed,
    #[serde(rename = "not run")]
    NotRun,
}

impl Verdict {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        }
    }
}

/// What a step has found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    checks: Vec<Check>,
    not_run: bool,
}

impl Findings {
    pub(super) fn ok(&mut self, part: &str, text: impl Into<String>) {
        self.checks.push(Check::new(part, Level::Ok, text));
    }

    pub(super) fn fail(&mut self, part: &str, text: impl Into<String>, remedy: Option<&str>) {
        let check = Check::new(part, Level::Fail, text);
        self.checks.push(match remedy {
            Some(remedy) => check.remedy(remedy),
            None => check,
        });
    }

    pub(super) fn warn(&mut self, part: &str, text: impl Into<String>) {
        self.checks.push(Check::new(part, Level::Warn, text));
    }

    /// Notes what is worth to know, and is no part that did not run.
    pub(super) fn note(&mut self, part: &str, text: impl Into<String>) {
        self.checks.push(Check::new(part, Level::Note, text));
    }

    /// Notes that the session with the other host failed.
    pub(super) fn lost(&mut self, failure: Failure) {
        self.fail("session", failure.message, Some("look at the other host's mpib hwcheck --listen"));
    }

    pub(super) fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.level == Level::Fail)
    }

    /// Notes a part that did not run, and why.
    pub(super) fn not_run(&mut self, part: &str, why: impl AsRef<str>) {
        self.not_run = true;
        self.checks.push(Check::new(part, Level::Note, format!("not run: {}", why.as_ref())));
    }

    /// Adds warnings of the plugin, each once. A warning is no failure by itself: what it costs shows
    /// in the rails.
    pub(super) fn warnings(&mut self, texts: impl IntoIterator<Item = String>) {
        for text in texts {
            if !self.checks.iter().any(|check| check.text == text) {
                self.checks.push(Check::new("log", Level::Warn, text));
            }
        }
    }

    /// Adds checks with their levels.
    pub(super) fn extend(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.checks.extend(checks);
    }

    /// Adds checks. A loss is a failure: this is the first try of an adapter.
    pub(super) fn extend_strictly(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.extend(checks.into_iter().map(|check| match check.level {
            Level::Warn => Check { level: Level::Fail, ..check },
            _ => check,
        }));
    }

    /// Notes the failure of a run. One for lack of something that a host does not have is no result.
    pub(super) fn failed(&mut self, part: &str, failure: &Failure) {
        match failure.kind {
            Kind::Usage => self.not_run(part, &failure.message),
            _ => self.fail(part, failure.message.clone(), None),
        }
    }
}

/// The report on one step.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StepReport {
    pub(super) step: Step,
    pub(super) verdict: Verdict,
    pub(super) seconds: f64,
    /// How long it was allowed to take.
    pub(super) budget_seconds: f64,
    pub(super) checks: Vec<Check>,
    /// Hardware counters that have grown meanwhile, at both ends.
    pub(super) counters: Vec<Growth>,
}

impl StepReport {
    pub(super) fn new(
        step: Step,
        found: Findings,
        counters: Vec<Growth>,
        took: Duration,
        budget: Duration,
    ) -> Self {
        let Findings { mut checks, mut not_run } = found;
        if took > budget {
            let text = format!("did not end in {:.0} s", budget.as_secs_f64());
            checks.push(Check::new("time", Level::Fail, text).remedy(step.look()));
        }
        not_run |= checks.is_empty();
        let verdict = match checks.iter().any(|check| check.level == Level::Fail) {
            true => Verdict::Failed,
            false if not_run => Verdict::NotRun,
            false => Verdict::Passed,
        };
        let (seconds, budget_seconds) = (took.as_secs_f64(), budget.as_secs_f64());
        Self { step, verdict, seconds, budget_seconds, checks, counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(fill: impl FnOnce(&mut Findings), took: u64) -> Verdict {
        let mut found = Findings::default();
        fill(&mut found);
        let (took, budget) = (Duration::from_secs(took), Duration::from_secs(5));
        StepReport::new(Step::Data, found, Vec::new(), took, budget).verdict
    }

    //= hwcheck.md: a step that did not run whole has not passed
    #[test]
    fn a_step_passes_only_if_all_of_it_ran_in_its_time() {
        assert_eq!(verdict(|found| found.ok("x", ""), 1), Verdict::Passed);
        assert_eq!(verdict(|_| {}, 1), Verdict::NotRun);
        assert_eq!(verdict(|found| (found.ok("x", ""), found.not_run("y", "")).0, 1), Verdict::NotRun);
        assert_eq!(
            verdict(|found| (found.not_run("x", ""), found.fail("y", "", None)).1, 1),
            Verdict::Failed
        );
        assert_eq!(verdict(|found| found.ok("x", ""), 6), Verdict::Failed);
    }
}
