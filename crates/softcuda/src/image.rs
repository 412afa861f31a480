//! A library that is loaded in this process: its load address and its full symbol table.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{CStr, CString},
    fs::File,
    io, mem,
    ops::Range,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr, slice,
};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A failure to read a loaded library.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The process has not loaded the library.
    #[error("{path} is not loaded in this process; load it before softcuda attaches: {why}")]
    NotLoaded {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        why: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The library.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not an ELF library with a symbol table.
    #[error("{path}: {why}")]
    Format {
        /// The library.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// A function or a data object of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Address in this process.
    pub address: usize,
    /// Size in bytes.
    pub size: usize,
    /// Whether the symbol is a function.
    pub function: bool,
}

/// A loaded library. The library stays loaded until the process ends.
#[derive(Debug, Clone)]
pub struct Image {
    path: PathBuf,
    base: usize,
    text: Range<usize>,
    symbols: HashMap<String, Symbol>,
    names: BTreeMap<usize, String>,
}

impl Image {
    /// Reads a library that the process has loaded already.
    pub fn of_loaded(path: &Path) -> Result<Self, ImageError> {
        let (base, file_path) = link_map(path)?;
        let file =
            File::open(&file_path).map_err(|source| ImageError::File { path: file_path.clone(), source })?;
        // SAFETY: the file of a loaded library does not change; a shorter file would have broken
        // the library's own mapping already.
        let bytes = unsafe { memmap2::Mmap::map(&file) }
            .map_err(|source| ImageError::File { path: file_path.clone(), source })?;
        Self::parse(&bytes, base, file_path)
    }

    fn parse(bytes: &[u8], base: usize, path: PathBuf) -> Result<Self, ImageError> {
        let format = |why: String| ImageError::Format { path: path.clone(), why };
        let elf = object::File::parse(bytes).map_err(|e| format(e.to_string()))?;
        let text = elf
            .section_by_name(".text")
            .map(|s| in_process(base, s.address())..in_process(base, s.address() + s.size()))
            .ok_or_else(|| format("the library has no section .text".into()))?;
        let (mut symbols, mut names) = (HashMap::new(), BTreeMap::new());
        for symbol in elf.symbols().filter(|s| s.is_definition() && s.address() != 0) {
            let Ok(name) = symbol.name() else { continue };
            let place = Symbol {
                address: in_process(base, symbol.address()),
                size: symbol.size() as usize,
                function: symbol.kind() == SymbolKind::Text,
            };
            if place.function {
                names.entry(place.address).or_insert_with(|| name.to_owned());
            }
            symbols.entry(name.to_owned()).or_insert(place);
        }
        if symbols.is_empty() {
            return Err(format("the library has no symbol table (.symtab)".into()));
        }
        Ok(Self { path, base, text, symbols, names })
    }

    /// Returns the library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the load address, which is added to every address of the file.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the addresses of the section `.text` in this process.
    pub fn text(&self) -> Range<usize> {
        self.text.clone()
    }

    /// Returns the address of a symbol in this process.
    pub fn address_of(&self, name: &str) -> Option<usize> {
        self.symbols.get(name).map(|symbol| symbol.address)
    }

    /// Returns the name of the function that begins at this address.
    pub fn name_at(&self, address: usize) -> Option<&str> {
        self.names.get(&address).map(String::as_str)
    }

    /// Returns the contents of a data symbol.
    pub fn symbol_bytes(&self, name: &str) -> Option<&'static [u8]> {
        let symbol = self.symbols.get(name).filter(|symbol| !symbol.function)?;
        // SAFETY: the symbol table gives address and size of an object in the loaded library,
        // which stays loaded (`link_map` never closes its handle).
        Some(unsafe { slice::from_raw_parts(symbol.address as *const u8, symbol.size) })
    }

    /// Returns every symbol with its name.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, Symbol)> {
        self.symbols.iter().map(|(name, symbol)| (name.as_str(), *symbol))
    }
}

fn in_process(base: usize, address: u64) -> usize {
    base.wrapping_add(address as usize)
}

/// Returns load address and file of a loaded library, and keeps the library loaded.
fn link_map(path: &Path) -> Result<(usize, PathBuf), ImageError> {
    let not_loaded = |why: String| ImageError::NotLoaded { path: path.to_owned(), why };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| not_loaded(e.to_string()))?;
    // SAFETY: a C string. RTLD_NOLOAD runs no code of the library. The handle is never closed.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Err(not_loaded(loader_message()));
    }
    let mut map: *mut LinkMap = ptr::null_mut();
    // SAFETY: a handle of dlopen, and RTLD_DI_LINKMAP writes one pointer.
    if unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0 {
        return Err(not_loaded(loader_message()));
    }
    // SAFETY: the loader's entry of a library that stays loaded; its name is a C string.
    let (base, file) = unsafe { ((*map).address, CStr::from_ptr((*map).name)) };
    Ok((base, PathBuf::from(std::ffi::OsStr::from_bytes(file.to_bytes()))))
}

/// The public first members of the loader's `struct link_map` (see `link.h`).
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const libc::c_char,
}

const _: () = assert!(mem::offset_of!(LinkMap, name) == 8);

fn loader_message() -> String {
    // SAFETY: dlerror returns a C string or null; it is copied before the next loader call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader has no message".into();
    }
    // SAFETY: checked not to be null above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
