//! Eight connections between two processes for `SOAK_SECONDS`: random sizes, groups and depths,
//! hints that change at random, connections that end and begin again. Every byte is checked, and
//! nothing is left behind. With `SOAK_FLAPS=1` a rail's link goes down and up all the time.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mpib_tests::agent::{Agent, Place};
use mpib_tests::peer::{self, Peer, commands};
use mpib_tests::process::{Role, watchdog_after};
use mpib_tests::rng::Rng;
use mpib_tests::{TWO_RAILS, here, holdings, isolated_with, set};

use nccl_net_mpib_agent_iface::stats::pages_of;
use softverbs::Flap;

use super::side::{CONNECTIONS, Side};

/// Duration unless the environment sets another.
const SECONDS: u64 = 20;
/// Time before the first comparison: pools, caches and the allocator's arenas grow to their size.
const WARM_UP: u64 = 3;
/// Bound of the growth of mappings: the allocator adds and removes some.
const MAPPINGS_BOUND: u64 = 32;
/// Bounds of the growth of resident memory in KiB: in total, and for each connection, because
/// counters and timers keep some state of connections.
const MEMORY_BOUND: u64 = 4 << 10;
const MEMORY_EACH: u64 = 2;

const HERE: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16");
const THERE: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16");

/// What a process holds while it has no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: u64,
    /// But for the one that softverbs starts when there is something to retry.
    threads: u64,
    /// Queue pairs, completion queues, shared receive queues and registrations.
    objects: [u64; 4],
    mappings: u64,
    /// KiB
    resident: u64,
}

fn threads() -> u64 {
    let (softverbs, others): (Vec<_>, Vec<_>) =
        holdings::threads().into_iter().partition(|name| name == "softverbs");
    assert!(softverbs.len() <= 1, "{softverbs:?}");
    others.len() as u64
}

impl Held {
    fn now() -> Self {
        let o = softverbs::objects().unwrap();
        Self {
            descriptors: holdings::descriptors() as u64,
            threads: threads(),
            objects: [o.qps, o.cqs, o.srqs, o.mrs].map(|n| n as u64),
            mappings: holdings::mappings() as u64,
            resident: holdings::resident() as u64,
        }
    }

    /// Before any connection, with what the first one makes on each of the two adapters for all: a
    /// registration of the memory that receives in shared queues name.
    fn idle() -> Self {
        let mut held = Self::now();
        held.objects[3] += 2;
        held
    }

    /// Once what the last connections had is given back: closed channels and the agent's client
    /// linger for a moment.
    fn settled(idle: &Self) -> Self {
        let mut held = Self::now();
        let start = Instant::now();
        while (held.descriptors, held.threads, held.objects) != (idle.descriptors, idle.threads, idle.objects)
        {
            assert!(
                start.elapsed() < mpib_tests::pair::LIMIT,
                "{held:?} is held, {idle:?} before any connection"
            );
            std::thread::yield_now();
            held = Self::now();
        }
        held
    }

    fn words(&self) -> String {
        let mut words = format!("{} {}", self.descriptors, self.threads);
        self.objects.iter().for_each(|n| write!(words, " {n}").unwrap());
        write!(words, " {} {}", self.mappings, self.resident).unwrap();
        words
    }

    fn of_words(n: &[u64]) -> Self {
        let objects = [n[2], n[3], n[4], n[5]];
        Self { descriptors: n[0], threads: n[1], objects, mappings: n[6], resident: n[7] }
    }
}

/// What one process answers after a round.
#[derive(Debug, Clone, Copy)]
struct Answer {
    held: Held,
    connections: u64,
    messages: u64,
    bytes: u64,
}

impl Answer {
    /// What must be equal was seen to be by [`Held::settled`].
    fn check(&self, before: &Self, who: &str) {
        let (held, was) = (&self.held, &before.held);
        let memory = MEMORY_BOUND + MEMORY_EACH * (self.connections - before.connections);
        assert!(held.mappings <= was.mappings + MAPPINGS_BOUND, "{who}: {self:?} after {before:?}");
        assert!(held.resident <= was.resident + memory, "{who}: {self:?} after {before:?}");
    }
}

fn answer(side: &Side, idle: &Held) -> Answer {
    let read = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    Answer {
        held: Held::settled(idle),
        connections: read(&side.done.connections),
        messages: read(&side.done.messages),
        bytes: read(&side.done.bytes),
    }
}

/// The second process.
fn other_process() {
    let mut side = Side::new(1, flaps());
    let idle = Held::idle();
    for line in commands() {
        let words: Vec<&str> = line.split(' ').collect();
        let [seed, round, dir] = words[..] else { panic!("{line:?}") };
        let wait = || std::thread::sleep(Duration::from_millis(1));
        side.round(seed.parse().unwrap(), round.parse().unwrap(), Path::new(dir), wait);
        let a = answer(&side, &idle);
        peer::answer(&format!("{} {} {} {}", a.connections, a.messages, a.bytes, a.held.words()));
    }
}

/// Pause between the flapping of two rails: a rail that has flapped is out of use for 30 s at most.
const CALM: Duration = Duration::from_secs(35);
/// From this duration on both rails flap, one after the other.
const BOTH: Duration = Duration::from_secs(150);

/// Whether `SOAK_FLAPS` requests that rails flap.
fn flaps() -> bool {
    std::env::var("SOAK_FLAPS").is_ok_and(|value| value == "1")
}

/// The link of one rail of this process goes down and up by the seed, and in the second half of a
/// long run the link of the other rail. The downtimes are longer and shorter than `MPIB_STALL_MS`.
struct Flapping {
    seed: u64,
    start: Instant,
    whole: Duration,
    /// Index of the rail, if one flaps.
    rail: Option<usize>,
}

impl Flapping {
    fn new(seed: u64, seconds: u64) -> Self {
        Self { seed, start: Instant::now(), whole: Duration::from_secs(seconds), rail: None }
    }

    /// Returns the rail that flaps now.
    fn due(&self) -> Option<usize> {
        let (now, first) = (self.start.elapsed(), (self.seed % 2) as usize);
        if self.whole < BOTH || now < self.whole / 2 {
            Some(first)
        } else {
            (now > self.whole / 2 + CALM).then_some(1 - first)
        }
    }

    fn drive(&mut self) {
        let due = self.due();
        if self.rail == due {
            return;
        }
        let device = |rail| ["soft0", "soft1"][rail];
        if let Some(rail) = self.rail {
            softverbs::heal(device(rail)).unwrap();
        }
        if let Some(rail) = due {
            let ms = Duration::from_millis;
            let flap = Flap { seed: self.seed | 1, down: (ms(1), ms(400)), up: (ms(50), ms(4000)) };
            softverbs::flap(device(rail), flap).unwrap();
            eprintln!("soak: {} flaps", device(rail));
        }
        self.rail = due;
    }

    /// Ends the flapping.
    fn end(mut self) {
        if let Some(rail) = self.rail.take() {
            softverbs::heal(["soft0", "soft1"][rail]).unwrap();
        }
    }
}

/// Both processes, the agent, and what they began with.
struct Soak {
    flapping: Option<Flapping>,
    seed: u64,
    rng: Rng,
    place: Place,
    agent: Agent,
    side: Side,
    idle: Held,
    peer: Peer,
    hints: u64,
}

impl Soak {
    /// One round in both processes.
    fn round(&mut self, round: u64) -> [Answer; 2] {
        let Self { flapping, seed, rng, agent, side, peer, hints, .. } = self;
        let dir = self.place.file().parent().unwrap();
        peer.say(&format!("{seed} {round} {}", dir.display()));
        side.round(*seed, round, dir, || {
            // The pause is the hints' pace. In the first round the agent learns of the pairs.
            std::thread::sleep(Duration::from_millis(1));
            if let (Some(flapping), true) = (flapping.as_mut(), round > WARM_UP) {
                flapping.drive();
            }
            if round > 1 {
                let share = rng.pick(&[0, 1, 256, 512, 768, 1023, 1024, 2000, rng.clone().below(1025)]);
                rng.draw();
                agent.tell(&format!("set {} {share}", 1 + rng.below(2)));
                *hints += 1;
            }
        });
        agent.forget();
        let ours = answer(side, &self.idle);
        // No limit but the watchdog's: the rounds of the two end at different times.
        let line = loop {
            match peer.answered() {
                Some(line) => break line,
                None => std::thread::yield_now(),
            }
        };
        let n: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let theirs = Answer { connections: n[0], messages: n[1], bytes: n[2], held: Held::of_words(&n[3..]) };
        [ours, theirs]
    }
}

fn soak(seconds: u64) {
    watchdog_after(Duration::from_secs(seconds + 600));
    let (seed, rng) = Rng::from_env();
    let place = Place::create();
    set("MPIB_AGENT_SOCKET", Some(place.socket()));
    set("MPIB_HINTS", Some(place.file()));
    let agent = place.agent();
    let peer = Peer::start_as(Role::Second, &[THERE]);
    let side = Side::new(0, flaps());
    let idle = Held::idle();
    let flapping = flaps().then(|| Flapping::new(seed, seconds));
    let mut soak = Soak { flapping, seed, rng, place, agent, side, idle, peer, hints: 0 };
    let (start, mut printed) = (Instant::now(), 0);
    let (mut before, mut after, mut round) = (None, None, 0);
    while start.elapsed().as_secs() < seconds || round <= WARM_UP {
        round += 1;
        let answers = soak.round(round);
        if round == WARM_UP {
            before = Some(answers);
        }
        let now = start.elapsed().as_secs();
        if now >= printed + 10 {
            printed = now;
            eprintln!("soak: {}", report(now, seconds, round, &soak, &answers));
        }
        after = Some(answers);
    }
    let (before, after) = (before.unwrap(), after.unwrap());
    for (i, who) in ["this process", "the other process"].into_iter().enumerate() {
        after[i].check(&before[i], who);
    }
    let flaps = soak.flapping.is_some();
    soak.flapping.take().into_iter().for_each(Flapping::end);
    let rails = softverbs::counters();
    let good = |errors: u64| flaps || errors == 0;
    assert!(rails.iter().all(|rail| rail.total.bytes > 0 && good(rail.total.errors)), "{rails:?}");
    if flaps {
        let page = &pages_of(std::process::id()).unwrap()[0];
        let found = page.summary();
        eprintln!(
            "soak: {} episodes, {} bytes sent again, {} returns",
            found.episodes, found.replayed, found.returns
        );
        assert!(found.episodes > 0, "the flaps have caused no episode: {found:?}");
    }
    assert!(soak.hints > 0);
    eprintln!("soak: {}", report(start.elapsed().as_secs(), seconds, round, &soak, &after));
    eprintln!(
        "soak: held after warm-up {:?}\nsoak: and in the end {:?}",
        before.map(|a| a.held),
        after.map(|a| a.held)
    );
    soak.peer.finish();
}

fn report(now: u64, seconds: u64, round: u64, soak: &Soak, answers: &[Answer; 2]) -> String {
    let sum = |f: fn(&Answer) -> u64| answers.iter().map(f).sum::<u64>();
    format!(
        "{now} of {seconds} s, TEST_SEED={}: round {round} of {CONNECTIONS} connections, {} made, {} messages, {:.1} GB, \
         every byte right; {} hints; {} MiB held",
        soak.seed,
        sum(|a| a.connections) / 2,
        sum(|a| a.messages),
        sum(|a| a.bytes) as f64 / 1e9,
        soak.hints,
        sum(|a| a.held.resident) >> 10,
    )
}

//= mpib.md: eight connections with random traffic lose no byte and no resource
#[test]
fn eight_connections_lose_nothing_and_leave_nothing() {
    let seconds =
        std::env::var("SOAK_SECONDS").map_or(SECONDS, |s| s.parse().expect("SOAK_SECONDS is a number"));
    let env = [("MPIB_MODE", "1"), ("MPIB_HINT_POLL_US", "200"), ("MPIB_STALL_MS", "50"), HERE];
    isolated_with(here!(), &[&TWO_RAILS[..], &env].concat(), other_process, || soak(seconds));
}
