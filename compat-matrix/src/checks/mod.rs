//! The checks of a release. A check returns one line with what it observed, or a failure.

mod collectives;
mod life;
pub(crate) mod loading;
mod names;
mod symbols;
mod traffic;
mod vnics;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use softcuda::rank::Collective;

use crate::{
    child::{Ending, Runner},
    collectives::Entry,
    compare,
    facts::{self, Library},
    failure::{Failure, Result},
    matrix::Release,
    script::{Account, Job, Plan, Step},
    stage::{Folder, Stage},
};

/// A release with its library, and the folders for its processes.
pub(crate) struct Bench<'a> {
    pub(crate) release: &'a Release,
    stage: &'a Stage,
    path: PathBuf,
    library: Library,
    deadline: Duration,
}

type Check = fn(&Bench<'_>) -> Result<String>;

/// Every check, in the report's order.
pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("layout", layout),
    ("symbols", symbols::known),
    ("lookup", loading::lookup),
    ("table", loading::table),
    ("devices", loading::devices),
    ("traffic", traffic::newest),
    ("over 1 GiB", traffic::large),
    ("older tables", traffic::older),
    ("virtual devices", vnics::fused),
    ("two communicators", life::two),
    ("reload", life::reload),
    ("lost name", life::lost_name),
    ("failing init", life::failing_init),
    ("NCCL_NET", names::net),
    ("NCCL_NET_PLUGIN", names::plugin),
    ("default profile", |bench| collectives::all(bench, Entry::Default)),
    ("fused device", |bench| collectives::all(bench, Entry::Fused)),
    ("MPIB profile", |bench| collectives::all(bench, Entry::Mpib)),
    ("all-reduce", |bench| collectives::these(bench, &[Collective::AllReduce, Collective::AllReduceInPlace])),
    ("all-gather", |bench| collectives::these(bench, &[Collective::AllGather])),
    ("reduce-scatter", |bench| collectives::these(bench, &[Collective::ReduceScatter])),
    ("broadcast", |bench| collectives::these(bench, &[Collective::Broadcast])),
    ("send and receive", |bench| collectives::these(bench, &[Collective::SendRecv])),
    ("two hosts of two GPUs", |bench| collectives::all(bench, Entry::TwoHosts)),
    ("GPUDirect", |bench| collectives::all(bench, Entry::GpuDirect)),
    ("registered buffers", |bench| collectives::all(bench, Entry::Registered)),
    ("one-sided", |bench| collectives::one_sided(bench, Entry::OneSided)),
    ("one-sided with flushes", |bench| collectives::one_sided(bench, Entry::OneSidedFlush)),
    ("one-sided with link down", |bench| collectives::one_sided(bench, Entry::OneSidedLinkDown)),
    ("one-sided by NCCL", |bench| collectives::one_sided(bench, Entry::OneSidedControl)),
    ("GIN by NCCL", |bench| collectives::one_sided(bench, Entry::GinControl)),
    ("32 channels", |bench| collectives::all(bench, Entry::Channels)),
    ("RAS", |bench| collectives::all(bench, Entry::Ras)),
    ("link down and back", |bench| collectives::all(bench, Entry::LinkDown)),
    ("killed rank", |bench| collectives::all(bench, Entry::Killed)),
    ("sockets", |bench| collectives::all(bench, Entry::Socket)),
];

/// Returns the place of a check in the report.
pub(crate) fn position(name: &str) -> usize {
    CHECKS.iter().position(|(known, _)| *known == name).unwrap_or(CHECKS.len())
}

impl<'a> Bench<'a> {
    /// Reads the library's file; nothing is loaded.
    pub(crate) fn new(
        release: &'a Release,
        stage: &'a Stage,
        path: PathBuf,
        deadline: Duration,
    ) -> Result<Self> {
        let library = facts::read(&path, release)?;
        Ok(Self { release, stage, path, library, deadline })
    }

    fn job(&self, steps: Vec<Step>) -> Job {
        Job {
            library: self.path.clone(),
            facts: self.library.facts.clone(),
            table: self.release.table,
            opens: self.release.opens.clone(),
            closes: self.release.closes.clone(),
            steps,
            peer: None,
        }
    }

    fn runner(&self, folder: &Folder, variables: &[(&str, Option<&str>)]) -> Result<Runner<'_>> {
        let mut environment: BTreeMap<String, String> = self.stage.environment(folder)?;
        for (name, value) in variables {
            match value {
                Some(value) => environment.insert((*name).to_owned(), (*value).to_owned()),
                None => environment.remove(*name),
            };
        }
        Ok(Runner { scratch: &self.stage.home, environment, deadline: self.deadline })
    }

    /// Runs one process, which may fail.
    fn alone(&self, folder: &Folder, variables: &[(&str, Option<&str>)], steps: Vec<Step>) -> Result<Ending> {
        self.runner(folder, variables)?.alone(&self.job(steps))
    }

    /// Runs one process, which must succeed.
    fn account(
        &self,
        folder: &Folder,
        variables: &[(&str, Option<&str>)],
        steps: Vec<Step>,
    ) -> Result<Account> {
        self.alone(folder, variables, steps)?.account()
    }

    /// Runs two processes, which must succeed; returns the sender's and the receiver's account.
    fn pair(&self, folder: &Folder, steps: Vec<Step>) -> Result<[Account; 2]> {
        let accounts = self.runner(folder, &[])?.pair(&self.job(steps))?;
        for account in &accounts {
            all_ours(account)?;
        }
        Ok(accounts)
    }
}

/// Checks that every communicator uses this plugin.
fn all_ours(account: &Account) -> Result<()> {
    all_given(account, OURS)
}

/// Checks that every communicator uses the plugin of this name.
fn all_given(account: &Account, name: &str) -> Result<()> {
    for (index, (called, net)) in account.opened().into_iter().enumerate() {
        if let Some((function, code)) = called.iter().find(|(_, code)| *code != 0) {
            return Err(Failure::wrong(format!("communicator {index}: {function} returned {code}")));
        }
        if net != Some(name) {
            return Err(Failure::wrong(format!("communicator {index} got {}", net.unwrap_or("nothing"))));
        }
    }
    Ok(())
}

/// The plugin's name in its tables.
const OURS: &str = "MPIB";

/// Formats versions.
fn versions(all: &[u32]) -> String {
    all.iter().map(|v| format!("v{v}")).collect::<Vec<_>>().join(" ")
}

/// Returns the steps of a communicator with one exchange.
pub(crate) fn with_exchange(plan: Plan) -> Vec<Step> {
    vec![Step::Open, Step::Exchange(0, plan), Step::Close(0)]
}

/// Compares structures, signatures and enumerators of the release's debug information with crate
/// `abi`.
fn layout(bench: &Bench<'_>) -> Result<String> {
    let compared = compare::compare(&bench.library.types);
    if let Some(first) = compared.differences.first() {
        return Err(Failure::wrong(format!(
            "differences: {}, the first: {first}",
            compared.differences.len()
        )));
    }
    // The comparison must include every table that the release looks up and this project has.
    let tables = bench.release.looks_up.iter().filter(|v| crate::stage::VERSIONS.contains(*v));
    for version in tables {
        let name = format!("ncclNet_v{version}_t");
        if !bench.library.types.structs.contains_key(&name) {
            return Err(Failure::wrong(format!("the debug information has no {name}")));
        }
    }
    Ok(format!("{} structures and {} enumerators are alike", compared.structs, compared.enumerators))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_one_place_and_a_name_that_options_and_tables_can_hold() {
        for (index, (name, _)) in CHECKS.iter().enumerate() {
            assert_eq!(position(name), index, "{name}");
            assert!(!name.contains([',', '|']), "{name}");
        }
        assert_eq!(position("no such check"), CHECKS.len());
    }
}
