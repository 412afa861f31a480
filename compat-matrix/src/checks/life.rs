//! Checks communicators that begin and end, and a plugin whose init fails.

use std::collections::BTreeSet;

use super::{Bench, OURS, traffic::on_both_rails};
use crate::{
    failure::{Failure, Result},
    matrix::{Quirk, Unloads},
    script::{Account, Plan, Step},
    seen::Seen,
    stage::{Folder, VERSIONS},
};

/// Returns how often the plugin's file was closed.
fn closed(account: &Account) -> usize {
    let mut ours = BTreeSet::new();
    let mut closed = 0;
    for seen in &account.seen {
        match seen {
            Seen::Opened { name, handle } if name.contains("nccl-net") && *handle != 0 => {
                ours.insert(*handle);
            }
            Seen::Closed { handle } if ours.contains(handle) => closed += 1,
            _ => {}
        }
    }
    closed
}

/// Checks whether the end of the last communicator closed the file, as matrix.toml expects from
/// `when`.
fn closed_as_known(bench: &Bench<'_>, account: &Account, when: &[Unloads]) -> Result<&'static str> {
    let expected = when.contains(&bench.release.unloads);
    match (expected, closed(account) > 0) {
        (true, true) => Ok("closed and opened again"),
        (false, false) => Ok("never closed"),
        (_, seen) => Err(Failure::wrong(format!(
            "the plugin's file was {}closed; matrix.toml expects unloads = {:?}",
            if seen { "" } else { "not " },
            bench.release.unloads
        ))),
    }
}

/// Opens two communicators, closes the first one while the second is in use, and opens a third
/// after both.
pub(super) fn two(bench: &Bench<'_>) -> Result<String> {
    let exchange = |comm| Step::Exchange(comm, Plan::brief());
    let steps = vec![
        Step::Open,
        Step::Open,
        exchange(0),
        exchange(1),
        Step::Close(0),
        exchange(1),
        Step::Close(1),
        Step::Open,
        exchange(2),
        Step::Close(2),
    ];
    let [sender, _] = bench.pair(&Folder::Whole, steps)?;
    on_both_rails(&sender)?;
    let closed = closed_as_known(bench, &sender, &[Unloads::Last])?;
    Ok(format!("data on both, on one after the other's end, on a third; {closed}"))
}

/// Opens one communicator after another.
pub(super) fn reload(bench: &Bench<'_>) -> Result<String> {
    let exchange = |comm| Step::Exchange(comm, Plan::brief());
    let steps = vec![Step::Open, exchange(0), Step::Close(0), Step::Open, exchange(1), Step::Close(1)];
    let [sender, _] = bench.pair(&Folder::Whole, steps)?;
    on_both_rails(&sender)?;
    let closed = closed_as_known(bench, &sender, &[Unloads::One, Unloads::Last])?;
    let without = if bench.release.has(Quirk::NoInitAfterReload) { ", without an init (known)" } else { "" };
    Ok(format!("data before and after; {closed}{without}"))
}

/// Opens one communicator after another without a libnccl-net.so. Checks whether the release still
/// knows the name in NCCL_NET_PLUGIN.
pub(super) fn lost_name(bench: &Bench<'_>) -> Result<String> {
    let steps = vec![Step::Open, Step::Close(0), Step::Open];
    let account = bench.account(&Folder::OneName, &[], steps)?;
    let nets: Vec<_> =
        account.opened().into_iter().map(|(_, net)| net.unwrap_or("nothing").to_owned()).collect();
    match (&nets[..], bench.release.has(Quirk::ForgetsName)) {
        ([first, second], false) if first == OURS && second == OURS => Ok("remembered".into()),
        ([first, second], true) if first == OURS && second != OURS => {
            Ok(format!("forgotten, goes on to {second} (known); libnccl-net.so helps, see reload"))
        }
        (_, forgets) => Err(Failure::wrong(format!(
            "the communicators got {}; matrix.toml expects that the name is {}",
            nets.join(", "),
            if forgets { "forgotten" } else { "remembered" }
        ))),
    }
}

/// Names a rail that does not exist: the core must use its next transport and end normally.
pub(super) fn failing_init(bench: &Bench<'_>) -> Result<String> {
    let absent = [("MPIB_HCA_SUP", Some("absent"))];
    let steps = || vec![Step::Open, Step::Close(0)];
    let next = after_failure(&bench.account(&Folder::Whole, &absent, steps())?)?;
    let mut line = format!("goes on to {next}");
    let Some(old) = old_table(bench) else { return Ok(line) };
    let ending = bench.alone(&Folder::Only(vec![old]), &absent, steps())?;
    if bench.release.has(Quirk::DiesOfFailedInit) {
        return match ending.signal() {
            Some(libc::SIGSEGV) => Ok(format!("{line}; with v{old} the core crashes (known)")),
            _ => Err(Failure::wrong(format!(
                "with v{old} the core does not crash any more: correct matrix.toml"
            ))),
        };
    }
    let at = |e: Failure| Failure { message: format!("v{old}: {}", e.message), ..e };
    let next = after_failure(&ending.account().map_err(at)?).map_err(at)?;
    line += &format!("; with v{old} to {next}");
    Ok(line)
}

/// Returns the newest table without a finalize, if the release uses it through a wrapper.
fn old_table(bench: &Bench<'_>) -> Option<u32> {
    let release = bench.release;
    release.looks_up.iter().copied().find(|v| *v < release.table && *v <= 10 && VERSIONS.contains(v))
}

/// Returns the network that a communicator has instead of this plugin's.
fn after_failure(account: &Account) -> Result<String> {
    let opened = account.opened();
    let (called, net) = opened.first().ok_or_else(|| Failure::tool("no communicator was opened"))?;
    match (called.iter().find(|(_, code)| *code != 0), net) {
        (Some((function, code)), _) => Err(Failure::wrong(format!("{function} returned {code}"))),
        (None, None) => Err(Failure::wrong("the communicator has no network")),
        (None, Some(OURS)) => Err(Failure::wrong("the communicator has the plugin whose init failed")),
        (None, Some(other)) => Ok((*other).to_owned()),
    }
}
