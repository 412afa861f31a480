//! Plugin files.

use std::{
    ffi::{CStr, c_void},
    fs,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::{Call, Error, Family, Rma, Table, Watch, error::Result, symtab};

/// Returns the versions whose network tables a file exports, newest first. No code of the file runs.
pub fn exported_versions(path: &Path) -> Result<Vec<u32>> {
    Family::NET.exported(path)
}

/// Checks that a file has a network table of this version under any symbol, exported or not. No code
/// of the file runs.
pub fn check_hidden_table(path: &Path, symbol: &str, version: u32) -> Result<()> {
    Family::NET.check_hidden(path, symbol, version)
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
        self.net(version, self.exported(Family::NET, version)?)
    }

    /// Returns the table of a version under another symbol, exported or not.
    pub fn hidden_table(&self, symbol: &str, version: u32) -> Result<Table> {
        self.net(version, self.hidden(Family::NET, symbol, version)?)
    }

    /// Returns the exported RMA table of a version.
    pub fn rma_table(&self, version: u32) -> Result<Rma> {
        self.rma(version, self.exported(Family::RMA, version)?)
    }

    /// Returns the RMA table of a version under another symbol, exported or not.
    pub fn hidden_rma_table(&self, symbol: &str, version: u32) -> Result<Rma> {
        self.rma(version, self.hidden(Family::RMA, symbol, version)?)
    }

    fn exported(&self, family: &Family, version: u32) -> Result<NonNull<c_void>> {
        self.known(family, version)?;
        let name = family.symbol(version);
        // SAFETY: as in `symbol`; used here for dlerror's text.
        let found: std::result::Result<Symbol<*mut c_void>, _> = unsafe { self.library.get(name.as_bytes()) };
        let found = found.map_err(|e| self.fail(format!("no {name}: {}", with_sources(&e))))?;
        NonNull::new(found.into_raw()).ok_or_else(|| self.fail(format!("{name} is NULL")))
    }

    fn hidden(&self, family: &Family, symbol: &str, version: u32) -> Result<NonNull<c_void>> {
        self.known(family, version)?;
        let address = symtab::find(&self.path, symbol, family, version)?;
        let base = self.base.ok_or_else(|| {
            self.fail("the dynamic linker does not know where it loaded the file (dlinfo failed)".into())
        })?;
        let table = (base + address) as *mut c_void;
        NonNull::new(table).ok_or_else(|| self.fail(format!("{symbol} is NULL")))
    }

    fn known(&self, family: &Family, version: u32) -> Result<()> {
        match family.size(version) {
            Some(_) => Ok(()),
            None => Err(self.unknown(family, version)),
        }
    }

    fn unknown(&self, family: &Family, version: u32) -> Error {
        let range = family.range(|version| format!("v{version}"));
        self.fail(format!("tables of v{version} are unknown; expected {range}"))
    }

    fn net(&self, version: u32, table: NonNull<c_void>) -> Result<Table> {
        // SAFETY: the version's symbol, or an object of that table's size that the caller named as
        // one, in a library that is never closed; the rest is the promise to `open`.
        let table = unsafe { Table::from_ptr(version, table) };
        let table = table.ok_or_else(|| self.unknown(Family::NET, version))?;
        Ok(Table { watch: self.watch, ..table })
    }

    fn rma(&self, version: u32, table: NonNull<c_void>) -> Result<Rma> {
        // SAFETY: as in `net`.
        let table = unsafe { Rma::from_ptr(version, table) };
        let table = table.ok_or_else(|| self.unknown(Family::RMA, version))?;
        Ok(self.watch.map_or(table, |watch| table.watched(watch)))
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
