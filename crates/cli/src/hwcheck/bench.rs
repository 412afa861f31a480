//! What the steps share: this host's report, the session with the other host, and the clock.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    HwcheckArgs,
    counters::{Growth, Reading},
    ends, nccl, network, outage,
    step::{Findings, Step, StepReport},
    traffic,
};
use crate::doctor::{
    self, DoctorArgs, Ends, Measure, Order, Session, Summary, Tools, Use, check_host, check_routes, counters,
};
use crate::failure::{Failure, Kind};
use crate::nccl_conf::ConfFile;
use crate::perf::{Outcome, Plan, Trial};

/// The two hosts.
pub(super) struct Bench<'a> {
    pub(super) args: &'a HwcheckArgs,
    of_doctor: DoctorArgs,
    pub(super) document: doctor::Document,
    /// `None` after the other host was lost, until the next step.
    session: Option<Session>,
    /// When the present step began.
    began: Instant,
    budget: Duration,
}

impl<'a> Bench<'a> {
    /// Checks this host and opens the session.
    pub(super) fn new(
        args: &'a HwcheckArgs,
        of_doctor: DoctorArgs,
        files: &[ConfFile],
    ) -> Result<Self, Failure> {
        let document = check_host(&of_doctor, files)?;
        outage::check_rail(args, document.report.as_ref())?;
        let session = Session::open(args.peer.as_deref().unwrap_or_default(), &document)?;
        let (began, budget) = (Instant::now(), Duration::MAX);
        Ok(Self { args, of_doctor, document, session: Some(session), began, budget })
    }

    /// Runs a step within its time.
    pub(super) fn step(&mut self, step: Step) -> StepReport {
        let more = match step {
            Step::Steady => self.args.steady,
            Step::Network => self.args.network_time,
            _ => Duration::ZERO,
        };
        let budget = step.budget().saturating_add(more);
        (self.began, self.budget) = (Instant::now(), self.args.budget.unwrap_or(budget));
        eprintln!("mpib: step {}, at most {:.0} s", step.name(), self.budget.as_secs_f64());
        let mut found = Findings::default();
        let growth = self.watched(step, &mut found).unwrap_or_else(|failure| {
            found.lost(failure);
            Vec::new()
        });
        StepReport::new(step, found, growth, self.began.elapsed(), self.budget)
    }

    /// Performs a step, and returns the counters that have grown.
    fn watched(&mut self, step: Step, found: &mut Findings) -> Result<Vec<Growth>, Failure> {
        let before = self.reading()?;
        let performed = self.perform(step, found).map_err(|failure| found.lost(failure));
        let after = self.reading()?;
        let growth = before.growth(&after);
        if step == Step::Steady && performed.is_ok() {
            traffic::judge_counters(found, &growth, &after);
        }
        Ok(growth)
    }

    fn perform(&mut self, step: Step, found: &mut Findings) -> Result<(), Failure> {
        match step {
            Step::Host => self.host(found),
            Step::Data => traffic::data(self, found),
            Step::Gpu => traffic::gpu(self, found),
            Step::Link => outage::link(self, found),
            Step::Driver => outage::driver(self, found),
            Step::Death => ends::death(self, found),
            Step::Control => ends::control(self, found),
            Step::Steady => traffic::steady(self, found),
            Step::Network => network::network(self, found),
            Step::Nccl => nccl::nccl(self, found),
        }
    }

    /// Checks both hosts, each pair of ports and each device, as `mpib doctor HOST`.
    fn host(&mut self, found: &mut Findings) -> Result<(), Failure> {
        let (own, of_doctor) = (self.document.checks.len(), self.of_doctor.clone());
        self.with(|session, document| check_routes(&of_doctor, session, document))?;
        let (of_host, of_pair) = self.document.checks.split_at(own);
        found.extend(of_host.iter().filter(|check| doctor::is_wrong(check)).cloned());
        let (of_peer, of_pair): (Vec<_>, Vec<_>) =
            of_pair.iter().cloned().partition(|check| check.id == "peer");
        found.extend_strictly(of_pair);
        found.extend(of_peer);
        Ok(())
    }

    /// Does something in the session, and opens another one if it was lost. After an error it is lost:
    /// the listener serves again once it has noticed.
    fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Session, &mut doctor::Document) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::open(self.args.peer.as_deref().unwrap_or_default(), &self.document)?,
        };
        session.deadline = self.began.checked_add(self.budget);
        let done = act(&mut session, &mut self.document)?;
        self.session = Some(session);
        Ok(done)
    }

    /// Returns what the other host says of itself.
    pub(super) fn theirs(&mut self) -> Result<Summary, Failure> {
        self.with(|session, _| Ok(session.theirs.clone()))
    }

    /// Returns what this host and the other one have beside the plugin.
    pub(super) fn tools(&mut self) -> Result<[Tools; 2], Failure> {
        self.with(|session, _| Ok([Tools::here(), session.tools()?]))
    }

    /// Measures with `ib_write_bw`. The inner error is why there is no rate.
    pub(super) fn perftest(&mut self, measure: &Measure) -> Result<Result<f64, String>, Failure> {
        self.with(|session, document| session.perftest(document, measure))
    }

    /// Returns the addresses by which this host and the other one reach each other.
    pub(super) fn addresses(&mut self) -> Result<[IpAddr; 2], Failure> {
        self.with(|session, _| Ok(session.addresses))
    }

    /// Reads the counters of both ends.
    pub(super) fn reading(&mut self) -> Result<Reading, Failure> {
        self.with(|session, document| Ok(Reading { here: counters(document), there: session.counters()? }))
    }

    /// Runs both ends.
    pub(super) fn run(&mut self, order: Order) -> Result<Ends, Failure> {
        self.run_with(order, Trial::default())
    }

    /// Runs both ends, with what this one does on top.
    pub(super) fn run_with(&mut self, order: Order, trial: Trial) -> Result<Ends, Failure> {
        if self.left().is_zero() {
            let failure = Failure::new(Kind::Timeout, "there is no time left for it");
            return Ok(Ends { here: failure.into(), there: Outcome::default() });
        }
        self.with(|session, document| session.run(document, order, trial))
    }

    /// Returns the order of a run over the devices of this number, within the time that is left.
    pub(super) fn order(&self, device: i32, out: bool, plan: Plan) -> Order {
        Order::new(Use::device(device), Use::device(device), out, plan, self.left())
    }

    /// Returns the size of the messages under whose load something happens, and by which rates are
    /// measured: many have to fit into the memory.
    pub(super) fn load(&self) -> usize {
        (self.args.memory / 32).clamp(1, 1 << 20)
    }

    /// Returns the time of one of so many measurements, which have to fit into half of what is left.
    pub(super) fn time(&self, measurements: usize) -> Duration {
        let most = u32::try_from(measurements.max(1) * 2).unwrap_or(u32::MAX);
        self.args.time.min(self.left() / most)
    }

    pub(super) fn left(&self) -> Duration {
        self.budget.saturating_sub(self.began.elapsed())
    }

    /// Returns the devices that both hosts have, by number: the first one if the plugins have no
    /// report. Without any, notes that nothing runs.
    pub(super) fn devices(&mut self, found: &mut Findings) -> Result<Vec<String>, Failure> {
        let theirs = self.theirs()?.devices;
        let ours = self.document.report.iter().flat_map(|report| &report.devices);
        let names: Vec<_> = ours.zip(theirs).map(|(ours, _)| ours.name.clone()).collect();
        if self.document.report.is_none() {
            return Ok(vec!["device 0".into()]);
        }
        if names.is_empty() {
            found.not_run("devices", "a host has no device");
        }
        Ok(names)
    }

    /// Ends the session.
    pub(super) fn end(self) -> doctor::Document {
        if let Some(session) = self.session {
            // The results are here; the other host only shows them.
            let _ = session.end(self.document.routes.clone());
        }
        self.document
    }
}
