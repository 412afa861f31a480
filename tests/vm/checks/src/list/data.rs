//! Checks of the data that arrives.

use crate::host::Outcome;
use crate::pair::{Load, Pair, good};
use crate::world::{Kind, World};

/// Sizes around every boundary of the split and of the immediate, then NCCL's largest message.
const SMALL: &str = "0,1,7,8,63,64,127,128,129,255,256,257,511,512,513,1000,4095,4096,4097,65535,65536,65537";
const LARGE: &str = "1048576,2097153,4194304";

const HALF: (&str, &str) = ("MPIB_SUP_SHARE", "512");

/// The plugin has loaded the libibverbs of this world: rdma-core's, or that of softverbs.
pub(crate) fn library(world: &World) -> Outcome {
    let worker = world.worker(0, 12, &[])?;
    let maps = world
        .sh(0, &format!("awk '{{print $6}}' /proc/{}/maps | grep -E 'ibverbs|rxe' | sort -u", worker.pid))?;
    let softverbs = world.sh(
        0,
        &format!(
            "grep -c softverbs_counters_json $(readlink -f {}) || true",
            maps.lines().find(|l| l.contains("/libibverbs.so")).unwrap_or("/dev/null")
        ),
    )?;
    let (rxe, soft) = (maps.contains("/librxe-rdmav"), softverbs.trim() != "0");
    match world.kind {
        Kind::Kernel if rxe && !soft => Ok(maps.replace('\n', " ")),
        Kind::Softverbs if soft && !rxe => Ok(maps.replace('\n', " ")),
        kind => Err(format!("not that of {kind:?}: {maps:?}")),
    }
}

/// Moves every size through the table of one version.
pub(crate) fn table(world: &World, abi: u32) -> Outcome {
    let mut pair = Pair::connected(world, abi, &[HALF, ("MPIB_SPLIT_MIN", "0")])?;
    pair.send(Load { sizes: SMALL, group: 1, depth: 4, rounds: 2 })?;
    pair.send(Load { sizes: LARGE, group: 1, depth: 2, rounds: 1 })?;
    pair.send(Load { sizes: SMALL, group: 8, depth: 1, rounds: 2 })?;
    pair.send(Load { sizes: LARGE, group: 8, depth: 1, rounds: 1 })?;
    pair.close()?;
    Ok("0 B to 4 MiB, groups of 1 and 8".into())
}

/// Two connections, one in each direction, move data at the same time.
pub(crate) fn both_directions(world: &World) -> Outcome {
    let mut pair = Pair::connected(world, 12, &[HALF])?;
    good(pair.connect_back()?)?;
    let moved = pair.exchange(Load { sizes: "1000,100000,1048576", group: 2, depth: 2, rounds: 3 })?;
    pair.close()?;
    Ok(format!("{moved} bytes at each end"))
}

/// Registrations of NCCL's buffers request relaxed ordering of the kernel's driver, on both rails.
pub(crate) fn relaxed_ordering(world: &World) -> Outcome {
    const TRACING: &str = "/sys/kernel/tracing";
    // The fifth argument of rxe_reg_user_mr is the requested access.
    let sh = |command: &str| world.sh(0, &format!("cd {TRACING} && {command}"));
    sh(
        "echo 'p:reg rxe_reg_user_mr length=%dx:u64 access=%r8:x32' >kprobe_events && echo >trace && echo 1 >events/kprobes/reg/enable",
    )?;
    let mut pair = Pair::connected(world, 12, &[HALF])?;
    pair.send(Load { sizes: "777777", group: 1, depth: 1, rounds: 1 })?;
    pair.close()?;
    let trace = sh("cat trace && echo 0 >events/kprobes/reg/enable && echo >kprobe_events")?;
    // IBV_ACCESS_RELAXED_ORDERING, with remote write and local write. Nothing reads, so remote reads
    // are not allowed.
    let asked = |line: &&str| line.contains("access=0x100003");
    // Only the region of that message has 190 pages.
    let ours: Vec<_> = trace.lines().filter(|line| line.contains("length=778240 ")).collect();
    match ours.iter().filter(|line| asked(line)).count() {
        2 if ours.len() == 2 => Ok("the driver saw access 0x100003, twice for one buffer".into()),
        _ => Err(format!("expected two registrations with access 0x100003, found {ours:?} in {trace}")),
    }
}
