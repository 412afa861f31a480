//! Checks data between two processes, each with the release's core, through the core's own table.

use super::{Bench, versions, with_exchange};
use crate::{
    failure::{Failure, Result},
    script::{Account, Plan, StepResult, Tally},
    stage::{Folder, RAILS, VERSIONS},
};

/// Returns what the sender moved, if it used both rails.
pub(super) fn on_both_rails(sender: &Account) -> Result<&Tally> {
    let tally = sender.results.iter().find_map(|result| match result {
        StepResult::Exchanged(tally) => Some(tally),
        _ => None,
    });
    let tally = tally.ok_or_else(|| Failure::tool("the sender's account has no exchange"))?;
    for rail in RAILS {
        if tally.rails.get(rail).is_none_or(|bytes| *bytes == 0) {
            return Err(Failure::wrong(format!("rail {rail} carried nothing: {:?}", tally.rails)));
        }
    }
    Ok(tally)
}

/// Checks every size, alone and in groups of 8.
pub(super) fn newest(bench: &Bench<'_>) -> Result<String> {
    let [sender, _] = bench.pair(&Folder::Whole, with_exchange(Plan::whole()))?;
    let tally = on_both_rails(&sender)?;
    Ok(format!("{} messages of 1 B to 8 MiB, groups of 1 and 8, both rails", tally.messages))
}

/// Checks a message larger than the core itself sends before v9. The limit is the plugin's, not the
/// core's.
pub(super) fn large(bench: &Bench<'_>) -> Result<String> {
    let [sender, _] = bench.pair(&Folder::Whole, with_exchange(Plan::large()))?;
    let tally = on_both_rails(&sender)?;
    Ok(format!("{} bytes in one message, both rails", tally.bytes))
}

/// Checks each older table alone, which the core calls through a wrapper.
pub(super) fn older(bench: &Bench<'_>) -> Result<String> {
    let older: Vec<u32> = bench
        .release
        .looks_up
        .iter()
        .copied()
        .filter(|v| *v != bench.release.table && VERSIONS.contains(v))
        .collect();
    for version in &older {
        let at = |e: Failure| Failure { message: format!("v{version}: {}", e.message), ..e };
        let folder = Folder::Only(vec![*version]);
        let [sender, _] = bench.pair(&folder, with_exchange(Plan::whole())).map_err(at)?;
        on_both_rails(&sender).map_err(at)?;
        let found: Vec<u32> = sender
            .tables()
            .into_iter()
            .filter(|(_, address)| *address != 0)
            .map(|(version, _)| version)
            .collect();
        if found != [*version] {
            return Err(at(Failure::wrong(format!("the core used {}", versions(&found)))));
        }
    }
    Ok(if older.is_empty() { "the release uses none that the plugin has".into() } else { versions(&older) })
}
