//! Checks that open and close many connections.

use crate::host::Outcome;
use crate::pair::{Load, Pair, connect, good};
use crate::world::{Kind, RAILS, World};

const CYCLES: usize = 1000;
/// Connections that are made at the same time, because each one mostly waits.
const BATCH: usize = 20;

/// Makes 1,000 connections, sends one message on each, and closes them. No resource remains.
pub(crate) fn cycles(world: &World) -> Outcome {
    let env = [("MPIB_SUP_SHARE", "512"), ("MPIB_SOUT_QP", "1"), ("MPIB_SUP_QP", "1")];
    let mut pair = Pair::start(world, 12, &env)?;
    for batch in 0..CYCLES / BATCH {
        let at = |e| format!("batch {batch} of {BATCH}: {e}");
        good(connect(&mut pair.a.talk, &mut pair.b.talk, BATCH)?).map_err(at)?;
        pair.send(Load { sizes: "1000", group: 1, depth: 1, rounds: 1 }).map_err(at)?;
        pair.a.talk.ask("close").map_err(at)?;
        pair.b.talk.ask("close").map_err(at)?;
    }
    if world.kind == Kind::Kernel {
        for host in [0, 1] {
            for rail in RAILS {
                let left = world.queue_pairs(host, rail)?;
                if left > 0 {
                    return Err(format!("host{} has {left} queue pairs left on {rail}", host + 1));
                }
            }
        }
    }
    pair.close()?;
    Ok(format!("{CYCLES} connections, {BATCH} at a time, each with a message; no queue pair is left"))
}
