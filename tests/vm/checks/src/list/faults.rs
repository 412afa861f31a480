//! Checks with faults of links, wires and processes.

use std::time::Instant;

use crate::host::Outcome;
use crate::pair::{Load, Pair, good};
use crate::world::{Kind, RAILS, World};

pub(super) const HALF: (&str, &str) = ("MPIB_SUP_SHARE", "512");
/// A rail that fails ends its connections.
const FIXED: (&str, &str) = ("MPIB_FAILOVER", "0");
/// 4.096 µs times 2 to the power of 16 is 0.27 s, the delay of a lost packet. A dead wire takes
/// seven times as long.
const SOON: (&str, &str) = ("NCCL_IB_TIMEOUT", "16");
/// rxe retries without end at 7, the default. For verbs this meaning of 7 applies only to receivers
/// that are not ready.
const SOME: (&str, &str) = ("NCCL_IB_RETRY_CNT", "6");

/// Index of SUP in [`RAILS`].
const SUP: usize = 1;

/// A fault of a rail on one host: the command that causes it, and the command that repairs it. The
/// variables `rail` and `number` are the interface's name and the number of its network.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    host: usize,
    rail: usize,
    wrong: &'static str,
    right: &'static str,
}

/// Returns the faults that take down a rail's link of one host.
pub(super) fn link_down(world: &World, rail: usize, host: usize) -> Vec<Fault> {
    if world.kind == Kind::Softverbs {
        let (wrong, right) = ("\"$softverbs_link\" $rail down", "\"$softverbs_link\" $rail up");
        return vec![Fault { host, rail, wrong, right }];
    }
    // The interface loses its IPv6 address with the link, and must resolve the neighbour again.
    let right = "ip link set $rail up && ip addr replace fd00:$((number + 1))::$n/64 dev $rail nodad && \
        until ping -c 1 -W 1 10.$number.0.$o >/dev/null; do :; done";
    let down = Fault { host, rail, wrong: "ip link set $rail down", right };
    // A switch drops packets to a link that is down. The wire between the guests would hold them
    // back instead, which would block the interface of the sender, host 1, and all its retries.
    if host == 0 { vec![down] } else { vec![Fault { host: 0, rail, ..DEAD }, down] }
}

/// Returns the fault that drops all packets that one host sends on a rail.
pub(super) const fn silent(rail: usize, host: usize) -> Fault {
    Fault { host, rail, ..DEAD }
}

const DEAD: Fault = netem("tc qdisc replace dev $rail root netem loss 100%");
const LOSSY: Fault = netem("tc qdisc replace dev $rail root netem loss 1%");
const SMALL: Fault =
    Fault { host: 1, rail: SUP, wrong: "ip link set $rail mtu 1500", right: "ip link set $rail mtu 4200" };

const fn netem(wrong: &'static str) -> Fault {
    Fault { host: 0, rail: SUP, wrong, right: "tc qdisc replace dev $rail root pfifo limit 10000" }
}

impl Fault {
    pub(super) fn cause(&self, world: &World) -> Outcome<()> {
        self.run(world, self.wrong)
    }

    pub(super) fn repair(&self, world: &World) -> Outcome<()> {
        self.run(world, self.right)
    }

    fn run(&self, world: &World, command: &str) -> Outcome<()> {
        let (rail, number) = (RAILS[self.rail], self.rail + 1);
        world.sh(self.host, &format!("rail={rail} number={number}; {command}")).map(drop)
    }
}

/// Returns the fault for both hosts.
fn both(fault: Fault) -> Vec<Fault> {
    vec![Fault { host: 0, ..fault }, Fault { host: 1, ..fault }]
}

/// Causes the faults, runs `f`, and repairs the faults even if `f` failed.
pub(super) fn with<T>(world: &World, faults: &[Fault], f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let wrong = faults.iter().try_for_each(|fault| fault.cause(world));
    let outcome = wrong.and_then(|()| f());
    faults.iter().try_for_each(|fault| fault.repair(world))?;
    outcome
}

/// SUP's interface has an MTU of 1500 on `ends` hosts. SOUT's rail has 4096.
pub(crate) fn mtu(world: &World, ends: usize) -> Outcome {
    let sizes = Load { sizes: "1,1023,1024,1025,4096,100000,1048576", group: 1, depth: 2, rounds: 1 };
    if world.kind == Kind::Softverbs {
        let small = |host: usize| world.devices(host, if host >= 2 - ends { 1024 } else { 4096 });
        let env = [small(0), small(1)];
        let worker = |host: usize| world.worker(host, 12, &[HALF, ("SOFTVERBS_DEVICES", &env[host])]);
        let mut pair = Pair { a: worker(0)?, b: worker(1)? };
        good(pair.connect()?)?;
        pair.send(sizes)?;
        pair.close()?;
        return Ok(format!("1024 of 4096 bytes at {ends} of SUP's ends"));
    }
    let small = both(SMALL);
    let before = world.hw_counter(0, "sup", "sent_pkts")?;
    with(world, &small[2 - ends..], || {
        let mut pair = Pair::connected(world, 12, &[HALF])?;
        pair.send(sizes)?;
        pair.close()
    })?;
    let packets = world.hw_counter(0, "sup", "sent_pkts")? - before;
    // Half of 2 times 1,151,169 bytes, in packets of at most 1024 bytes of data.
    if packets < 1124 {
        return Err(format!("{packets} packets on SUP, fewer than pieces of 1024 bytes make"));
    }
    Ok(format!("MTU 1500 at {ends} of SUP's ends, 4200 on SOUT; {packets} packets on SUP"))
}

/// 1 % of SUP's packets are lost.
pub(crate) fn loss(world: &World) -> Outcome {
    let dropped = with(world, &both(LOSSY), || {
        let mut pair = Pair::connected(world, 12, &[HALF, SOON, SOME])?;
        pair.send(Load::mebibytes(16))?;
        pair.close()?;
        world.sh(0, "tc -s qdisc show dev sup")
    })?;
    let lost =
        dropped.split_once("dropped ").and_then(|(_, rest)| rest.split(',').next()?.parse::<u32>().ok());
    match lost {
        Some(lost @ 1..) => Ok(format!("16 MiB, half of them on SUP, with {lost} packets lost on the way")),
        _ => Err(format!("no packet was lost: {dropped}")),
    }
}

/// SUP goes down on one host before connect. The connection logs one warning and works without SUP,
/// or is refused if a setting requires that.
pub(crate) fn down_at_connect(world: &World) -> Outcome {
    let mut pair = Pair::start(world, 12, &[HALF])?;
    let strict = [HALF, ("MPIB_STRICT", "1")];
    let mut refused = Pair::start(world, 12, &strict)?;
    let names = |e: &str| e.contains("sup:1") && e.contains("MPIB_STRICT=1");
    let said = with(world, &link_down(world, SUP, 1), || {
        good(pair.connect()?)?;
        pair.send(Load::mebibytes(4))?;
        let said = [pair.a.talk.ask("warnings")?, pair.b.talk.ask("warnings")?];
        for (said, end) in said.iter().zip(["host1", "host2"]) {
            // Both ends name the acceptor's port.
            let named = said.contains("sup:1: the port is not active");
            let named = named && said.contains("goes on with SOUT alone");
            // The adapter's own event may have a line, too.
            let lines = said.split(" | ").filter(|line| !line.contains("the link went down"));
            if !named || lines.count() != 1 {
                return Err(format!("{end} was to warn once that SUP is left out, but said {said:?}"));
            }
        }
        match refused.connect()? {
            (Err(a), Err(b)) if names(&a) && names(&b) => Ok(said[1].clone()),
            other => {
                Err(format!("with MPIB_STRICT=1 connect and accept were to fail and name SUP, but {other:?}"))
            }
        }
    })?;
    pair.close()?;
    again(world)?;
    Ok(said)
}

/// SUP's link is up but drops all packets: its probe fails.
pub(crate) fn dead_at_connect(world: &World) -> Outcome {
    let mut pair = Pair::start(world, 12, &[HALF, SOON, SOME])?;
    let said = with(world, &both(DEAD), || {
        good(pair.connect()?)?;
        pair.send(Load::mebibytes(4))?;
        pair.a.talk.ask("warnings")
    })?;
    if !said.contains("goes on with SOUT alone") || !said.contains("probe") {
        return Err(format!("the sender was to say that the probe failed, but said {said:?}"));
    }
    pair.close()?;
    again(world)?;
    Ok(said)
}

/// Without failover, the link of one host goes down during a transfer: first the sender's, which sees this on its
/// port, then the receiver's.
pub(crate) fn down_in_transfer(world: &World) -> Outcome {
    let mut reported = Vec::new();
    for host in [0, 1] {
        let mut pair = Pair::connected(world, 12, &[HALF, SOON, SOME, FIXED])?;
        pair.stream()?;
        let said = with(world, &link_down(world, SUP, host), || fails(&mut pair))?;
        // The driver fails what it cannot transmit at once, and the port's state follows.
        let at_once = "rdma_rxe also reports a port that goes down so";
        // Or it holds all packets back until the link is up.
        let never = "its adapter has reported no error";
        let names_port =
            ["sup:1 now: the port is not active", at_once, never].iter().any(|text| said.contains(text));
        if host == 0 && !names_port {
            return Err(format!("the sender was to name its own port, but: {said}"));
        }
        reported.push(format!("link of host{} down: {said}", host + 1));
        pair.close()?;
    }
    again(world)?;
    Ok(reported.join("; "))
}

/// Without failover, SUP's wire drops all packets during a transfer.
pub(crate) fn dead_in_transfer(world: &World) -> Outcome {
    let mut pair = Pair::connected(world, 12, &[HALF, SOON, SOME, FIXED])?;
    pair.stream()?;
    let said = with(world, &both(DEAD), || fails(&mut pair))?;
    if !said.contains("IBV_WC_RETRY_EXC_ERR") {
        return Err(format!("the retries were to be exceeded, but: {said}"));
    }
    pair.close()?;
    again(world)?;
    Ok(said)
}

/// Both ends of a transfer fail, and one of them names SUP's device.
fn fails(pair: &mut Pair) -> Outcome {
    let begun = Instant::now();
    let (a, b) = (pair.a.talk.answer(), pair.b.talk.answer());
    let seconds = begun.elapsed().as_secs_f64();
    match (a, b) {
        (Err(a), Err(b)) if a.contains("sup:1") || b.contains("sup:1") => {
            Ok(format!("after {seconds:.1} s sender: {}; receiver: {}", cause(&a), cause(&b)))
        }
        other => Err(format!("both ends were to fail and name SUP, but {other:?}")),
    }
}

/// Returns the plugin's last warning within a worker's answer.
fn cause(said: &str) -> &str {
    said.split_once("its last warning: ").map_or(said, |(_, warning)| warning)
}

/// One end's process is killed during a transfer; the other end gets an error.
pub(crate) fn killed(world: &World, host: usize) -> Outcome {
    let mut pair = Pair::connected(world, 12, &[HALF, SOON, SOME])?;
    pair.stream()?;
    let (victim, other) = if host == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
    world.sh(host, &format!("kill -KILL {}", victim.pid))?;
    let begun = Instant::now();
    let said = match other.talk.answer() {
        Err(said) => format!("after {:.1} s: {}", begun.elapsed().as_secs_f64(), cause(&said)),
        Ok(said) => return Err(format!("the other end said {said:?}")),
    };
    let other = if host == 0 { &mut pair.b } else { &mut pair.a };
    other.talk.ask("close")?;
    again(world)?;
    Ok(said)
}

/// New connections work on both rails.
pub(super) fn again(world: &World) -> Outcome<()> {
    let strict = [HALF, ("MPIB_STRICT", "1")];
    let mut pair = Pair::connected(world, 12, &strict).map_err(|e| format!("a new connection: {e}"))?;
    pair.send(Load::mebibytes(4)).map_err(|e| format!("on a new connection: {e}"))?;
    pair.close()
}
