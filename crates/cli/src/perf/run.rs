//! Supervises the workers of one run until all have ended, and finds the cause of a failure.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use super::{
    child::Worker,
    link::Role,
    plan::Plan,
    report::{AbiReport, SizeResult},
    ui::Ui,
    worker::{Event, Job},
};
use crate::{
    failure::{Failure, Kind},
    process::ending,
};
use nccl_net_host::{Call, logger};

const TICK: Duration = Duration::from_millis(50);
/// How long to wait for the other end after a failure: the other end's failure may be the cause.
const GRACE: Duration = Duration::from_millis(1500);
/// How long a warning of the plugin is held back: the failure that follows from it has its text.
const HOLD: Duration = Duration::from_secs(2);
/// How long to read a process's events after its end.
const DRAIN: Duration = Duration::from_secs(1);

/// One worker's state.
struct Slot {
    worker: Worker,
    role: Role,
    /// Completed its run.
    done: bool,
    /// Reported a failure, or was found dead or stuck.
    failed: bool,
    /// Sends no more events.
    drained: bool,
    /// The plugin's last warning and its time, until it is shown.
    warning: Option<(String, Instant)>,
    /// How the process ended, whether successfully, and when.
    exit: Option<(String, bool, Instant)>,
}

/// The workers of a run on this machine: both, or one.
pub(super) struct Run<'a> {
    slots: Vec<Slot>,
    events: Receiver<(usize, Option<Event>)>,
    /// Failures with the name of their end.
    failures: Vec<(&'static str, Failure)>,
    report: AbiReport,
    plan: &'a Plan,
    ui: &'a Ui,
}

impl<'a> Run<'a> {
    /// Starts a worker for each job, on its connection.
    pub(super) fn start(
        jobs: Vec<(Job, std::os::fd::OwnedFd)>,
        plan: &'a Plan,
        ui: &'a Ui,
    ) -> Result<Self, Failure> {
        let (sender, events) = channel();
        let mut slots = Vec::new();
        let (abi, gpu) = jobs.first().map_or((0, None), |(job, _)| (job.version, job.gpu));
        for (index, (job, peer)) in jobs.into_iter().enumerate() {
            let worker = Worker::start(index, &job, peer, sender.clone())?;
            slots.push(Slot {
                worker,
                role: job.role,
                done: false,
                failed: false,
                drained: false,
                warning: None,
                exit: None,
            });
        }
        let report = AbiReport { abi, gpu, ..AbiReport::default() };
        Ok(Self { slots, events, failures: Vec::new(), report, plan, ui })
    }

    /// Waits until all workers have ended, up to the limit. Returns what was measured, even if the run failed.
    pub(super) fn finish(mut self, limit: Option<Duration>) -> (AbiReport, Result<(), Failure>) {
        let outcome = self.watch(limit);
        // Dropping the slots kills the remaining workers.
        (self.report, outcome)
    }

    fn watch(&mut self, limit: Option<Duration>) -> Result<(), Failure> {
        let (started, mut give_up) = (Instant::now(), None);
        while !self.slots.iter().all(Slot::ended) {
            match self.events.recv_timeout(TICK) {
                Ok((index, event)) => self.handle(index, event)?,
                Err(RecvTimeoutError::Timeout) => {}
                // The readers have ended; only the processes remain.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.check_workers()?;
            (0..self.slots.len()).for_each(|index| self.show_warning(index, HOLD));
            if !self.failures.is_empty()
                && Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + GRACE)
            {
                break;
            }
            if let Some(limit) = limit.filter(|limit| started.elapsed() >= *limit) {
                return Err(self.unfinished(limit));
            }
        }
        (0..self.slots.len()).for_each(|index| self.show_warning(index, Duration::ZERO));
        self.verdict()
    }

    /// Makes the failure of a run that reached its limit.
    fn unfinished(&self, limit: Duration) -> Failure {
        let at = |slot: &Slot| {
            format!("{} is {}", slot.role.name(self.plan), whereabouts(slot.worker.watch.read().0))
        };
        let at: Vec<_> = self.slots.iter().map(at).collect();
        let last = self
            .report
            .warnings
            .last()
            .map_or(String::new(), |text| format!("; the plugin's last warning: {text}"));
        Failure::new(
            Kind::Timeout,
            format!("did not end in {:.0} s: the {}{last}", limit.as_secs_f64(), at.join(", the ")),
        )
    }

    /// Shows the warning that is held back if it is as old as `age`.
    fn show_warning(&mut self, index: usize, age: Duration) {
        let name = self.name(index);
        if let Some((text, _)) = self.slots[index].warning.take_if(|(_, since)| since.elapsed() >= age) {
            self.ui.log(name, logger::WARN, &text);
        }
    }

    fn name(&self, index: usize) -> &'static str {
        self.slots[index].role.name(self.plan)
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        let (name, slot) = (self.name(index), &mut self.slots[index]);
        slot.failed = true;
        slot.warning.take_if(|(text, _)| failure.message.contains(text.as_str()));
        self.failures.push((name, failure));
    }

    fn handle(&mut self, index: usize, event: Option<Event>) -> Result<(), Failure> {
        // The workers send the same results; the first one's are used.
        let first = index == 0;
        if !matches!(event, Some(Event::Failed(_)) | None) {
            self.show_warning(index, Duration::ZERO);
        }
        match event {
            Some(Event::Log { level: logger::WARN, text }) => {
                self.report.warnings.push(text.clone());
                self.slots[index].warning = Some((text, Instant::now()));
            }
            Some(Event::Log { level, text }) => self.ui.log(self.name(index), level, &text),
            Some(Event::Device { net, device }) if first => {
                (self.report.net, self.report.device) = (net, Some(device));
                self.ui.begin(&self.report, self.plan)?;
            }
            Some(Event::Result(result)) if first => self.result(*result)?,
            Some(Event::Connections(connections)) if first => {
                self.ui.connections(&connections, self.plan)?;
                self.report.connections = Some(connections);
            }
            Some(Event::Closed(closing)) if first => self.report.closing = Some(closing),
            Some(Event::Account(account)) if first => self.report.account = account,
            Some(Event::Survived { nanos, failure }) => {
                self.report.survived = Some((Duration::from_nanos(nanos), failure));
                self.slots[index].done = true;
            }
            Some(
                Event::Device { .. }
                | Event::Result(_)
                | Event::Connections(_)
                | Event::Closed(_)
                | Event::Account(_),
            ) => {}
            Some(Event::Failed(failure)) => self.fail(index, failure),
            Some(Event::Done) => self.slots[index].done = true,
            None => self.slots[index].drained = true,
        }
        Ok(())
    }

    fn result(&mut self, result: SizeResult) -> Result<(), Failure> {
        self.ui.row(&result, self.plan)?;
        self.report.results.push(result);
        Ok(())
    }

    /// Checks for workers that have ended or are stuck.
    fn check_workers(&mut self) -> Result<(), Failure> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.exit.is_none()
                && let Some(status) = slot.worker.exited()?
            {
                slot.exit = Some((ending(status), status.success(), Instant::now()));
            }
            match &slot.exit {
                Some((how, success, since)) => {
                    slot.drained |= since.elapsed() > DRAIN; // a process it started may hold the socket
                    let fine = slot.failed || (slot.done && *success);
                    if slot.drained && !fine {
                        let (call, _) = slot.worker.watch.read();
                        let text = format!("the worker process {how}, {}", whereabouts(call));
                        self.fail(index, Failure::new(Kind::Died, text));
                    }
                }
                None if !slot.failed => {
                    let (call, quiet) = slot.worker.stuck();
                    if let Some(failure) = overdue(call, quiet, self.plan) {
                        slot.worker.kill();
                        self.fail(index, failure);
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the failure that most likely caused the others, followed by those that do not merely
    /// follow from it. The same failure of both ends is one.
    fn verdict(&mut self) -> Result<(), Failure> {
        self.failures.sort_by_key(|(_, failure)| failure.kind.rank());
        let mut different: Vec<(String, Failure)> = Vec::new();
        for (name, failure) in self.failures.drain(..) {
            match different.iter_mut().find(|(_, known)| *known == failure) {
                Some((names, _)) => *names += &format!(" and {name}"),
                None => different.push((name.to_owned(), failure)),
            }
        }
        let mut failures = different.into_iter();
        let Some((name, cause)) = failures.next() else { return Ok(()) };
        let mut cause = cause.at(name);
        for (name, other) in failures.filter(|(_, failure)| failure.kind != Kind::Peer) {
            cause.message += &format!("\n{name}: {other}");
        }
        Err(cause)
    }
}

impl Slot {
    fn ended(&self) -> bool {
        self.exit.is_some() && self.drained
    }
}

/// Describes where the process is, or was when it ended.
fn whereabouts(call: Call) -> String {
    match call {
        Call::Outside => "outside of any call of the plugin on the main thread".into(),
        Call::Exit => "after its run, in the plugin's exit handlers or threads".into(),
        call => format!("in the plugin's {}", call.name()),
    }
}

/// Returns a failure if a worker has shown no progress for too long.
fn overdue(call: Call, quiet: Duration, plan: &Plan) -> Option<Failure> {
    let limit = match call {
        // Outside of the plugin, nothing takes longer.
        Call::Outside => plan.timeout * 2 + Duration::from_secs(60),
        _ => plan.timeout,
    };
    let text = match call {
        Call::Outside => "the worker process made no progress".into(),
        Call::Exit => "the process does not exit: an exit handler or destructor of the plugin hangs".into(),
        call => format!("the plugin's {} did not return", call.name()),
    };
    (quiet >= limit)
        .then(|| Failure::new(Kind::Timeout, format!("{text} for {quiet:.1?}; the process was killed")))
}
