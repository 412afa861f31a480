//! Finds a plugin file, reads which tables it exports, and opens it.

use std::{
    env,
    ffi::c_void,
    fs,
    path::{Path, PathBuf},
    ptr::NonNull,
    rc::Rc,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use object::{Object, ObjectSymbol};

use super::{
    net::Net,
    symtab, tables,
    watch::{Call, Watch},
};
use crate::failure::{Failure, Kind};

/// The plugin of this project.
const OURS: &str = "libnccl-net-mpib.so";

/// Our own plugin: next to the executable, in `../lib` of it, or in `build/` of the working directory.
pub fn default_path() -> Result<PathBuf, Failure> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let mut places: Vec<PathBuf> = Vec::new();
    if let Some(dir) = beside {
        places.extend([dir.join(OURS), dir.join("../lib").join(OURS)]);
    }
    places.push(Path::new("build").join(OURS));
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

/// The versions whose tables a file exports, newest first. Read from the file: no code of it runs.
pub fn exported_versions(path: &Path) -> Result<Vec<u32>, Failure> {
    let fail = |what: String| Failure::new(Kind::Load, format!("{}: {what}", path.display()));
    let meta = fs::metadata(path).map_err(|e| fail(e.to_string()))?;
    if !meta.is_file() {
        return Err(fail("not a file; --plugin takes the path of a plugin's shared object".into()));
    }
    let bytes = fs::read(path).map_err(|e| fail(e.to_string()))?;
    let elf = object::File::parse(&*bytes).map_err(|e| fail(format!("not a shared object: {e}")))?;
    let exports: Vec<&str> =
        elf.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok()).collect();
    let versions: Vec<u32> =
        tables::SYMBOLS.iter().filter(|(_, name)| exports.contains(name)).map(|(v, _)| *v).collect();
    if versions.is_empty() {
        let found: Vec<_> = exports.iter().filter(|n| n.starts_with("nccl")).copied().collect();
        let found =
            if found.is_empty() { "no symbol that begins with nccl".into() } else { found.join(", ") };
        return Err(fail(format!("exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12; found {found}")));
    }
    Ok(versions)
}

/// Checks that a file has a table under a symbol of its own choice, exported or not. Read from the file: no code of
/// it runs.
pub fn hidden_table(path: &Path, symbol: &str, version: u32) -> Result<(), Failure> {
    symtab::find(path, symbol, version).map(drop)
}

fn at(path: &Path, what: String) -> Failure {
    Failure::new(Kind::Load, format!("{}: {what}", path.display()))
}

/// Opens the file with the flags NCCL uses. Whoever takes something from it must not close it.
pub(super) fn load(path: &Path, watch: &Watch) -> Result<Library, Failure> {
    let fail = |what: String| at(path, what);
    // A name without a slash would be searched for on the library path.
    let full = fs::canonicalize(path).map_err(|e| fail(e.to_string()))?;
    // SAFETY: this runs the plugin's constructors, which is what the user asked for; the process exists for it alone.
    let library = watch.during(Call::Load, || unsafe { Library::open(Some(&full), RTLD_NOW | RTLD_LOCAL) });
    library.map_err(|e| {
        let said = with_sources(&e);
        let advice = missing_library(&said).map_or(String::new(), |advice| format!("; {advice}"));
        fail(format!("dlopen failed: {said}{advice}"))
    })
}

/// Opens the file with the flags NCCL uses, and takes one table: the exported one of that version, or the one under
/// the `hidden` symbol. The library stays until the process ends, as a plugin may have threads.
pub fn open(
    path: &Path,
    version: u32,
    hidden: Option<&str>,
    watch: Rc<Watch>,
) -> Result<Box<dyn Net>, Failure> {
    let fail = |what: String| at(path, what);
    let Some((_, symbol)) = tables::SYMBOLS.iter().find(|(v, _)| *v == version) else {
        return Err(fail(format!("v{version} is no version that this tool knows (v6 to v12)")));
    };
    let library = load(path, &watch)?;
    let (symbol, table) = match hidden {
        Some(hidden) => {
            let address = symtab::find(path, hidden, version)?;
            let (base, library) = symtab::load_address(library).ok_or_else(|| {
                fail("the dynamic linker does not say where it loaded the file (dlinfo failed)".into())
            })?;
            std::mem::forget(library);
            (hidden, (base + address) as *mut c_void)
        }
        None => {
            // SAFETY: the symbol is data; a pointer to it has the size of a pointer, whatever it points to.
            let table: Result<Symbol<*mut c_void>, _> = unsafe { library.get(symbol.as_bytes()) };
            let table = table.map_err(|e| fail(format!("no {symbol}: {}", with_sources(&e))))?.into_raw();
            std::mem::forget(library);
            (*symbol, table)
        }
    };
    let table = NonNull::new(table).ok_or_else(|| fail(format!("{symbol} is NULL")))?;
    // SAFETY: the table of that version's symbol, or an object of that table's size that the user named as one; the
    // library is never closed.
    unsafe { tables::net(version, table, std::ptr::null_mut(), watch) }
        .ok_or_else(|| fail(format!("no driver for {symbol}")))
}

/// What to do where the dynamic linker did not find a library that the plugin needs.
fn missing_library(said: &str) -> Option<String> {
    let (before, _) = said.split_once(": cannot open shared object file")?;
    let name = before.rsplit(": ").next()?;
    // Its own file was there: it was read before.
    let package = match name.split_once(".so")?.0 {
        "libibverbs" => {
            "install libibverbs (package libibverbs1 on Debian and Ubuntu, libibverbs on RHEL), or without RDMA hardware take \
             build/softverbs"
        }
        _ => "install the package that has it",
    };
    Some(format!(
        "the plugin needs {name}, which is not on this system: {package}; a folder of your own goes in LD_LIBRARY_PATH"
    ))
}

/// An error and what caused it, in one line: libloading hides dlerror's text in the source.
pub(super) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text += &format!(": {source}");
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_tables_is_named_with_what_was_expected() {
        let exe = env::current_exe().unwrap();
        let failure = exported_versions(&exe).unwrap_err();
        assert_eq!(failure.kind, Kind::Load);
        assert!(failure.message.contains("exports none of ncclNetPlugin_v6"), "{failure}");
    }

    #[test]
    fn a_missing_library_is_told_with_what_to_do() {
        let said = "libibverbs.so.1: cannot open shared object file: No such file or directory";
        let advice = missing_library(said).unwrap();
        assert!(
            advice.contains("needs libibverbs.so.1") && advice.contains("libibverbs1 on Debian"),
            "{advice}"
        );
        let advice = missing_library(&format!("dlopen: {}", said.replace("ibverbs", "foo"))).unwrap();
        assert!(
            advice.contains("needs libfoo.so.1") && advice.contains("the package that has it"),
            "{advice}"
        );
        assert_eq!(missing_library("/x.so: undefined symbol: ibv_foo"), None);
    }

    #[test]
    fn a_directory_and_a_text_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(exported_versions(dir.path()).unwrap_err().message.contains("not a file"));
        let text = dir.path().join("plugin.so");
        fs::write(&text, "hello").unwrap();
        assert!(exported_versions(&text).unwrap_err().message.contains("not a shared object"));
    }
}
