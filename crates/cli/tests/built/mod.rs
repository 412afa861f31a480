//! The files of "make build", and `mpib` with them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Returns a file of "make build".
pub(crate) fn artifact(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build").join(name);
    let path = path.canonicalize().unwrap_or(path);
    assert!(path.is_file(), "{}: not there; run \"make build\" first (make test does)", path.display());
    path
}

/// Returns the folder of softverbs' libibverbs, for LD_LIBRARY_PATH.
pub(crate) fn softverbs() -> PathBuf {
    artifact("softverbs/libibverbs.so.1").parent().expect("the file is in a folder").to_owned()
}

/// Prepares `mpib` with these devices and no other settings. Its stdin is empty.
pub(crate) fn mpib(fabric: &str, devices: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    command
        .env("LD_LIBRARY_PATH", softverbs())
        .env("SOFTVERBS_FABRIC", fabric)
        .env("SOFTVERBS_DEVICES", devices)
        .stdin(Stdio::null());
    command
}
