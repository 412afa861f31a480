//! Watches the workers of one run until all have ended, and finds out what went wrong.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use super::{
    args::Plan,
    child::{Worker, ending},
    link::Role,
    report::{AbiReport, SizeResult},
    ui::Ui,
    worker::{Event, Job},
};
use crate::failure::{Failure, Kind};
use nccl_net_host::Call;

const TICK: Duration = Duration::from_millis(50);
/// A failure at one end shows at the other a little later, and the other's may be the cause.
const GRACE: Duration = Duration::from_millis(1500);
/// From a process's end to the end of what it told.
const DRAIN: Duration = Duration::from_secs(1);

/// One worker's place in the run.
struct Slot {
    worker: Worker,
    role: Role,
    /// Finished its run.
    done: bool,
    /// Said why it failed, or was found dead or stuck.
    failed: bool,
    /// Will tell no more.
    silent: bool,
    /// Since when the process is gone.
    gone: Option<(String, bool, Instant)>,
}

/// The workers that run on this machine: both, or one.
pub(super) struct Run<'a> {
    slots: Vec<Slot>,
    events: Receiver<(usize, Option<Event>)>,
    failures: Vec<Failure>,
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
        let abi = jobs.first().map_or(0, |(job, _)| job.version);
        for (index, (job, peer)) in jobs.into_iter().enumerate() {
            let worker = Worker::start(index, &job, peer, sender.clone())?;
            slots.push(Slot {
                worker,
                role: job.role,
                done: false,
                failed: false,
                silent: false,
                gone: None,
            });
        }
        let report =
            AbiReport { abi, net: String::new(), device: None, connections: None, results: Vec::new() };
        Ok(Self { slots, events, failures: Vec::new(), report, plan, ui })
    }

    /// Until all workers have ended. What was measured comes back even if it failed.
    pub(super) fn finish(mut self) -> (AbiReport, Result<(), Failure>) {
        let outcome = self.watch();
        // Dropping the slots kills what is left.
        (self.report, outcome)
    }

    fn watch(&mut self) -> Result<(), Failure> {
        let mut give_up = None;
        while !self.slots.iter().all(Slot::ended) {
            match self.events.recv_timeout(TICK) {
                Ok((index, event)) => self.take(index, event)?,
                Err(RecvTimeoutError::Timeout) => {}
                // The readers ended; what is left to wait for are the processes.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.look()?;
            if !self.failures.is_empty()
                && Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + GRACE)
            {
                break;
            }
        }
        self.verdict()
    }

    fn name(&self, index: usize) -> &'static str {
        self.slots[index].role.name(self.plan.both_ways())
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        self.slots[index].failed = true;
        self.failures.push(failure.at(self.name(index)));
    }

    fn take(&mut self, index: usize, event: Option<Event>) -> Result<(), Failure> {
        // Of two workers, the first one's results are taken; the second's are the same.
        let first = index == 0;
        match event {
            Some(Event::Log { level, text }) => self.ui.log(self.name(index), level, &text),
            Some(Event::Device { net, device }) if first => {
                self.ui.begin(self.report.abi, &net, &device, self.plan)?;
                (self.report.net, self.report.device) = (net, Some(device));
            }
            Some(Event::Result(result)) if first => self.result(*result)?,
            Some(Event::Connections(connections)) if first => {
                self.ui.connections(&connections)?;
                self.report.connections = Some(connections);
            }
            Some(Event::Device { .. } | Event::Result(_) | Event::Connections(_)) => {}
            Some(Event::Failed(failure)) => self.fail(index, failure),
            Some(Event::Done) => self.slots[index].done = true,
            None => self.slots[index].silent = true,
        }
        Ok(())
    }

    fn result(&mut self, result: SizeResult) -> Result<(), Failure> {
        self.ui.row(&result)?;
        self.report.results.push(result);
        Ok(())
    }

    /// Looks for workers that ended or are stuck.
    fn look(&mut self) -> Result<(), Failure> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.gone.is_none()
                && let Some(status) = slot.worker.exited()?
            {
                slot.gone = Some((ending(status), status.success(), Instant::now()));
            }
            match &slot.gone {
                Some((how, success, since)) => {
                    slot.silent |= since.elapsed() > DRAIN; // a process it started may hold the socket
                    let fine = slot.failed || (slot.done && *success);
                    if slot.silent && !fine {
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

    /// Of all failures, the one that most likely caused the others; those that do not just follow from it are added.
    fn verdict(&mut self) -> Result<(), Failure> {
        self.failures.sort_by_key(|f| f.kind.rank());
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut cause) = failures.next() else { return Ok(()) };
        for other in failures.filter(|f| f.kind != Kind::Peer) {
            cause.message += &format!("\n{other}");
        }
        Err(cause)
    }
}

impl Slot {
    fn ended(&self) -> bool {
        self.gone.is_some() && self.silent
    }
}

/// Where the process was when it ended.
fn whereabouts(call: Call) -> String {
    match call {
        Call::Outside => "outside of any call of the plugin on the main thread".into(),
        Call::Exit => "after its run, in the plugin's exit handlers or threads".into(),
        call => format!("in the plugin's {}", call.name()),
    }
}

/// Whether a worker without a sign of life has had its time.
fn overdue(call: Call, quiet: Duration, plan: &Plan) -> Option<Failure> {
    let limit = match call {
        // No call of the plugin, and nothing else takes so long.
        Call::Outside => plan.timeout * 2 + Duration::from_secs(60),
        _ => plan.timeout,
    };
    let text = match call {
        Call::Outside => "the worker process shows no sign of life".into(),
        Call::Exit => "the process does not exit: an exit handler or destructor of the plugin hangs".into(),
        call => format!("the plugin's {} did not return", call.name()),
    };
    (quiet >= limit)
        .then(|| Failure::new(Kind::Timeout, format!("{text} for {quiet:.1?}; the process was killed")))
}
