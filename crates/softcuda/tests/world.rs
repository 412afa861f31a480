//! Ranks that do not end as they should, played by shell scripts.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use softcuda::{
    Settings,
    rank::{Job, Memory},
    world::{End, Start, World},
};
use tempfile::TempDir;

fn start(rank: u32, ranks: u32) -> Start {
    let job = Job {
        library: PathBuf::new(),
        softcuda: None,
        settings: Settings::default(),
        rank,
        ranks,
        device: 0,
        hub: PathBuf::new(),
        one_sided: Vec::new(),
        tests: Vec::new(),
        memory: Memory::Plain,
        window: false,
        killed: None,
        laps: false,
        timed: false,
    };
    let environment = BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]);
    Start { job, environment, host_name: None }
}

/// Writes a rank program that is this script.
fn program(folder: &TempDir, script: &str) -> PathBuf {
    let program = folder.path().join("collective-rank");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Returns a world whose rank program is this script.
fn world(script: &str, silence: Duration) -> (TempDir, World) {
    let folder = tempfile::tempdir().unwrap();
    let program = program(&folder, script);
    let softcuda = folder.path().join("libsoftcuda.so");
    fs::write(&softcuda, "").unwrap();
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let world = World::new(&program, Some(&softcuda), &scratch, silence).unwrap();
    (folder, world)
}

#[test]
fn a_rank_that_ends_without_a_report_has_its_status_and_its_last_words() {
    let (_folder, world) = world("echo first; echo last >&2; exit 70", Duration::from_secs(60));
    let ends = world.run(vec![start(0, 1)]).unwrap();
    let [End::Died { at, status, last_words }] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!((at.as_str(), last_words.as_str()), ("start", "first | last"));
    assert!(status.contains("70"), "{status}");
}

#[test]
fn the_others_are_killed_some_time_after_a_rank_has_failed() {
    let script = "grep -q '\"rank\":1,' \"$1\" && exit 1; exec sleep 600";
    let (_folder, world) = world(script, Duration::from_secs(60));
    let begun = Instant::now();
    let ends = world.run(vec![start(0, 2), start(1, 2)]).unwrap();
    let [End::Killed { why, .. }, End::Died { .. }] = &ends[..] else { panic!("{ends:?}") };
    assert!(why.contains("another rank had failed"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(60), "not by the time without progress");
}

#[test]
fn ranks_without_progress_are_killed() {
    let (_folder, world) = world("echo waiting; exec sleep 600", Duration::from_millis(500));
    let ends = world.run(vec![start(0, 1)]).unwrap();
    let [End::Killed { at, why }] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!(at, "start");
    assert!(why.contains("no rank made progress for 500ms") && why.contains("waiting"), "{why}");
}

#[test]
fn ranks_without_softcuda_load_the_driver_of_this_machine() {
    let script =
        "grep -q '\"softcuda\":null' \"$1\" || echo a job with softcuda >&2; echo \"[$LD_LIBRARY_PATH]\"";
    let folder = tempfile::tempdir().unwrap();
    let program = program(&folder, script);
    let scratch = tempfile::tempdir_in(folder.path()).unwrap();
    let world = World::new(&program, None, scratch.path(), Duration::from_secs(60)).unwrap();
    let ends = world.run(vec![start(0, 1)]).unwrap();
    let [End::Died { last_words, .. }] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!(last_words, "[]");
    assert!(!scratch.path().join("libcuda.so.1").exists());
}

#[test]
fn a_missing_program_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("collective-rank");
    let error = World::new(&program, None, folder.path(), Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("collective-rank"), "{error}");
}
