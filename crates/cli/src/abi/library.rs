//! Reads from a file which tables NCCL looks up in it, or which ones a plugin exports.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use object::{
    Architecture, Object, ObjectKind, ObjectSection, ObjectSymbol, ReadCache, SectionKind,
    elf::{DF_1_PIE, DT_FLAGS_1},
    read::elf::{Dyn as _, ProgramHeader as _},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::failure::{Failure, Kind};

/// Prefix of the symbols of plugins' tables; the version follows.
const SYMBOL: &str = "ncclNetPlugin_v";
/// Prefix of the text with which NCCL prints its release.
const VERSION: &[u8] = b"NCCL version ";

/// A file with NCCL in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    /// As in `2.27.7`; absent if the file does not have it.
    pub(crate) release: Option<String>,
    /// Versions of the net tables that NCCL looks up, newest first, which is NCCL's own order.
    pub(crate) looks_up: Vec<u32>,
}

impl Library {
    /// Reads the names that NCCL passes to dlsym from the file's strings.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let mut looks_up = BTreeSet::new();
        let mut release = None;
        shared_object(path, |elf| {
            for section in elf.sections() {
                // Skips GPU code, which is most of the file and has sections with other names.
                let constant =
                    matches!(section.kind(), SectionKind::ReadOnlyData | SectionKind::ReadOnlyString);
                if !constant || !section.name().is_ok_and(|name| name.starts_with(".rodata")) {
                    continue;
                }
                let data = section.data().map_err(|e| format!("its section .rodata cannot be read: {e}"))?;
                looks_up.extend(versions_in(data));
                release = release.take().or_else(|| release_in(data));
            }
            Ok(())
        })?;
        let looks_up: Vec<u32> = looks_up.into_iter().rev().collect();
        if looks_up.is_empty() {
            let what = match release {
                Some(release) => format!("NCCL {release} is in it, but it looks up no ncclNetPlugin_vN"),
                None => {
                    "no libnccl: neither a name ncclNetPlugin_vN nor a line \"NCCL version\" is in it".into()
                }
            };
            return Err(fail(path, what));
        }
        Ok(Self { path: path.to_owned(), release, looks_up })
    }
}

/// Returns the versions of the net tables that a plugin exports, newest first.
pub(crate) fn exports(path: &Path) -> Result<Vec<u32>, Failure> {
    let mut found = BTreeSet::new();
    shared_object(path, |elf| {
        let defined = elf.dynamic_symbols().filter(|s| s.is_definition());
        found.extend(defined.filter_map(|s| s.name().ok()?.strip_prefix(SYMBOL)?.parse::<u32>().ok()));
        Ok(())
    })?;
    if found.is_empty() {
        return Err(fail(path, "no plugin: it exports no ncclNetPlugin_vN".into()));
    }
    Ok(found.into_iter().rev().collect())
}

/// Returns whether dlopen opens a file, if the libraries that it needs are there.
pub(crate) fn is_library(path: &Path) -> bool {
    let look = |elf: &Elf<'_>| if is_program(elf) { Err("a program".to_owned()) } else { Ok(()) };
    shared_object(path, look).is_ok()
}

/// Returns whether a file is a program, though its type may be that of a shared object.
fn is_program(elf: &Elf<'_>) -> bool {
    let object::File::Elf64(file) = elf else { return elf.kind() == ObjectKind::Executable };
    let (endian, headers) = (file.endian(), file.elf_program_headers());
    let mut entries = headers.iter().filter_map(|header| header.dynamic(endian, file.data()).ok()?).flatten();
    let is_pie = |tag: i64, value: u64| tag == DT_FLAGS_1 && value & u64::from(DF_1_PIE) != 0;
    elf.kind() == ObjectKind::Executable
        || entries.any(|entry| is_pie(entry.d_tag(endian), entry.d_val(endian)))
}

fn fail(path: &Path, what: String) -> Failure {
    Failure::new(Kind::Load, format!("{}: {what}", path.display()))
}

type Elf<'a> = object::File<'a, &'a ReadCache<File>>;

/// Passes the file to `look` if a process of this machine could load it.
fn shared_object(path: &Path, look: impl FnOnce(&Elf<'_>) -> Result<(), String>) -> Result<(), Failure> {
    let fail = |what: String| fail(path, what);
    let mut file = File::open(path).map_err(|e| fail(e.to_string()))?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(fail("not a file".into()));
    }
    let mut magic = Vec::new();
    file.by_ref().take(8).read_to_end(&mut magic).map_err(|e| fail(e.to_string()))?;
    if magic == *b"!<arch>\n" {
        let what = "a static library; name the program or library that it was linked into, or libnccl.so.2";
        return Err(fail(what.into()));
    }
    if !magic.starts_with(b"\x7fELF") {
        return Err(fail("not an ELF file, as shared objects and programs are".into()));
    }
    let cache = ReadCache::new(file);
    let elf = Elf::parse(&cache).map_err(|e| fail(format!("a broken ELF file: {e}")))?;
    let here = if cfg!(target_arch = "aarch64") { Architecture::Aarch64 } else { Architecture::X86_64 };
    if elf.architecture() != here {
        return Err(fail(format!("made for {:?}, but this machine is {here:?}", elf.architecture())));
    }
    // A fully static file can neither load a plugin nor be one.
    if elf.kind() != ObjectKind::Dynamic && elf.section_by_name(".dynamic").is_none() {
        return Err(fail("linked statically, so it can neither load a plugin nor be one".into()));
    }
    look(&elf).map_err(fail)
}

/// Returns every N of a string `ncclNetPlugin_vN` that ends there.
fn versions_in(data: &[u8]) -> impl Iterator<Item = u32> {
    after(data, SYMBOL.as_bytes()).filter_map(|rest| {
        let end = rest.iter().take(4).position(|b| *b == 0)?;
        std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
    })
}

/// Returns the release after the first `NCCL version`.
fn release_in(data: &[u8]) -> Option<String> {
    after(data, VERSION).find_map(|rest| {
        let length = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let text = std::str::from_utf8(&rest[..length]).ok()?.trim_end_matches('.');
        (text.split('.').count() >= 2).then(|| text.to_owned())
    })
}

/// Returns the data after each occurrence.
fn after<'a>(data: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let places = data.windows(what.len()).enumerate().filter(move |(_, window)| *window == what);
    places.map(move |(at, _)| &data[at + what.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_count() {
        let text = b"\0ncclNetPlugin_v10\0no ncclNetPlugin_v7 symbol\0ncclNetPlugin_v\0ncclNetPlugin_vx\0ncclNetPlugin_v8\0ncclNetPlugin_v9";
        assert_eq!(versions_in(text).collect::<Vec<_>>(), [10, 8]);
    }

    #[test]
    fn the_release_is_a_number_with_dots() {
        let release = |text: &[u8]| release_in(text);
        assert_eq!(
            release(b"NCCL version information\0NCCL version 2.27.7+cuda12.9\0").as_deref(),
            Some("2.27.7")
        );
        assert_eq!(release(b"NCCL version %d\0NCCL version 2.18.3 \0").as_deref(), Some("2.18.3"));
        assert_eq!(release(b"NCCL version 2\0"), None);
    }
}
