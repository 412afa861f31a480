//! The layouts of the releases in the cache against what `pahole`-like tools show of them.

use std::{collections::BTreeMap, env, path::PathBuf};

use super::{Fifo, Layout, ListPart, Work};

/// Returns the library of a release in the cache of compat-matrix.
fn cached(release: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("mpib/nccl").join(release).join("libnccl.so.2")).filter(|path| path.is_file())
}

/// Releases of compat-matrix/matrix.toml.
fn releases() -> Vec<String> {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../../compat-matrix/matrix.toml");
    let text = std::fs::read_to_string(matrix).expect("the matrix's releases");
    let versions = text.lines().filter_map(|line| line.strip_prefix("version = "));
    versions.map(|version| version.trim_matches('"').to_owned()).collect()
}

#[test]
fn every_cached_release_has_a_complete_layout() {
    let mut layouts = BTreeMap::new();
    for release in releases() {
        let Some(path) = cached(&release) else {
            eprintln!("skipped NCCL {release}: it is not in the cache (make matrix RELEASES={release})");
            continue;
        };
        let layout = Layout::of(&path).unwrap_or_else(|e| panic!("NCCL {release}: {e}"));
        eprintln!("NCCL {release}: {layout:?}");
        layouts.insert(release, layout);
    }
}
