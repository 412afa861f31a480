//! Finds a table under a symbol that its file does not export, such as the transports inside libnccl.

use std::{ffi::c_void, fs::File, path::Path};

use libloading::os::unix::Library;
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use super::tables;
use crate::failure::{Failure, Kind};

/// Where the symbol stands, as an address before loading. Its size must be that of the version's table: the only thing in
/// the file that tells one version from another.
pub(super) fn find(path: &Path, symbol: &str, version: u32) -> Result<usize, Failure> {
    let fail = |what: String| Failure::new(Kind::Load, format!("{}: {what}", path.display()));
    // Read piece by piece: a libnccl has some hundred MB, most of it code for GPUs.
    let file = File::open(path).map_err(|e| fail(e.to_string()))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).map_err(|e| fail(format!("not a shared object: {e}")))?;
    if elf.symbols().next().is_none() {
        let what = format!(
            "has no symbol table (it is stripped), so {symbol} cannot be looked for; take a file that is not stripped"
        );
        return Err(fail(what));
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
        [] => {
            return Err(fail(format!("its symbol table has no data symbol {symbol}; see readelf -sW")));
        }
        _ => return Err(fail(format!("has {} different data symbols {symbol}", found.len()))),
    };
    let wanted = tables::size(version);
    if wanted.map(|w| w as u64) != Some(size) {
        let fitting: Vec<_> = tables::SYMBOLS
            .iter()
            .filter(|(v, _)| tables::size(*v).map(|s| s as u64) == Some(size))
            .map(|(v, _)| format!("v{v}"))
            .collect();
        let fitting = match fitting[..] {
            [] => "no version's table has so many".into(),
            _ => format!("so many has a table of {}", fitting.join(" or ")),
        };
        let wanted = wanted.map_or_else(|| "unknown".into(), |w| w.to_string());
        return Err(fail(format!(
            "{symbol} has {size} bytes, a table of v{version} has {wanted}; {fitting} (--abi)"
        )));
    }
    usize::try_from(address).map_err(|_| fail(format!("{symbol} stands at {address:#x}")))
}

/// What has to be added to an address in the file of a loaded library. `None` where the dynamic linker does not say.
pub(super) fn load_address(library: Library) -> Option<(usize, Library)> {
    /// The first member of `struct link_map` (link.h), all that is needed of it.
    #[repr(C)]
    struct LinkMap {
        l_addr: usize,
    }
    let handle = library.into_raw();
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: an open handle; for this request dlinfo writes one pointer.
    let rc = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast::<c_void>()) };
    // SAFETY: the handle is open and was given up by its owner above.
    let library = unsafe { Library::from_raw(handle) };
    if rc != 0 || map.is_null() {
        return None;
    }
    // SAFETY: dlinfo gave the library's own entry, which lives as long as the library is open.
    Some((unsafe { (*map).l_addr }, library))
}
