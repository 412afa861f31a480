//! Plugin files.

use std::{
    ffi::{CStr, c_void},
    fs,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use object::{Object, ObjectSymbol};

use crate::{
    Call, Error, Table, Watch,
    error::Result,
    symtab,
    table::{VERSIONS, symbol},
};

/// Returns the versions whose tables a file exports, newest first. No code of the file runs.
pub fn exported_versions(path: &Path) -> Result<Vec<u32>> {
    let fail = |what: String| Error::file(path, what);
    let meta = fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    if !meta.is_file() {
        return Err(fail("not a file; expected a plugin's shared object".into()));
    }
    let bytes = fs::read(path).map_err(|e| Error::io(path, &e))?;
    let elf = object::File::parse(&*bytes).map_err(|e| fail(format!("not a shared object: {e}")))?;
    let exports: Vec<&str> =
        elf.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok()).collect();
    let exported = |version: &u32| symbol(*version).is_some_and(|name| exports.contains(&name));
    let versions: Vec<u32> = VERSIONS.iter().copied().filter(exported).collect();
    if versions.is_empty() {
        let found: Vec<_> = exports.iter().filter(|n| n.starts_with("nccl")).copied().collect();
        let found =
            if found.is_empty() { "no symbol that begins with nccl".into() } else { found.join(", ") };
        return Err(fail(format!("exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12; found {found}")));
    }
    Ok(versions)
}

/// Checks that a file has a table of this version under any symbol, exported or not. No code of
/// the file runs.
pub fn check_hidden_table(path: &Path, symbol: &str, version: u32) -> Result<()> {
    symtab::find(path, symbol, version).map(drop)
}

/// A plugin's shared object, opened as NCCL opens it. It stays loaded until the process ends, since
/// a plugin may have threads.
#[derive(Debug)]
pub struct Plugin {
    path: PathBuf,
    library: ManuallyDrop<Library>,
    base: Option<usize>,
    watch: Option<&'static Watch>,
}

impl Plugin {
    /// Opens the file.
    ///
    /// # Safety
    /// The file is a NCCL plugin, or a library with one: its constructors run, and its tables do
    /// what `net_vN.h` asks of them.
    pub unsafe fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::load(path, None) }
    }

    /// Opens the file, and marks this and all later calls in `watch`.
    ///
    /// # Safety
    /// As for [`Plugin::open`].
    pub unsafe fn open_watched(path: &Path, watch: &'static Watch) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::load(path, Some(watch)) }
    }

    /// # Safety
    /// As for [`Plugin::open`].
    unsafe fn load(path: &Path, watch: Option<&'static Watch>) -> Result<Self> {
        // The dynamic linker would search for a name without a slash.
        let full = fs::canonicalize(path).map_err(|e| Error::io(path, &e))?;
        // SAFETY: runs the plugin's constructors (the caller's promise).
        let open = || unsafe { Library::open(Some(&full), RTLD_NOW | RTLD_LOCAL) };
        let library = match watch {
            Some(watch) => watch.during(Call::Load, open),
            None => open(),
        };
        let library = library.map_err(|e| {
            // The error's own text begins with these words.
            let reason = with_sources(&e).trim_start_matches("dlopen failed: ").to_owned();
            Error::Load { path: path.to_owned(), reason }
        })?;
        let (base, library) = symtab::load_address(library);
        Ok(Self { path: path.to_owned(), library: ManuallyDrop::new(library), base, watch })
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the address of an exported symbol; `None` if the file does not export it.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a pointer to the symbol, whose type does not matter as long as nothing reads
        // through the pointer.
        let found: Symbol<*mut c_void> = unsafe { self.library.get(name.to_bytes_with_nul()) }.ok()?;
        NonNull::new(found.into_raw())
    }

    /// Returns the exported table of a version.
    pub fn table(&self, version: u32) -> Result<Table> {
        let name = self.known(version)?;
        // SAFETY: as in `symbol`; used here for dlerror's text.
        let found: std::result::Result<Symbol<*mut c_void>, _> = unsafe { self.library.get(name.as_bytes()) };
        let found = found.map_err(|e| self.fail(format!("no {name}: {}", with_sources(&e))))?;
        self.at(name, version, found.into_raw())
    }

    /// Returns the table of a version under another symbol, exported or not.
    pub fn hidden_table(&self, symbol: &str, version: u32) -> Result<Table> {
        self.known(version)?;
        let address = symtab::find(&self.path, symbol, version)?;
        let base = self.base.ok_or_else(|| {
            self.fail("the dynamic linker does not know where it loaded the file (dlinfo failed)".into())
        })?;
        self.at(symbol, version, (base + address) as *mut c_void)
    }

    fn known(&self, version: u32) -> Result<&'static str> {
        symbol(version)
            .ok_or_else(|| self.fail(format!("tables of v{version} are unknown; expected v6 to v12")))
    }

    fn at(&self, symbol: &str, version: u32, table: *mut c_void) -> Result<Table> {
        let table = NonNull::new(table).ok_or_else(|| self.fail(format!("{symbol} is NULL")))?;
        // SAFETY: the version's symbol, or an object of that table's size that the caller named as
        // one, in a library that is never closed; the rest is the promise to `open`.
        let table = unsafe { Table::from_ptr(version, table) };
        let table = table.ok_or_else(|| self.fail(format!("tables of v{version} are unknown")))?;
        Ok(Table { watch: self.watch, ..table })
    }

    fn fail(&self, reason: String) -> Error {
        Error::file(&self.path, reason)
    }
}

/// Writes an error and its causes in one line: libloading has dlerror's text in the cause.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text += &format!(": {source}");
        next = source.source();
    }
    text
}
