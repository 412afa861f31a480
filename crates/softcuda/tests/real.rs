//! Communicators of a real NCCL over its own sockets, where a release is in the cache of the
//! compatibility matrix (`make matrix-short` or `make collectives` fetches some).

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use softcuda::{
    DataType, Settings,
    rank::{Collective, Job, Memory, Operator, Outcome, Test},
    world::{Director, End, Start, World},
};
use tempfile::TempDir;

/// Returns the newest cached library.
fn library() -> Option<PathBuf> {
    let home = |name: &str| env::var_os(name).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
    let version = |path: &Path| -> Option<Vec<u32>> {
        path.file_name()?.to_str()?.split('.').map(|part| part.parse().ok()).collect()
    };
    let folders = fs::read_dir(cache.join("mpib/nccl")).ok()?.flatten().map(|entry| entry.path());
    let libraries = folders.filter_map(|path| Some((version(&path)?, path.join("libnccl.so.2"))));
    let found = libraries.filter(|(_, library)| library.is_file()).max().map(|(_, library)| library);
    if found.is_none() {
        eprintln!("NOT RUN: no release of NCCL is in the cache");
    }
    found
}

/// Runs ranks on different hosts. `change` is applied to each job.
fn run(ranks: u32, tests: Vec<Test>, change: impl Fn(&mut Job)) -> Option<(TempDir, Vec<End>)> {
    direct(ranks, tests, change, &mut Laps(1))
}

/// Ends the ranks after a number of laps.
struct Laps(usize);

impl Director for Laps {
    fn lap(&mut self, processes: &[u32]) -> io::Result<bool> {
        assert!(processes.iter().all(|id| Path::new(&format!("/proc/{id}")).exists()), "{processes:?}");
        self.0 -= 1;
        Ok(self.0 > 0)
    }

    fn tick(&mut self, _: &[u32]) -> io::Result<()> {
        Ok(())
    }
}

/// As [`run`], with a director of the laps.
fn direct(
    ranks: u32,
    tests: Vec<Test>,
    change: impl Fn(&mut Job),
    director: &mut dyn Director,
) -> Option<(TempDir, Vec<End>)> {
    let library = library()?;
    let program = Path::new(env!("CARGO_BIN_EXE_collective-rank"));
    // Cargo builds the library for this test into the folder of the test's own file.
    let softcuda = env::current_exe().unwrap().with_file_name("libsoftcuda.so");
    let scratch = tempfile::tempdir().unwrap();
    let world = World::new(program, Some(&softcuda), scratch.path(), Duration::from_secs(60)).unwrap();
    let start = |rank: u32| {
        let host = format!("host{rank}");
        let mut job = Job {
            library: library.clone(),
            softcuda: None,
            settings: Settings { host: host.clone(), ..Settings::default() },
            rank,
            ranks,
            device: 0,
            hub: PathBuf::new(),
            one_sided: Vec::new(),
            tests: tests.clone(),
            memory: Memory::Plain,
            window: false,
            killed: None,
            laps: false,
            timed: false,
        };
        change(&mut job);
        let set = [
            ("HOME", scratch.path().display().to_string()),
            ("NCCL_HOSTID", host),
            ("NCCL_NET", "Socket".into()),
            ("NCCL_IB_DISABLE", "1".into()),
            ("NCCL_SOCKET_IFNAME", "lo".into()),
            ("NCCL_RAS_ENABLE", "0".into()),
            ("NCCL_MAX_NCHANNELS", "2".into()),
        ];
        let environment: BTreeMap<_, _> = set.map(|(name, value)| (name.to_owned(), value)).into();
        Start { job, environment, host_name: None }
    };
    let ends = world.direct((0..ranks).map(start).collect(), director).unwrap();
    Some((scratch, ends))
}

fn test(collective: Collective, element: DataType, count: usize) -> Test {
    Test { collective, element, operator: Operator::Sum, count, times: 2 }
}

fn outcomes(ends: &[End]) -> Vec<&Outcome> {
    ends.iter().map(|end| end.outcome().unwrap_or_else(|why| panic!("{why}"))).collect()
}

#[test]
fn every_collective_is_right_on_three_ranks() {
    let sizes = [(DataType::U8, 1), (DataType::F32, 100_003)];
    let tests = Collective::ALL.into_iter();
    let tests: Vec<_> = tests.flat_map(|c| sizes.map(|(element, count)| test(c, element, count))).collect();
    let Some((_scratch, ends)) = run(3, tests.clone(), |_| ()) else { return };
    for (rank, outcome) in outcomes(&ends).into_iter().enumerate() {
        assert_eq!(outcome.tests.len(), tests.len());
        for (place, (test, ran)) in tests.iter().zip(&outcome.tests).enumerate() {
            assert_eq!((ran.wrong, &ran.first), (0, &None), "rank {rank} {test:?}");
            // In a reduction only the root receives: the root of either round.
            let is_root = (0..2).any(|round| (place + round) % 3 == rank);
            let receives = test.collective != Collective::Reduce || is_root;
            assert_eq!(ran.compared > 0, receives, "rank {rank} {test:?}");
        }
        assert_eq!(outcome.asynchronous_error, None);
    }
}

#[test]
fn ranks_that_disagree_about_the_values_see_wrong_elements() {
    // NCCL does not compare types between ranks: the second one adds bits of another type.
    let tests = vec![test(Collective::AllReduce, DataType::I32, 1000)];
    let change = |job: &mut Job| {
        if job.rank == 1 {
            job.tests[0].element = DataType::F32;
        }
    };
    let Some((_scratch, ends)) = run(2, tests, change) else { return };
    let wrong = outcomes(&ends).into_iter().any(|outcome| outcome.tests.iter().any(|ran| ran.wrong > 0));
    assert!(wrong, "{ends:?}");
}

#[test]
fn ranks_repeat_their_tests_as_often_as_the_director_wants() {
    let tests =
        vec![test(Collective::AllReduce, DataType::F32, 1000), test(Collective::SendRecv, DataType::U8, 10)];
    let mut laps = Laps(3);
    let Some((_scratch, ends)) = direct(2, tests, |job| job.laps = true, &mut laps) else { return };
    assert_eq!(laps.0, 0, "the director was called after each lap");
    for outcome in outcomes(&ends) {
        let compared: Vec<_> = outcome.tests.iter().map(|ran| (ran.compared, ran.wrong)).collect();
        assert_eq!(compared, [(3 * 2 * 1000, 0), (3 * 2 * 10, 0)]);
    }
}

#[test]
fn timed_tests_take_time_and_compare_nothing() {
    let tests = vec![test(Collective::AllReduce, DataType::F32, 1000)];
    let Some((_scratch, ends)) = run(2, tests, |job| job.timed = true) else { return };
    for outcome in outcomes(&ends) {
        let [ran] = &outcome.tests[..] else { panic!("{outcome:?}") };
        assert!(ran.compared == 0 && ran.seconds > 0.0, "{ran:?}");
    }
}

#[test]
fn a_killed_rank_gives_the_other_one_an_asynchronous_error() {
    let tests = vec![Test { times: 4, ..test(Collective::AllReduce, DataType::F32, 100_003) }];
    let Some((_scratch, ends)) = run(2, tests, |job| job.killed = Some(1)) else { return };
    let [End::Done(survivor), End::Died { status, .. }] = &ends[..] else { panic!("{ends:?}") };
    assert!(status.contains("SIGKILL"), "{status}");
    assert!(survivor.asynchronous_error.is_some(), "{survivor:?}");
}
