//! `compat-matrix` as a user starts it, with a foreign core, `fake-core/fake.c`, which has at most
//! one fault.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

/// The release of the fake core.
const RELEASE: &str = "2.18.3";

/// The root of a repository for a run's output, and a cache with the fake core.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(fault: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(place.dir.path().join("compat-matrix")).unwrap();
        fs::create_dir_all(place.dir.path().join("cache/mpib/nccl").join(RELEASE)).unwrap();
        place.set(fault);
        place
    }

    /// Compiles the core with a fault.
    fn set(&self, fault: &str) {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library = self.dir.path().join("cache/mpib/nccl").join(RELEASE).join("libnccl.so.2");
        let layout = (fault == "LAYOUT").then_some("-DFAULT_LAYOUT");
        let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args([
                "-shared",
                "-fPIC",
                "-g",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-O1",
                "-I",
            ])
            .arg(here.join("../abi/include"))
            .arg(format!("-DFAULT={fault}"))
            .args(layout)
            .arg(here.join("tests/fake-core/fake.c"))
            .args(["-ldl", "-o"])
            .arg(&library)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "the fake core does not compile");
    }

    fn command(&self, args: &[&str]) -> Command {
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build");
        assert!(build.join("libnccl-net-mpib.so").is_file(), "run \"make build\" first (make test does)");
        let mut command = Command::new(env!("CARGO_BIN_EXE_compat-matrix"));
        command.arg("run").args(args).arg("--build").arg(build.canonicalize().unwrap());
        command.current_dir(self.dir.path()).env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command.stdin(Stdio::null());
        command
    }

    /// Returns exit code and output.
    fn run(&self, args: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (status.code().unwrap(), text)
    }

    fn results(&self) -> String {
        fs::read_to_string(self.dir.path().join("compat-matrix/RESULTS.md")).unwrap_or_default()
    }
}

/// Asserts that a check finds the fault with these words.
#[track_caller]
fn finds(fault: &str, check: &str, words: &[&str]) {
    let place = Place::new(fault);
    // Only what never ends needs the limit.
    let deadline = if fault == "HANG" { "2" } else { "120" };
    let (code, said) = place.run(&[RELEASE, "--checks", check, "--deadline", deadline]);
    assert_eq!(code, 1, "{said}");
    let line = said.lines().find(|line| line.contains("FAILED")).unwrap_or_else(|| panic!("{said}"));
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
}

#[test]
fn a_core_that_is_right_passes_and_its_results_are_compared() {
    let place = Place::new("NONE");
    let checks = "layout,symbols,lookup,table,devices,traffic,two communicators,lost name";
    let (code, said) = place.run(&[RELEASE, "--checks", checks, "--write"]);
    assert_eq!((code, said.contains("all is well, releases: 1")), (0, true), "{said}");
    let written = place.results();
    assert!(
        written.contains("## NCCL 2.18.3") && written.contains("| lookup | ok | v6 v5 v4 |"),
        "{written}"
    );
    let symbols = "| symbols | ok | ncclCollNetPlugin v6 v5 v4, ncclNetPlugin v6 v5 v4 |";
    assert!(written.contains(symbols), "{written}");

    let (code, said) = place.run(&[RELEASE, "--checks", "lookup,table"]);
    assert_eq!(code, 0, "{said}");

    place.set("ORDER");
    let (code, said) = place.run(&[RELEASE, "--checks", "lookup"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("  - ok: v6 v5 v4\n  + FAILED: looks for v4 v5 v6"), "{said}");
    assert_eq!(place.results(), written, "a run without --write leaves the file alone");
}

#[test]
fn a_crash_is_reported_with_its_step() {
    finds("CRASH", "table", &["died of signal 6 at step 0: open a communicator"]);
}

#[test]
fn a_core_that_hangs_is_ended() {
    finds("HANG", "table", &["did not end in 2s at step 0: open a communicator"]);
}

#[test]
fn a_function_that_fails_is_named() {
    finds("FAIL", "table", &["communicator 0: _Z11ncclNetInitP8ncclComm returned 3"]);
}

#[test]
fn a_table_that_the_list_does_not_know_is_found() {
    finds(
        "NEW_TABLE",
        "symbols",
        &["NCCL 2.18.3 looks for ncclRailPlugin_v1, which matrix.toml does not list"],
    );
}

#[test]
fn a_listed_table_that_the_core_does_not_look_for_is_found() {
    finds(
        "LOST_TABLE",
        "symbols",
        &["NCCL 2.18.3 does not look for ncclCollNetPlugin_v4, which matrix.toml"],
    );
}

#[test]
fn another_release_than_the_file_says_is_found() {
    finds("VERSION", "lookup", &["reports release 21801"]);
}

#[test]
fn a_table_that_is_not_the_plugins_is_found() {
    finds("COPY", "table", &["found v6, but calls another table instead"]);
}

#[test]
fn a_wrong_byte_is_found() {
    finds("CORRUPT", "traffic", &["receiver: message", "of 1 bytes", "arrived at byte 0"]);
}

#[test]
fn a_wrong_size_is_found() {
    finds("TRUNCATE", "traffic", &["128", "129"]);
}

#[test]
fn another_layout_is_found() {
    finds("LAYOUT", "layout", &["ncclNetProperties_v6_t"]);
}

#[test]
fn a_release_that_cannot_be_fetched_fails_the_run_unless_allowed() {
    let place = Place::new("NONE");
    fs::remove_dir_all(place.dir.path().join("cache/mpib/nccl").join(RELEASE)).unwrap();
    // Without an index pip fails at once, with or without a network.
    let run = |more: &[&str]| {
        let mut command = place.command(&[&[RELEASE, "--checks", "table"], more].concat());
        command
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", place.dir.path())
            .env("PIP_CONFIG_FILE", "/dev/null");
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = run(&[]);
    assert_eq!((code, said.contains("NCCL 2.18.3: not run")), (1, true), "{said}");
    assert_eq!(run(&["--allow-missing"]).0, 0);
}

#[test]
fn a_check_that_the_release_cannot_run_is_no_failure_and_no_result() {
    let place = Place::new("NONE");
    assert_eq!(place.run(&[RELEASE, "--checks", "table", "--write"]).0, 0);
    let (code, said) = place.run(&[RELEASE, "--checks", "registered buffers,killed rank", "--write"]);
    assert_eq!(code, 0, "{said}");
    let written = place.results();
    for line in [
        "| NCCL | table | registered buffers | killed rank |",
        "| 2.18.3 | ok | - | - |",
        "| registered buffers | - | the release does not register user buffers by DMA-BUF |",
        "| killed rank | - | the release drops errors of its network |",
    ] {
        assert!(written.lines().any(|written| written == line), "{line:?} is not in: {written}");
    }
}

#[test]
fn libraries_are_kept_or_dropped() {
    let place = Place::new("NONE");
    let library = place.dir.path().join("cache/mpib/nccl").join(RELEASE).join("libnccl.so.2");
    assert_eq!(place.run(&[RELEASE, "--checks", "table", "--write", "--keep"]).0, 0);
    assert!(library.is_file());
    assert_eq!(place.run(&[RELEASE, "--checks", "table", "--drop"]).0, 0);
    assert!(!library.exists());
}

#[test]
fn unknown_releases_and_checks_are_named() {
    let place = Place::new("NONE");
    let (code, said) = place.run(&["1.2.3"]);
    assert_eq!((code, said.contains("release \"1.2.3\" is not in")), (2, true), "{said}");
    let (code, said) = place.run(&[RELEASE, "--checks", "speed"]);
    assert_eq!((code, said.contains("no check \"speed\"; expected one of layout,")), (2, true), "{said}");
}

impl Place {
    /// What "end" is given: the library, and what "facts" wrote of it.
    fn facts(&self) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_compat-matrix"));
        command.arg("facts").arg(self.dir.path().join("facts")).arg(RELEASE);
        command.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", self.dir.path());
        command.env("PIP_CONFIG_FILE", "/dev/null").stdin(Stdio::null()).output().unwrap()
    }

    /// Both ends, on two rails of one softverbs fabric: exit code and what was printed, the
    /// sender's first.
    fn ends(&self, host: u8) -> [(i32, String); 2] {
        let Output { status, stdout, stderr } = self.facts();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let library = String::from_utf8(stdout).unwrap();
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build").canonicalize().unwrap();
        let [_, _, a, b] = std::process::id().to_be_bytes();
        let ends = ["sender", "receiver"].map(|role| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_compat-matrix"));
            // An address of this process and test alone.
            command.args(["end", role, &format!("127.{a}.{b}.{host}:5556")]);
            command.args(["--library", library.trim(), "--facts"]).arg(self.dir.path().join("facts"));
            command.env("LD_LIBRARY_PATH", format!("{0}:{0}/softverbs", build.display()));
            command.env("SOFTVERBS_FABRIC", format!("end-{}-{host}", std::process::id()));
            command.env("SOFTVERBS_DEVICES", "sout:addr=10.1.0.1/24;sup:addr=10.2.0.1/24");
            command.envs([("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup"), ("NCCL_NET_PLUGIN", "mpib")]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        ends.map(|end| {
            let Output { status, stdout, stderr } = end.wait_with_output().unwrap();
            let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            (status.code().unwrap(), text)
        })
    }
}

#[test]
fn two_ends_that_share_nothing_but_a_connection_move_data_through_the_core() {
    let [sender, receiver] = Place::new("NONE").ends(1);
    assert_eq!(sender.0, 0, "{} {}", sender.1, receiver.1);
    assert!(sender.1.starts_with("NCCL 2.18.3: v6, called in place; "), "{}", sender.1);
    assert!(sender.1.ends_with(" bytes\n"), "{}", sender.1);
    assert_eq!(sender, receiver);
}

#[test]
fn each_end_finds_a_table_that_is_not_the_plugins() {
    for (code, said) in Place::new("COPY").ends(2) {
        assert_eq!((code, said.contains("calls another table instead")), (1, true), "{said}");
    }
}

#[test]
fn an_end_finds_a_wrong_byte_and_the_other_one_ends_too() {
    let [sender, receiver] = Place::new("CORRUPT").ends(3);
    assert_eq!((receiver.0, receiver.1.contains("arrived at byte 0")), (1, true), "{}", receiver.1);
    assert_eq!((sender.0, sender.1.contains("lost the other process")), (1, true), "{}", sender.1);
}

#[test]
fn facts_of_a_missing_library_have_an_exit_code() {
    let place = Place::new("NONE");
    fs::remove_dir_all(place.dir.path().join("cache/mpib/nccl").join(RELEASE)).unwrap();
    let Output { status, stderr, .. } = place.facts();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!((status.code(), said.contains("NCCL 2.18.3")), (Some(3), true), "{said}");
}

/// Loads the example plugin of crate nccl-net-versions into the fake core.
fn load(fault: &str) -> (i32, String) {
    let place = Place::new(fault);
    let program = Path::new(env!("CARGO_BIN_EXE_compat-matrix"));
    let mut command = Command::new(program);
    command.arg("load").arg(crate::loopback_example::path(program)).arg(RELEASE);
    command.env("XDG_CACHE_HOME", place.dir.path().join("cache")).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (status.code().unwrap(), text)
}

#[test]
fn another_plugin_moves_data_through_a_core() {
    let (code, said) = load("NONE");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("NCCL 2.18.3: Loopback: v6, called in place; 32 messages, "), "{said}");
}

#[test]
fn a_wrong_byte_and_a_wrong_table_of_another_plugin_are_found() {
    let (code, said) = load("CORRUPT");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("receiver: message") && said.contains("arrived at byte 0"), "{said}");
    let (code, said) = load("COPY");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("found v6, but calls another table instead"), "{said}");
}
