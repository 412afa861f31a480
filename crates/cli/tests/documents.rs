//! The documents of `--json`: their schemas in the guide, and what is printed on failure. With
//! `WRITE_MANUAL=1` the test writes the schemas.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use crate::fake::{QUICK, fake, listener};
use serde_json::Value;

fn mpib(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mpib")).args(args).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

//= perf.md: the schemas of the documents
#[test]
fn the_guide_has_the_schemas() {
    for command in ["perf", "doctor", "hwcheck", "abi", "stats", "why"] {
        let (code, schema) = mpib(&[command, "--schema"]);
        assert_eq!(code, 0, "{command}");
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
        let path = PathBuf::from(guide).join(format!("{command}.schema.json"));
        if std::env::var_os("WRITE_MANUAL").is_some() {
            fs::write(&path, &schema).unwrap();
        }
        let hint = "WRITE_MANUAL=1 cargo test --workspace --test cli documents::";
        assert!(fs::read_to_string(&path).unwrap() == schema, "{} differs: {hint}", path.display());
    }
}

//= perf.md: each command prints a document on failure, too
#[test]
fn a_failure_is_a_document() {
    for (args, kind, exit_code) in [
        (&["abi", "--json", "/nonexistent"][..], "load", 3),
        (&["stats", "--json", "4194305"], "tool", 3),
        (&["doctor", "--json", "--plugin", "/nonexistent", "no such host"], "peer", 3),
    ] {
        let (code, text) = mpib(args);
        let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
        assert_eq!((code, &document["ok"]), (exit_code, &Value::Bool(false)), "{args:?}: {document}");
        let error = &document["error"];
        assert_eq!(
            (&error["kind"], &error["exit_code"]),
            (&kind.into(), &exit_code.into()),
            "{args:?}: {error}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty(), "{args:?}: {error}");
    }
}

/// Returns the subcommands that take `--json`, each with its documented exit codes.
fn documented() -> BTreeSet<(String, i32)> {
    let (_, help) = mpib(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands =
        commands.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let mut all = BTreeSet::new();
    for command in commands.filter(|command| *command != "help") {
        let (_, help) = mpib(&[command, "--help"]);
        let code = |line: &str| line.trim_start().split_once("  ")?.0.parse::<i32>().ok();
        let codes = help.lines().skip_while(|line| *line != "Exit codes:").skip(1).map_while(code);
        if help.split_whitespace().any(|word| word == "--json") {
            all.extend(codes.map(|code| (command.to_owned(), code)));
        }
    }
    all
}

/// Checks that the output is one document. Returns the exit code.
fn one_document(what: &str, output: &Output) -> i32 {
    let text = String::from_utf8_lossy(&output.stdout);
    let documents: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
    let count = documents.unwrap_or_else(|e| panic!("{what}: {e}")).len();
    assert_eq!(count, 1, "{what}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.code().unwrap()
}

//= perf.md: one document with every exit code
#[test]
fn every_call_prints_one_document() {
    // These need another user, a page of another version, a broken system, a job, or the files of a build.
    let elsewhere = [
        ("stats", 1),
        ("stats", 4),
        ("stats", 6),
        ("why", 1),
        ("why", 4),
        ("why", 6),
        ("why", 7),
        ("doctor", 0),
        ("doctor", 1),
        ("hwcheck", 0),
        ("hwcheck", 1),
    ];
    let mut missing = documented();
    assert!(
        missing.contains(&("perf".to_owned(), 8)) && missing.contains(&("stats".to_owned(), 6)),
        "{missing:?}"
    );
    for (command, code) in elsewhere {
        missing.remove(&(command.to_owned(), code));
    }
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libnccl.so.2");
    fs::copy(fake(), &library).unwrap();
    let library = library.to_str().unwrap();
    let plugin = fake().to_str().unwrap();
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let perf = |more: &[&'static str]| [&["perf", "--plugin", plugin], more, QUICK].concat();
    let soon: &[&str] = &["--timeout", "5"];
    for (fault, code, args) in [
        ("", 0, perf(&[])),
        ("", 1, perf(&["--pin", "1023"])),
        ("", 2, perf(&["--receives", "5"])),
        ("", 2, vec!["perf", "--no-such-option"]),
        ("", 3, vec!["perf", "--plugin", "/nonexistent"]),
        ("error", 4, perf(&[])),
        ("corrupt", 5, perf(&[])),
        ("stall", 6, [&perf(&[])[..], soon].concat()),
        ("crash", 7, perf(&[])),
        ("", 2, vec!["stats", "0"]),
        ("", 2, vec!["stats", "--metrics"]),
        ("", 3, vec!["stats", "4194305"]),
        ("", 5, vec!["stats", &pid]),
        ("", 2, vec!["why", "0"]),
        ("", 3, vec!["why", "4194305"]),
        ("", 5, vec!["why", &pid]),
        ("", 2, vec!["abi", "a", "b"]),
        ("", 3, vec!["abi", "/nonexistent"]),
        ("", 3, vec!["abi", library, "--plugin", plugin]),
        ("", 2, vec!["doctor", "--plugin", "/nonexistent"]),
        ("", 2, vec!["doctor", "--listen"]),
        ("", 3, vec!["doctor", "--plugin", "/nonexistent", "no such host"]),
        ("", 2, vec!["hwcheck", "--listen"]),
        ("", 3, vec!["hwcheck", "--plugin", "/nonexistent", "no such host"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
        command.args(&args).arg("--json").env("FAKE_FAULT", fault).stdin(Stdio::null());
        let output = command.output().unwrap();
        let what = format!("{args:?} {fault}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(one_document(&what, &output), code, "{what}");
        missing.remove(&(args[0].to_owned(), code));
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    // A host without other processes.
    let idle = ["-Urpf", "--mount-proc"];
    if Command::new("unshare").args(idle).arg("true").status().is_ok_and(|status| status.success()) {
        for args in [&["stats"][..], &["stats", "--watch", "0.1"], &["why"]] {
            let mut command = Command::new("unshare");
            command.args(idle).arg(env!("CARGO_BIN_EXE_mpib")).args(args).arg("--json");
            assert_eq!(one_document("an idle host", &command.output().unwrap()), 0);
        }
    } else {
        eprintln!("skipped: no process namespaces for an idle host");
    }
    for command in ["stats", "why"] {
        missing.remove(&(command.to_owned(), 0));
    }
    // A peer that fails.
    let (there, _said, address) = listener(&["--listen", "127.0.0.1:0", "--json"], "corrupt");
    let connect = ["perf", "--plugin", plugin, "--connect", &address, "--json"];
    let here = Command::new(env!("CARGO_BIN_EXE_mpib")).args(connect).args(QUICK).output().unwrap();
    assert_eq!(one_document("connect", &here), 8);
    assert_eq!(one_document("listen", &there.wait_with_output().unwrap()), 5);
    missing.remove(&("perf".to_owned(), 8));
    missing.retain(|(command, _)| command != "abi");
    assert_eq!(missing, BTreeSet::new(), "these have no case");
}

//= perf.md: mpib --version
#[test]
fn the_version_names_what_must_be_equal_at_both_ends() {
    let (code, text) = mpib(&["--version"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((code, lines.len()), (0, 6), "{text}");
    assert_eq!(lines[0], concat!("mpib ", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit ").unwrap();
    assert!(commit == "unknown" || commit.chars().all(|c| c.is_ascii_hexdigit()), "{text}");
    assert_eq!((lines[2], lines[3]), ("wire protocol 10", "tables v6 to v12"));
    assert!(
        lines[4].starts_with("between two machines: perf ") && lines[5].starts_with("statistics page "),
        "{text}"
    );
}

/// Between two releases the version is not that of the last one: the two refuse each other.
//= upgrade.md: the version of a tree ends in -dev if the changelog has entries for a release to come
#[test]
fn the_version_fits_the_changelog_and_is_one_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let read = |path: &str| fs::read_to_string(format!("{root}/{path}")).unwrap();
    let changelog = read("CHANGELOG.md");
    let mut sections = changelog.split("\n## [").skip(1);
    let unreleased = sections.next().and_then(|section| section.strip_prefix("Unreleased]")).unwrap();
    let (last, _) = sections.next().and_then(|section| section.split_once(']')).unwrap();
    let numbers = |version: &str| -> Vec<u64> { version.split('.').map(|n| n.parse().unwrap()).collect() };
    match version.strip_suffix("-dev") {
        Some(next) => assert!(numbers(next) > numbers(last), "{version} comes before {last}"),
        None => {
            assert!(!unreleased.contains("\n- "), "Unreleased has entries, and the version is {version}");
            assert_eq!(version, last);
        }
    }
    for (path, text) in [
        ("README.md", format!("**State: {version}.")),
        ("Cargo.toml", format!("nccl-net-abi = {{ version = \"{version}\"")),
        ("packaging/container/Dockerfile.installer", format!("ARG VERSION={version}\n")),
        ("packaging/container/Dockerfile.diagnostic", format!("ARG VERSION={version}\n")),
        ("packaging/helm/mpib/Chart.yaml", format!("\nversion: {version}\nappVersion: {version}\n")),
        ("packaging/kubernetes/mpib.yaml", format!("mpib-installer:{version}\n")),
        ("packaging/kubernetes/job-init-container.yaml", format!("mpib-installer:{version} ")),
    ] {
        assert!(read(path).contains(&text), "{path} has no {text:?}");
    }
}
