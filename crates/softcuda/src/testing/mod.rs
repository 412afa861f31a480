//! Ranks in plain memory for unit tests: communicators with channels and connections, as a host
//! would write them for kernels.

use std::{env, path::PathBuf};

pub(crate) mod layouts;
pub(crate) mod world;

pub(crate) use world::{Step, World};

/// Returns the releases of compat-matrix/matrix.toml.
pub(crate) fn releases() -> Vec<String> {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../../compat-matrix/matrix.toml");
    let text = std::fs::read_to_string(matrix).expect("the matrix's releases");
    let versions = text.lines().filter_map(|line| line.strip_prefix("version = "));
    versions.map(|version| version.trim_matches('"').to_owned()).collect()
}

/// Returns the library of a release in compat-matrix's cache. Reports a release that is not there.
pub(crate) fn cached_library(release: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let library = cache.map(|cache| cache.join("mpib/nccl").join(release).join("libnccl.so.2"));
    let library = library.filter(|path| path.is_file());
    if library.is_none() {
        eprintln!("skipped NCCL {release}: it is not in the cache (make matrix RELEASES={release})");
    }
    library
}
