//! Plugin files: finds this project's plugin, and opens any plugin.

use std::{
    env,
    path::{Path, PathBuf},
};

use nccl_net_host::{Plugin, Table, Watch};

use crate::failure::{Failure, Kind};

/// The file name of this project's plugin.
const NAME: &str = "libnccl-net-mpib.so";

/// Finds this project's plugin next to the executable, in `../lib` from there, or in `build/` of
/// the working directory.
pub fn default_path() -> Result<PathBuf, Failure> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let mut places: Vec<PathBuf> = Vec::new();
    if let Some(dir) = beside {
        places.extend([dir.join(NAME), dir.join("../lib").join(NAME)]);
    }
    places.push(Path::new("build").join(NAME));
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
