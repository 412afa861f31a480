//! A foreign plugin: a small one in C over TCP (`fake-plugin/fake.c`), which can have one fault.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

pub(crate) const MPIB: &str = env!("CARGO_BIN_EXE_mpib");

pub(crate) const QUICK: &[&str] = &["--iterations", "100", "--sizes", "1000"];

/// The folder with a stand-in for libcuda.so.1 (`fake-cuda/cuda.c`), compiled once for all tests of
/// this process.
pub(crate) fn fake_cuda() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-cuda/cuda.c");
        let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(dir.path().join("libcuda.so.1"))
            .arg(source)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "the stand-in for CUDA does not compile");
        dir
    });
    dir.path()
}

/// The fake plugin, compiled once for all tests of this process.
pub(crate) fn fake() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &BUILT.get_or_init(|| compiled("fake.c")).1
}

/// The fake plugin for one-sided traffic, compiled once for all tests of this process.
pub(crate) fn fake_rma() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &BUILT.get_or_init(|| compiled("rma.c")).1
}

/// Compiles one of the fake plugins.
fn compiled(source: &str) -> (tempfile::TempDir, PathBuf) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libnccl-net-fake.so");
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(here.join("../../abi/include"))
        .arg(here.join("tests/fake-plugin").join(source))
        .arg("-o")
        .arg(&path)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{source} does not compile");
    (dir, path)
}

pub(crate) fn perf(args: &[&str]) -> Command {
    perf_of(fake(), args)
}

/// Prepares `mpib perf` with a plugin.
pub(crate) fn perf_of(plugin: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(MPIB);
    command.arg("perf").arg("--plugin").arg(plugin).args(args);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{}", text(&output.stdout), text(&output.stderr)))
}

/// Starts a listening mpib; returns it and the address that it printed.
pub(crate) fn listener(args: &[&str], fault: &str) -> (Child, BufReader<ChildStderr>, String) {
    listening(perf(args).env("FAKE_FAULT", fault))
}

/// Starts a listening mpib from a command.
pub(crate) fn listening(command: &mut Command) -> (Child, BufReader<ChildStderr>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, said, address)
}
