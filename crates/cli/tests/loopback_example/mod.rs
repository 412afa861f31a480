//! The example plugin of crate nccl-net-versions. Cargo builds no example of another package for a
//! test, so this does.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde_json::Value;

/// Returns the plugin's path and builds it on the first call, next to `program`:
/// target/PROFILE/PROGRAM of this test run, where its dependencies are built already.
pub(crate) fn path(program: &Path) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = program.ancestors().nth(2).expect("target/PROFILE/PROGRAM");
        let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--locked", "-p", "nccl-net-versions", "--example", "loopback"])
            .args(["--message-format", "json", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the example does not build: {errors}");
        let artifact = output
            .stdout
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
            .find(|message| {
                message["reason"] == "compiler-artifact" && message["target"]["name"] == "loopback"
            })
            .expect("cargo reports the artifact");
        PathBuf::from(artifact["filenames"][0].as_str().expect("a path"))
    })
}
