//! Where the repository and its build outputs are.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is below the root")
}

/// A file that `make build` puts below `build/`.
pub fn artifact(name: &str) -> PathBuf {
    let path = workspace().join("build").join(name);
    assert!(path.exists(), "{} is missing; run \"make build\" first (make test does)", path.display());
    path
}
