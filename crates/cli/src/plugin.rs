//! Plugin files: finds this project's plugin, and opens any plugin.

use std::{
    env,
    path::{Path, PathBuf},
};

use nccl_net_host::{Plugin, Table, Watch};

use crate::failure::{Failure, Kind};

/// The file name of this project's plugin.
pub const NAME: &str = "libnccl-net-mpib.so";

/// Finds this project's plugin next to the executable, in the library folder of its prefix, or, for
/// one that cargo has made, in `build/` of the source tree. Never in the working directory: it may
/// belong to somebody else.
pub fn default_path() -> Result<PathBuf, Failure> {
    find(NAME, NAME).map_err(|tried| {
        let advice = "build it with \"make build\", or name one with --plugin PATH";
        Failure::new(Kind::Load, format!("found no plugin at {tried}; {advice}"))
    })
}

/// Finds the folder of softverbs, in the same places as the plugin.
pub fn softverbs() -> Result<PathBuf, Failure> {
    let library = find("softverbs/libibverbs.so.1", "mpib/softverbs/libibverbs.so.1").map_err(|tried| {
        let advice = "install the package mpib-softverbs (deb, rpm), or build it with \"make build\"";
        Failure::new(Kind::Load, format!("found no softverbs at {tried}; {advice}"))
    })?;
    Ok(library.parent().map(Path::to_owned).unwrap_or_default())
}

/// Returns the file of this project that is `beside` the executable of a build, or is `installed` in
/// the library folder of a prefix. The error lists the places.
fn find(beside: &str, installed: &str) -> Result<PathBuf, String> {
    let exe = env::current_exe().ok();
    let dir = exe.as_deref().and_then(Path::parent);
    let places = dir.map(|dir| places(dir, beside, installed)).unwrap_or_default();
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        return Ok(found.clone());
    }
    let tried: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    Err(tried.join(", "))
}

/// Returns where a file may be, for an executable in `dir`.
fn places(dir: &Path, beside: &str, installed: &str) -> Vec<PathBuf> {
    let debian = format!("../lib/{}-linux-gnu", env::consts::ARCH);
    let mut places = vec![dir.join(beside)];
    places.extend(["../lib", "../lib64", &debian].map(|folder| dir.join(folder).join(installed)));
    if dir.parent().is_some_and(|parent| parent.ends_with("target")) {
        places.push(dir.join("../../build").join(beside));
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
        let installed = places(Path::new("/usr/local/bin"), NAME, NAME);
        assert_eq!(installed.len(), 4);
        assert!(installed.iter().all(|place| place.is_absolute()), "{installed:?}");
        let built = places(Path::new("/src/target/release"), NAME, NAME);
        assert_eq!(built[4], Path::new("/src/target/release/../../build/libnccl-net-mpib.so"));
    }
}
