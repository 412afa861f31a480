//! The plugin's file opens libibverbs at init, and names what is missing. `mpib` loads the file: this
//! program has softverbs' functions, and the plugin would use those.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use mpib_tests::paths::artifact;

/// What the plugin cannot do without: functions of IBVERBS_1.1, which every release has.
const REQUIRED: [&str; 23] = [
    "ibv_ack_async_event",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_device_guid",
    "ibv_get_device_list",
    "ibv_modify_qp",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_reg_mr",
];

/// Replaces each place of `from` in a file by as many bytes, and writes the result.
fn changed(file: &Path, from: &[u8], to: &[u8], result: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "{} is not in {}", String::from_utf8_lossy(from), file.display());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    fs::write(result, bytes).unwrap();
}

/// Makes a libibverbs of these functions and no devices. It has no versions.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("verbs.c"), folder.join("complete.so"));
    let mut code = String::from("#include <errno.h>\n");
    for name in REQUIRED {
        code += &format!("void *{name}(void) {{ errno = ENOSYS; return 0; }}\n");
    }
    fs::write(&source, code).unwrap();
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(cc)
        .args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(status.success());
    library
}

/// Returns what init of this file says, with the libraries of a folder first on the linker's path.
fn init(plugin: &Path, folder: &Path) -> String {
    let mut mpib = Command::new(artifact("mpib"));
    mpib.args(["perf", "--sizes", "8", "--plugin"]).arg(plugin).env("LD_LIBRARY_PATH", folder);
    let output = mpib.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    said
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| said.contains(part)), "{parts:?} in {said}");
}

//= install.md: without libibverbs init fails and names it
#[test]
fn without_libibverbs_init_fails_and_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libnccl-net-mpib.so");
    changed(&artifact("libnccl-net-mpib.so"), b"libibverbs.so.1", b"libibverbs.so.9", &copy);
    says(
        &init(&copy, folder.path()),
        &[
            "init: libibverbs cannot be used: libibverbs.so.9: cannot open shared object file: No such file",
            "Install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL)",
            "[MPIB-229]",
        ],
    );
}

//= install.md: any libibverbs with the symbols of IBVERBS_1.1 is enough
#[test]
fn a_libibverbs_with_the_first_functions_is_enough_and_one_that_lacks_any_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (complete, plugin) = (library(folder.path()), artifact("libnccl-net-mpib.so"));
    let enough = folder.path().join("enough");
    fs::create_dir(&enough).unwrap();
    fs::copy(&complete, enough.join("libibverbs.so.1")).unwrap();
    says(&init(&plugin, &enough), &["no RDMA device found", "[MPIB-201]"]);
    let lacks = |name: &str| {
        let (folder, symbol) = (folder.path().join(name), format!("\0{name}\0"));
        let file = folder.join("libibverbs.so.1");
        fs::create_dir(&folder).unwrap();
        changed(&complete, symbol.as_bytes(), symbol.replace("ibv", "old").as_bytes(), &file);
        let lacks = format!("cannot be used: {}: undefined symbol: {name}. ", file.display());
        says(&init(&plugin, &folder), &[&lacks, "LD_LIBRARY_PATH", "[MPIB-229]"]);
    };
    // Each waits for processes.
    thread::scope(|scope| REQUIRED.iter().for_each(|name| drop(scope.spawn(|| lacks(name)))));
}
