//! The process that loads a core: runs the steps of a job and writes the account.

use std::{
    fs,
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
};

use nccl_net_host::{Error, Net, Settings, Table};

use crate::{
    core::{Comm, Core},
    exchange::{self, Peer},
    failure::{Context, Failure, Result},
    script::{Account, Called, Described, Job, Step, StepResult},
    seen::{self, Seen},
};

/// Reads the job, runs it, and writes the account. Failures of the core or the plugin are part of
/// the account.
pub(crate) fn main(job: &Path, account: &Path) -> Result<()> {
    let text = fs::read(job).cannot(format!("read {}", job.display()))?;
    let job: Job = serde_json::from_slice(&text).cannot("understand the job")?;
    let mut outcome = Account::default();
    if let Err(failure) = run(&job, &mut outcome) {
        outcome.failure = Some(failure);
    }
    outcome.seen = seen::all();
    let text = serde_json::to_vec(&outcome).cannot("write the account")?;
    // A rename, since a partial file must not be read as an account.
    let new = account.with_extension("new");
    fs::write(&new, text).cannot(format!("write {}", new.display()))?;
    fs::rename(&new, account).cannot(format!("write {}", account.display()))
}

fn run(job: &Job, outcome: &mut Account) -> Result<()> {
    let mut worker = Worker {
        core: Core::load(&job.library, job.facts.clone())?,
        job,
        comms: Vec::new(),
        peer: job.peer.map(|(role, fd)| {
            // SAFETY: the parent opened it for this process, and nothing else here uses it.
            (role, Peer::new(unsafe { OwnedFd::from_raw_fd(fd) }))
        }),
    };
    outcome.version = worker.core.version()?;
    for (index, step) in job.steps.iter().enumerate() {
        eprintln!("step {index}: {step}");
        seen::note(Seen::Step(index));
        let came = worker.step(step)?;
        outcome.results.push(came);
    }
    Ok(())
}

struct Worker<'a> {
    core: Core,
    job: &'a Job,
    comms: Vec<Comm>,
    peer: Option<(crate::script::Role, Peer)>,
}

impl Worker<'_> {
    fn step(&mut self, step: &Step) -> Result<StepResult> {
        match step {
            Step::Open => {
                let comm = self.core.comm()?;
                let called = self.call_all(&self.job.opens, &comm)?;
                let ok = called.iter().all(|(_, code)| *code == 0);
                let net = if ok { comm.name() } else { None };
                let table = comm.net().map_or(0, |table| table.as_ptr() as usize);
                self.comms.push(comm);
                Ok(StepResult::Opened { called, net, table })
            }
            Step::Describe(comm) => {
                let net = self.net(*comm)?;
                let count = net.devices().map_err(foreign)?;
                let devices = (0..count).map(|dev| net.properties(dev).map(Described::from).map_err(foreign));
                Ok(StepResult::Described(devices.collect::<Result<_>>()?))
            }
            Step::Misuse(comm) => match self.net(*comm)?.properties(-1) {
                Ok(_) => Err(Failure::wrong("device -1 has properties")),
                Err(_) => Ok(StepResult::Refused),
            },
            Step::Fuse(comm, devices) => {
                self.net(*comm)?.make_vdevice(devices).map(StepResult::Fused).map_err(foreign)
            }
            Step::Exchange(comm, plan) => {
                let net = self.net(*comm)?;
                let (role, peer) =
                    self.peer.as_mut().ok_or_else(|| Failure::tool("an exchange without a peer"))?;
                exchange::run(&net, peer, *role, plan).map(StepResult::Exchanged)
            }
            Step::Close(comm) => Ok(StepResult::Closed(self.call_all(&self.job.closes, self.comm(*comm)?)?)),
        }
    }

    /// Calls functions of the core until one fails.
    fn call_all(&self, functions: &[String], comm: &Comm) -> Result<Vec<Called>> {
        let mut called = Vec::new();
        for function in functions {
            let code = self.core.call(function, comm)?;
            called.push((function.clone(), code));
            if code != 0 {
                break;
            }
        }
        Ok(called)
    }

    fn comm(&self, index: usize) -> Result<&Comm> {
        self.comms.get(index).ok_or_else(|| Failure::tool(format!("communicator {index} was not opened")))
    }

    /// Returns the table that the core would call for this communicator.
    fn net(&self, comm: usize) -> Result<Net> {
        let comm = self.comm(comm)?;
        let table = comm.net().ok_or_else(|| Failure::wrong("the core gave the communicator no network"))?;
        // SAFETY: a table of the core's newest version: the core's own, or the plugin's, whose file
        // is linked to stay.
        let table = unsafe { Table::from_ptr(self.job.table, table) };
        let table = table
            .ok_or_else(|| Failure::tool(format!("there is no driver for tables v{}", self.job.table)))?;
        // SAFETY: the core has called this table's init, and keeps the context in the communicator.
        Ok(unsafe { Net::adopt(table, comm.context(), &Settings::default()) })
    }
}

/// Converts an error of a table's call, which is a failure of the plugin or the core.
pub(crate) fn foreign(error: Error) -> Failure {
    Failure::wrong(error.to_string())
}
