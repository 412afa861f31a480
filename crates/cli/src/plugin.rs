//! Plugin files: finds this project's plugin, and opens any plugin.

use std::{
    env,
    path::{Path, PathBuf},
};

use nccl_net_host::{Plugin, Table, Watch};

use crate::failure::{Failure, Kind};

/// The file name of this project's plugin.
const NAME: &str = "libnccl-net-mpib.so";

/// Finds this project's plugin next to the executable, in `../lib` from there, or, for one that
/// cargo has made, in `build/` of the source tree. Never in the working directory: it may belong to
/// somebody else.
pub fn default_path() -> Result<PathBuf, Failure> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let places = beside.map(|dir| places(&dir)).unwrap_or_default();
    if let Some(found) = places.iter().find(|p| p.is_file()) {
        return Ok(found.clone());
    }
    let tried: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
    let message = format!(
        "found no plugin at {}; build it with \"make build\", or name one with --plugin PATH",
        tried.join(", ")
    );
    Err(Failure::new(Kind::Load, message))
}

/// Returns where the plugin may be, for an executable in `dir`.
fn places(dir: &Path) -> Vec<PathBuf> {
    let mut places = vec![dir.join(NAME), dir.join("../lib").join(NAME)];
    if dir.parent().is_some_and(|parent| parent.ends_with("target")) {
        places.push(dir.join("../../build").join(NAME));
    }
    places
}

/// Opens any plugin's file. With `watch`, marks this and all later calls there.
pub fn open(path: &Path, watch: Option<&'static Watch>) -> Result<Plugin, Failure> {
    let plugin = match watch {
        // SAFETY: the user named this file as a plugin, and this process was started to load it.
        Some(watch) => unsafe { Plugin::open_watched(path, watch) },
        // SAFETY: as above.
        None => unsafe { Plugin::open(path) },
    };
    Ok(plugin?)
}

/// Opens a plugin and returns one table: the exported one of that version, or the one under the
/// `hidden` symbol.
pub fn open_table(
    path: &Path,
    version: u32,
    hidden: Option<&str>,
    watch: Option<&'static Watch>,
) -> Result<Table, Failure> {
    let plugin = open(path, watch)?;
    Ok(match hidden {
        Some(symbol) => plugin.hidden_table(symbol, version)?,
        None => plugin.table(version)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_of_the_working_folder_is_never_a_default() {
        let installed = places(Path::new("/usr/local/bin"));
        assert_eq!(installed.len(), 2);
        assert!(installed.iter().all(|place| place.is_absolute()), "{installed:?}");
        let built = places(Path::new("/src/target/release"));
        assert_eq!(built[2], Path::new("/src/target/release/../../build/libnccl-net-mpib.so"));
    }
}
