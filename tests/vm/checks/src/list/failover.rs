//! Checks with a rail that fails and returns under load: the data goes on, and the rail returns.

use super::faults::{Fault, HALF, again, link_down, silent, with};
use super::policy::{IDLE, until};
use crate::host::Outcome;
use crate::pair::{Load, Pair, good};
use crate::world::{RAILS, World};

const MIB: u64 = 1 << 20;

/// The link of a rail goes down on one host, and up again.
pub(crate) fn down(world: &World, rail: usize, host: usize) -> Outcome {
    cycle(world, rail, &link_down(world, rail, host))
}

/// All packets that one host sends on a rail are dropped, then none. With default settings the
/// kernel's adapter retries without an end: only the watchdog notices the fault.
pub(crate) fn silence(world: &World, rail: usize, host: usize) -> Outcome {
    cycle(world, rail, &[silent(rail, host)])
}

/// Causes the faults of a rail in the middle of a transfer, which goes on. The other rail carries
/// another one. After the repair the rail returns while data moves.
fn cycle(world: &World, rail: usize, faults: &[Fault]) -> Outcome {
    // The timeouts are the default ones. With short ones the kernel's adapter sends packets again on
    // a busy machine, and then may refuse them (IBV_WC_REM_INV_REQ_ERR).
    let mut pair = Pair::connected(world, 12, &[HALF])?;
    let half = |pair: &mut Pair| pair.carried(world, |pair| pair.send(Load::mebibytes(8)));
    both_carry(half(&mut pair)?)?;

    under_way(&mut pair)?;
    eprintln!("the first transfer is under way");
    let (went_on, alone) = with(world, faults, || {
        let went_on = good((pair.a.talk.answer(), pair.b.talk.answer()))?;
        let alone = pair.carried(world, |pair| pair.send(Load::mebibytes(8)))?;
        if alone[rail] > IDLE || alone[1 - rail] < 8 * MIB {
            return Err(format!("without {} the rails carry {alone:?} of 8 MiB", RAILS[rail]));
        }
        eprintln!("{went_on} bytes went on, then {alone:?}");
        Ok((went_on, alone))
    })?;
    eprintln!("{} is repaired", RAILS[rail]);
    // The rail returns under load.

    let mut last = Err("nothing was sent".into());
    until("the rail carries its half again", || {
        last = both_carry(half(&mut pair)?);
        Ok(last.is_ok())
    })
    .map_err(|e| format!("{e}: {last:?}"))?;
    let mut counts = Vec::new();
    until("both ends to count an episode", || {
        counts = vec![pair.a.talk.ask("episodes")?, pair.b.talk.ask("episodes")?];
        Ok(counts.iter().all(|count| !count.starts_with("0 ")))
    })
    .map_err(|e| format!("{e}: {counts:?}"))?;
    pair.close()?;
    again(world)?;
    Ok(format!(
        "{went_on} bytes went on, then 8 MiB over {alone:?}, and over both: {}; episodes and bytes sent again {counts:?}",
        last?
    ))
}

/// Checks that each rail carries its half of 8 MiB. There is no upper limit: the kernel's adapters
/// send packets again on a busy machine.
fn both_carry(carried: [u64; 2]) -> Outcome {
    if carried.iter().all(|bytes| *bytes >= 4 * MIB) {
        return Ok(format!("{carried:?}"));
    }
    Err(format!("the rails carry {carried:?} of 8 MiB, 4 MiB each were expected"))
}

/// Starts a transfer that is under way when this function returns.
fn under_way(pair: &mut Pair) -> Outcome<()> {
    pair.begin(Load { sizes: "262144", group: 1, depth: 4, rounds: 64 })
}
