//! Checks which rail carries which data.

use std::time::{Duration, Instant};

use crate::host::{LIMIT, Outcome};
use crate::pair::{Load, Pair};
use crate::world::{Kind, World};

const MIB: u64 = 1 << 20;
/// Greatest ratio of a rail's bytes to its data. The excess is packet headers, acknowledgements of
/// the other direction and neighbour discovery.
const SLACK: f64 = 1.25;
/// Most bytes of a rail without data: handshake, CTS writes, acknowledgements.
pub(super) const IDLE: u64 = 256 << 10;

/// Checks that SUP carried `sup` of `total` bytes and SOUT the rest.
pub(super) fn judge(carried: [u64; 2], total: u64, sup: u64) -> Outcome {
    let expected = [total - sup, sup];
    for (rail, name) in ["SOUT", "SUP"].into_iter().enumerate() {
        let most = (expected[rail] as f64 * SLACK) as u64 + IDLE;
        if !(expected[rail]..=most).contains(&carried[rail]) {
            return Err(format!(
                "{name} sent {} bytes, expected {} to {most}; rails {carried:?}",
                carried[rail], expected[rail]
            ));
        }
    }
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    Ok(format!("SOUT {:.2} MiB, SUP {:.2} MiB", mib(carried[0]), mib(carried[1])))
}

/// Moves 8 MiB with this share, in parts per 1024.
pub(crate) fn share(world: &World, share: u64) -> Outcome {
    let mut pair = Pair::connected(world, 12, &[("MPIB_SUP_SHARE", &share.to_string())])?;
    let carried = pair.carried(world, |pair| pair.send(Load::mebibytes(8)))?;
    pair.close()?;
    judge(carried, 8 * MIB, 8 * MIB * share / 1024)
}

pub(crate) fn within_an_island(world: &World) -> Outcome {
    let mut pair = Pair::connected(world, 12, &[])?;
    let carried = pair.carried(world, |pair| pair.send(Load::mebibytes(8)))?;
    no_warnings(&mut pair)?;
    pair.close()?;
    judge(carried, 8 * MIB, 8 * MIB)
}

pub(crate) fn between_islands(world: &World) -> Outcome {
    // Each host is a separate island.
    let mut pair = Pair::connected(world, 12, &[("MPIB_ISLAND_PREFIX_LEN", "32")])?;
    if world.kind == Kind::Kernel {
        let made = [world.queue_pairs(0, "sout")?, world.queue_pairs(0, "sup")?];
        if made != [1, 0] {
            return Err(format!("{made:?} queue pairs on SOUT and SUP, expected [1, 0]"));
        }
    }
    let carried = pair.carried(world, |pair| pair.send(Load::mebibytes(8)))?;
    no_warnings(&mut pair)?;
    pair.close()?;
    judge(carried, 8 * MIB, 0)
}

fn no_warnings(pair: &mut Pair) -> Outcome<()> {
    for worker in [&mut pair.a, &mut pair.b] {
        let said = worker.talk.ask("warnings")?;
        if !said.is_empty() {
            return Err(format!("host{} warns: {said}", worker.host + 1));
        }
    }
    Ok(())
}

/// An agent on the sender's host changes the share of a connection in use.
pub(crate) fn hints(world: &World) -> Outcome {
    const FOLDER: &str = "/tmp/vm-checks-agent";
    let mut agent = world.start(0, "the agent", &[], &format!("agent {FOLDER}"))?;
    agent.answer()?;
    let (socket, hints) = (format!("{FOLDER}/agent.sock"), format!("{FOLDER}/hints"));
    let env = [("MPIB_MODE", "1"), ("MPIB_AGENT_SOCKET", socket.as_str()), ("MPIB_HINTS", hints.as_str())];
    let mut pair = Pair::connected(world, 12, &env)?;
    let mut said = Vec::new();
    for share in [256, 1024, 0, 512] {
        // The answer is the number of registered pairs of hosts: 0 until this pair has registered.
        let registered = || agent.ask(&share.to_string()).map(|pairs| pairs != "0");
        until("the connection is registered", registered)?;
        // The plugin reads the hint after some time. Until then SUP carries another share.
        let mut last = Err("nothing was sent".into());
        until("the new share counts", || {
            let carried = pair.carried(world, |pair| pair.send(Load::mebibytes(4)))?;
            last = judge(carried, 4 * MIB, 4 * MIB * share / 1024);
            Ok(last.is_ok())
        })
        .map_err(|e| format!("share {share}: {e}: {last:?}"))?;
        said.push(format!("{share}: {}", last?));
    }
    pair.close()?;
    Ok(said.join("; "))
}

/// Repeats `so` until it returns true, up to a limit of time.
pub(super) fn until(what: &str, mut so: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if so()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("never: {what}"))
}

/// The port's first GID is link-local, the next is IPv4, the last IPv6: the plugin chooses IPv4
/// without a setting. Only with IPv4 are the hosts in one island, where data goes on SUP.
pub(crate) fn gid_choice(world: &World) -> Outcome {
    let gids = world.sh(0, "cat /sys/class/infiniband/sout/ports/1/gids/[0-3]")?;
    let gids: Vec<&str> = gids.lines().collect();
    let begin =
        ["fe80:", "0000:0000:0000:0000:0000:ffff:0a01:0001", "fd00:0002:", "0000:0000:0000:0000:0000:0000:"];
    if gids.len() != 4 || !gids.iter().zip(begin).all(|(gid, begin)| gid.starts_with(begin)) {
        return Err(format!("the table was to be link-local, IPv4, IPv6, empty; it is {gids:?}"));
    }
    let types =
        world.sh(0, "cat /sys/class/infiniband/sout/ports/1/gid_attrs/types/[0-2]")?.replace('\n', ", ");
    let moved = within_an_island(world)?;
    Ok(format!("types {types}; of link-local, IPv4 and IPv6 it took IPv4: {moved}"))
}

/// Rails that use IPv6 addresses: without a setting if the port has no other global address, else
/// by GID index.
pub(crate) fn ipv6(world: &World) -> Outcome {
    let env: &[(&str, &str)] = match world.kind {
        Kind::Kernel => &[],
        // Of link-local, IPv4 and IPv6, each in both versions of RoCE.
        Kind::Softverbs => &[("NCCL_IB_GID_INDEX", "5")],
    };
    let ipv4 = |verb: &str| -> Outcome<()> {
        if world.kind == Kind::Kernel {
            for host in [0, 1] {
                for (rail, net) in [("sout", "10.1.0"), ("sup", "10.2.0")] {
                    world.sh(host, &format!("ip addr {verb} {net}.{}/24 dev {rail}", host + 1))?;
                }
            }
        }
        Ok(())
    };
    let moved = || -> Outcome {
        let mut pair = Pair::connected(world, 12, env)?;
        let carried = pair.carried(world, |pair| pair.send(Load::mebibytes(8)))?;
        no_warnings(&mut pair)?;
        pair.close()?;
        // Both addresses have the same 64-bit prefix: one island.
        judge(carried, 8 * MIB, 8 * MIB)
    };
    ipv4("del")?;
    let outcome = moved();
    ipv4("add")?;
    outcome
}
