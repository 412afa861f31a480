//! Every input of `fuzz/corpus`, and mutations of them that are the same in each run. A target that
//! fails prints the input: put it into the corpus, and mend the fault.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};

use mpib_fuzz_targets::mutation::mutate;
use mpib_fuzz_targets::{TARGETS, Target};
use mpib_tests::pair::LIMIT;
use mpib_tests::process::watchdog_after;
use mpib_tests::rng::Rng;
use mpib_tests::{here, isolated};

/// Set to a number: so many times the mutations.
const ROUNDS: &str = "FUZZ_ROUNDS";

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Runs the target, and names the input if it fails.
fn run(target: Target, input: &[u8], name: &dyn Fn() -> String) {
    if let Err(why) = panic::catch_unwind(|| (target.run)(input)) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{} fails with {}:\n{hex}", target.name, name());
        panic::resume_unwind(why);
    }
}

fn replay(name: &str) {
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "no input of {name}");
    for (path, input) in &corpus {
        run(target, input, &|| path.display().to_string());
    }
    let inputs: Vec<_> = corpus.into_iter().map(|(_, input)| input).collect();
    let times: usize = std::env::var(ROUNDS).map_or(1, |text| text.parse().expect("a number of times"));
    watchdog_after(LIMIT * 5 * times.try_into().unwrap());
    let mut rng = Rng::new(0);
    for round in 0..target.rounds * times {
        let input = mutate(&inputs, &mut rng);
        run(target, &input, &|| format!("round {round}"));
    }
}

macro_rules! replays {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            let target = TARGETS.into_iter().find(|target| target.name == stringify!($name));
            isolated(here!(), target.expect("a target").env, || replay(stringify!($name)));
        })*

        #[test]
        fn each_target_has_a_test_and_a_program() {
            let names = TARGETS.map(|target| target.name);
            assert_eq!(names, [$(stringify!($name)),*]);
            let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
            let programs = fs::read_dir(programs).unwrap().map(|file| file.unwrap().path());
            let mut programs: Vec<_> =
                programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
            programs.sort();
            let mut names = names.to_vec();
            names.sort();
            assert_eq!(programs, names);
        }
    };
}

replays!(
    messages,
    handle,
    link,
    mailbox,
    handshake,
    routes,
    receiver,
    fifo,
    agent,
    stats,
    calls,
    config,
    episodes,
    registrations,
    strangers,
    commands
);
