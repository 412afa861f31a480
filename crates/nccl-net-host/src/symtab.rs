//! Finds a table that its file does not export, such as the transports inside libnccl.

use std::{ffi::c_void, fs::File, path::Path};

use libloading::os::unix::Library;
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use crate::{Error, Family, error::Result};

/// Returns the symbol's address before loading. Its size must be that of the version's table:
/// nothing else in the file distinguishes the versions.
pub(crate) fn find(path: &Path, symbol: &str, family: &Family, version: u32) -> Result<usize> {
    let fail = |what: String| Error::file(path, what);
    // Read in pieces: a libnccl has some hundred MB, most of it code for GPUs.
    let file = File::open(path).map_err(|e| Error::io(path, &e))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).map_err(|e| fail(format!("not a shared object: {e}")))?;
    if elf.symbols().next().is_none() {
        return Err(fail(format!(
            "has no symbol table (it is stripped), so {symbol} cannot be found; use a file that is \
             not stripped"
        )));
    }
    let mut found: Vec<(u64, u64)> = elf
        .symbols()
        .filter(|s| s.is_definition() && s.kind() == SymbolKind::Data && s.name() == Ok(symbol))
        .map(|s| (s.address(), s.size()))
        .collect();
    found.sort_unstable();
    found.dedup();
    let (address, size) = match found[..] {
        [one] => one,
        [] => return Err(fail(format!("its symbol table has no data symbol {symbol}; see readelf -sW"))),
        _ => return Err(fail(format!("has {} different data symbols {symbol}", found.len()))),
    };
    if family.size(version).map(|wanted| wanted as u64) != Some(size) {
        return Err(fail(wrong_size(symbol, size, family, version)));
    }
    usize::try_from(address).map_err(|_| fail(format!("{symbol} is at {address:#x}")))
}

fn wrong_size(symbol: &str, size: u64, family: &Family, version: u32) -> String {
    let bytes = |version: u32| family.size(version).map(|size| size as u64);
    let same = family.versions().filter(|v| bytes(*v) == Some(size));
    let same: Vec<_> = same.map(|v| format!("v{v}")).collect();
    let wanted = bytes(version).map_or_else(|| "an unknown number".into(), |bytes| bytes.to_string());
    let hint = match same[..] {
        [] => "no version's table has this size".into(),
        _ => format!("a table of {} has this size", same.join(" or ")),
    };
    format!("{symbol} has {size} bytes, a table of v{version} has {wanted}; {hint}")
}

/// Returns the difference between addresses in a loaded library and in its file; `None` if the
/// dynamic linker does not know it.
pub(crate) fn load_address(library: Library) -> (Option<usize>, Library) {
    /// The first member of `struct link_map` (link.h).
    #[repr(C)]
    struct LinkMap {
        l_addr: usize,
    }
    let handle = library.into_raw();
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: an open handle; for this request dlinfo writes one pointer.
    let rc = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast::<c_void>()) };
    // SAFETY: the handle is open, and `into_raw` gave it up.
    let library = unsafe { Library::from_raw(handle) };
    if rc != 0 || map.is_null() {
        return (None, library);
    }
    // SAFETY: dlinfo gave the library's own entry, which lives as long as the library is open.
    (Some(unsafe { (*map).l_addr }), library)
}
