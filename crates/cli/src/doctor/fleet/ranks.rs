//! `mpib doctor --all-ranks`: the ranks of a job, each with this command, check their hosts together.
//! They meet at rank 0, which has the fleet checked and prints the result. Each of them serves the
//! others, and ends with the same exit code.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use mpib_host_view::hostname;
use nccl_net_mpib_agent_iface::doctor::{Check, Level};
use serde::{Deserialize, Serialize};

use super::{Member, check, nodes};
use crate::doctor::{
    DoctorArgs,
    listen::{Permitted, Server, accept, first_message, reply},
    peer::{MAGIC, Opening, PATIENCE, Task, accepted},
};
use crate::failure::{Context, Failure, Kind};
use crate::nccl_conf::ConfFile;
use crate::perf::{self, Channel};

/// Variables with the rank and the number of ranks. A launcher of the upper lines may itself have been
/// started by one of the lower lines.
const LAUNCHERS: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
];
/// Most ranks.
const MOST: usize = 65_536;
/// How often rank 0 shows that it lives, and how long it may be silent.
const BEAT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(60);
/// Connections of others that may be unknown at a time, beside those of the ranks.
const STRANGERS: usize = 64;
/// How long to wait before another attempt to reach rank 0.
const AGAIN: Duration = Duration::from_millis(200);
/// Most missing ranks that are listed.
const LISTED: usize = 20;

/// This rank's place in its job.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    rank: usize,
    size: usize,
    /// Host and port of rank 0.
    root: (String, u16),
    /// The hosts of the job, if the launcher lists them.
    hosts: Vec<String>,
    /// This host as the scheduler knows it.
    name: String,
    /// Keeps jobs apart that share a host.
    id: String,
}

/// What a rank says when it comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::doctor) struct Arrival {
    rank: usize,
    size: usize,
    job: String,
    name: String,
    /// Where it serves other hosts.
    port: u16,
}

/// What rank 0 says to another one.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// The hosts that it may connect to.
    Hosts(Vec<String>),
    /// The check goes on.
    Goes,
    /// It has ended with this exit code.
    Over(u8),
}

/// A rank that has come.
struct Rank {
    arrival: Arrival,
    from: SocketAddr,
    channel: Channel,
}

/// Runs a rank; returns the exit code of all.
pub(in crate::doctor) fn main(args: &DoctorArgs, files: &[ConfFile]) -> Result<u8, Failure> {
    let job = Job::of(args.root.as_deref(), |name| env::var(name).ok())?;
    let hosts = Arc::new(OnceLock::new());
    let listener = perf::bind("", 0).tool("listen for the other ranks")?;
    let port = listener.local_addr().tool("read the listening address")?.port();
    let server = Server {
        args: args.clone(),
        files: files.to_vec(),
        permitted: Permitted::These(Arc::clone(&hosts)),
        is_quiet: true,
    };
    thread::spawn(move || server.run(listener));
    if job.rank == 0 { lead(&job, args, port, &hosts) } else { follow(&job, args.wait, port, &hosts) }
}

impl Job {
    fn of(root: Option<&str>, get: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let fail = |text: String| Err(Failure::new(Kind::Usage, text));
        let number = |name: &str| get(name)?.parse::<usize>().ok();
        let known = LAUNCHERS.iter().find_map(|(rank, size)| Some((number(rank)?, number(size)?)));
        let Some((rank, size)) = known else {
            let names: Vec<&str> = LAUNCHERS.iter().map(|(rank, _)| *rank).collect();
            return fail(format!(
                "--all-ranks: no launcher has set rank and number of ranks ({}); start it with srun or mpirun",
                names.join(", ")
            ));
        };
        if rank >= size || size > MOST {
            return fail(format!("--all-ranks: rank {rank} of {size}, expected at most {MOST} ranks from 0"));
        }
        let list = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST")).unwrap_or_default();
        let hosts = match nodes::expand(&list) {
            Ok(hosts) => hosts,
            Err(why) => return fail(format!("the list of hosts of the job cannot be read: {why}")),
        };
        let name = get("SLURMD_NODENAME").unwrap_or_else(hostname);
        let first = || hosts.first().cloned().or_else(|| get("MASTER_ADDR"));
        let Some(address) = root.map(str::to_owned).or_else(first) else {
            return fail("--all-ranks: no variable has the host of rank 0; name it with --root HOST".into());
        };
        let (host, port) = perf::split(&address)?;
        if root.is_none() && rank == 0 && hosts.first().is_some_and(|first| !is_same(first, &name)) {
            return fail(format!(
                "rank 0 is on {name}, and the job's first host is {host}; use --root {name}"
            ));
        }
        let id = get("SLURM_JOB_ID").unwrap_or_default();
        Ok(Self { rank, size, root: (host.to_owned(), port), hosts, name, id })
    }
}

/// Returns whether two names are those of one host: one may have its domain.
fn is_same(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    a == b || (short(a) == short(b) && (!a.contains('.') || !b.contains('.')))
}

/// Waits at rank 0 for the end.
fn follow(job: &Job, wait: Duration, port: u16, hosts: &OnceLock<Vec<String>>) -> Result<u8, Failure> {
    let arrival =
        Arrival { rank: job.rank, size: job.size, job: job.id.clone(), name: job.name.clone(), port };
    let place = |failure: Failure| failure.at(format!("rank {} on {}", job.rank, job.name));
    let mut channel = join(job, &arrival, wait).map_err(place)?;
    loop {
        match channel.recv(SILENCE, || Ok(())).map_err(place)? {
            // Rank 0 sends them once.
            Word::Hosts(list) => drop(hosts.set(list)),
            Word::Goes => {}
            Word::Over(code) => return Ok(code),
        }
    }
}

/// Connects to rank 0, which may begin to listen later.
fn join(job: &Job, arrival: &Arrival, wait: Duration) -> Result<Channel, Failure> {
    let (host, port) = &job.root;
    let end = Instant::now() + wait;
    let attempt = || {
        let stream = perf::dial(host, *port, "mpib doctor --all-ranks")?;
        let mut channel = Channel::new(stream.into(), "rank 0")?;
        channel.send(&Opening { task: Some(Task::Join(arrival.clone())), ..Opening::new(None) })?;
        let reply = channel.first(PATIENCE, MAGIC)?;
        Ok::<_, Failure>((channel, reply))
    };
    loop {
        match attempt() {
            Ok((channel, reply)) => return accepted(reply, host).map(|_| channel),
            Err(failure) if Instant::now() >= end => {
                let text = format!("no rank 0 within {wait:?} (--wait): {}", failure.message);
                return Err(Failure::new(failure.kind, text));
            }
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

/// Has the hosts of all ranks checked. `port`: where this host serves the others.
fn lead(job: &Job, args: &DoctorArgs, port: u16, hosts: &OnceLock<Vec<String>>) -> Result<u8, Failure> {
    let (host, meeting) = &job.root;
    // Each rank that has come is a connection.
    mpib_agent::Server::raise_limits();
    let listener = perf::bind("", *meeting).map_err(|e| {
        let text = format!("cannot listen on port {meeting}: {e}; name another one: --root {host}:PORT");
        Failure::new(Kind::Tool, text)
    })?;
    let ranks = Arc::new(Mutex::new(BTreeMap::new()));
    gather(job, listener, args.wait, &ranks);
    let own = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let members = members(job, own, &lock(&ranks));
    let absent = absent(job, args.wait, &lock(&ranks), &members);
    let addresses: Vec<String> = members.iter().map(|member| member.address.clone()).collect();
    // This is its only place.
    let _ = hosts.set(addresses.clone());
    say(&ranks, || Word::Hosts(addresses.clone()));
    let outcome = check(&members, args, absent).and_then(|fleet| fleet.finish(args));
    let code = outcome.as_ref().map_or(crate::doctor::NO_VERDICT, |verdict| verdict.exit_code());
    say(&ranks, || Word::Over(code));
    outcome.map(|_| code)
}

type Ranks = Arc<Mutex<BTreeMap<usize, Rank>>>;

fn lock(ranks: &Mutex<BTreeMap<usize, Rank>>) -> MutexGuard<'_, BTreeMap<usize, Rank>> {
    ranks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a word to all ranks. One that has ended is missed by the checks.
fn say(ranks: &Mutex<BTreeMap<usize, Rank>>, word: impl Fn() -> Word) {
    for rank in lock(ranks).values_mut() {
        let _ = rank.channel.send(&word());
    }
}

/// Waits until all ranks have come, or the time is over. From now on all of them hear that this one
/// lives.
fn gather(job: &Job, listener: TcpListener, wait: Duration, ranks: &Ranks) {
    let (sender, arrivals) = channel();
    let most = job.size + STRANGERS;
    thread::spawn(move || accept(&listener, most, move |stream, from| identify(stream, from, &sender)));
    let beats = Arc::clone(ranks);
    thread::spawn(move || {
        loop {
            thread::sleep(BEAT);
            say(&beats, || Word::Goes);
        }
    });
    let end = Instant::now() + wait;
    while lock(ranks).len() + 1 < job.size {
        let Some(mut rank) = next(&arrivals, end) else { return };
        let why = refusal(job, &rank.arrival, &lock(ranks));
        match why {
            None => {
                // A rank that cannot hear this is missed by the checks.
                let _ = rank.channel.send(&reply(None, false, String::new()));
                lock(ranks).insert(rank.arrival.rank, rank);
            }
            Some(why) => {
                eprintln!("mpib: refused rank {} of {}: {why}", rank.arrival.rank, rank.from);
                let _ = rank.channel.send(&reply(Some(why), false, String::new()));
            }
        }
    }
}

fn next(arrivals: &Receiver<Rank>, end: Instant) -> Option<Rank> {
    arrivals.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
}

/// Returns why a rank cannot belong to this job.
fn refusal(job: &Job, arrival: &Arrival, known: &BTreeMap<usize, Rank>) -> Option<String> {
    if arrival.job != job.id {
        return Some(format!("rank 0 of job {:?} is here, and not that of job {:?}", job.id, arrival.job));
    }
    if arrival.size != job.size {
        return Some(format!("it has {} ranks, and rank 0 has {}", arrival.size, job.size));
    }
    let is_known = arrival.rank == 0 || arrival.rank >= job.size || known.contains_key(&arrival.rank);
    is_known.then(|| format!("another rank {} is there, or there is none", arrival.rank))
}

/// Reads what a connection says first.
fn identify(stream: TcpStream, from: SocketAddr, sender: &Sender<Rank>) {
    // Another program has its refusal.
    let Ok((opening, mut channel)) = first_message(stream) else { return };
    match opening.task {
        // Rank 0 waits for no more ranks if it has all.
        Some(Task::Join(arrival)) => drop(sender.send(Rank { arrival, from, channel })),
        _ => {
            let why = "the ranks of a job meet here: mpib doctor --all-ranks";
            let _ = channel.send(&reply(Some(why.into()), false, String::new()));
        }
    }
}

/// Returns each host once: that of the least rank there.
fn members(job: &Job, own: String, ranks: &BTreeMap<usize, Rank>) -> Vec<Member> {
    let mut members = vec![Member { name: job.name.clone(), address: own }];
    for rank in ranks.values() {
        if members.iter().any(|member| member.name == rank.arrival.name) {
            continue;
        }
        let address = SocketAddr::new(rank.from.ip(), rank.arrival.port).to_string();
        members.push(Member { name: rank.arrival.name.clone(), address });
    }
    members
}

/// Returns a finding for each host without a rank; for the ranks if their hosts are not known.
fn absent(
    job: &Job,
    wait: Duration,
    ranks: &BTreeMap<usize, Rank>,
    members: &[Member],
) -> Vec<(String, Check)> {
    let missing: BTreeSet<usize> = (1..job.size).filter(|rank| !ranks.contains_key(rank)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let listed: Vec<String> = missing.iter().take(LISTED).map(ToString::to_string).collect();
    let more = if missing.len() > LISTED { ", …" } else { "" };
    let fail = |text: String| Check::new("answer", Level::Fail, text);
    let all = format!(
        "{} of {} ranks did not come within {wait:?} (--wait): {}{more}",
        missing.len(),
        job.size,
        listed.join(", ")
    );
    eprintln!("mpib: {all}");
    let has_rank = |host: &String| members.iter().any(|member| is_same(&member.name, host));
    let hosts = job.hosts.iter().filter(|host| !has_rank(host));
    let of_host =
        |host: &String| (host.clone(), fail(format!("no rank of it came within {wait:?} (--wait)")));
    let mut found: Vec<(String, Check)> = hosts.map(of_host).collect();
    if found.is_empty() {
        found.push((String::new(), fail(all)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(root: Option<&str>, set: &[(&str, &str)]) -> Result<Job, String> {
        let get =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Job::of(root, get).map_err(|failure| failure.message)
    }

    //= fleet.md: ranks are found by the variables of their launcher
    #[test]
    fn a_rank_finds_its_place_by_its_launcher() {
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_NODELIST", "node[07-10]"),
            ("SLURMD_NODENAME", "node08"),
            ("SLURM_JOB_ID", "77"),
        ];
        let found = job(None, &slurm).unwrap();
        assert_eq!((found.rank, found.size, &*found.name, &*found.id), (1, 4, "node08", "77"));
        assert_eq!((found.root, found.hosts.len()), (("node07".into(), perf::PORT), 4));
        // Under mpirun in a job of Slurm, the daemons of mpirun have Slurm's ranks.
        let mpirun = [&slurm[..], &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")]].concat();
        let found = job(Some("10.0.0.1:99"), &mpirun).unwrap();
        assert_eq!((found.rank, found.size, found.root), (3, 8, ("10.0.0.1".into(), 99)));
        for (rank, size) in LAUNCHERS {
            let found = job(Some("a"), &[(rank, "1"), (size, "2")]).unwrap();
            assert_eq!((found.rank, found.size), (1, 2));
        }
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1")];
        assert_eq!(job(None, &torchrun).unwrap().root.0, "node1");
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let two = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        for (root, set, expected) in [
            (None, &[][..], "start it with srun or mpirun"),
            (None, &two, "name it with --root HOST"),
            (Some("a:b"), &two, "is not an address"),
            (None, &[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], "rank 2 of 2"),
            (None, &[two[0], two[1], ("SLURM_JOB_NODELIST", "a[1")], "brackets that do not fit"),
            (
                None,
                &[two[0], two[1], ("SLURM_JOB_NODELIST", "a[1-2]"), ("SLURMD_NODENAME", "a2")],
                "use --root a2",
            ),
        ] {
            let error = job(root, set).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_host_has_one_name_with_and_without_its_domain() {
        assert!(is_same("node1", "node1.example.org") && is_same("node1", "node1"));
        assert!(!is_same("node1.a", "node1.b") && !is_same("node1", "node10"));
    }
}
