//! Reads what a shared library exports, imports and needs.

use std::fs;
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, ElfFile64, Sym, VersionTable};
use object::{Endianness, read};
use softverbs::symbols::symbols;

type Header = FileHeader64<Endianness>;

/// A dynamic symbol with the version that the file gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Versioned {
    /// Name.
    pub(crate) name: String,
    /// Version, empty if it has none.
    pub(crate) version: String,
    /// Whether it is the default version (`@@`).
    pub(crate) default: bool,
}

/// The dynamic part of a shared library.
#[derive(Debug, Default)]
pub(crate) struct Dynamic {
    /// Defined and visible symbols.
    pub(crate) exports: Vec<Versioned>,
    /// Symbols to be found in other libraries.
    pub(crate) imports: Vec<Versioned>,
    /// `DT_NEEDED`
    pub(crate) needed: Vec<String>,
    /// `DT_SONAME`
    pub(crate) soname: Option<String>,
    /// Whether the library has text relocations.
    pub(crate) text_relocations: bool,
}

/// Reads a library, or panics with the path and the reason: this is for tests.
pub(crate) fn dynamic(path: &Path) -> Dynamic {
    let data = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    read_dynamic(&data).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the symbols that a library or program imports from libibverbs and that the shared
/// library does not export. An import without a version matches every version.
pub(crate) fn unserved(path: &Path) -> Vec<Versioned> {
    let verbs = |s: &Versioned| s.version.starts_with("IBVERBS_") || s.name.starts_with("ibv_");
    let serves = |s: &Versioned| {
        symbols().any(|ours| ours.name == s.name && (s.version.is_empty() || ours.version == s.version))
    };
    dynamic(path).imports.into_iter().filter(|s| verbs(s) && !serves(s)).collect()
}

fn read_dynamic(data: &[u8]) -> read::Result<Dynamic> {
    let file = ElfFile64::<Endianness>::parse(data)?;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let mut out = Dynamic::default();

    let symbols = file.elf_dynamic_symbol_table();
    let strings = symbols.strings();
    let versions = sections.versions(endian, data)?;
    for (index, symbol) in symbols.enumerate().filter(|(index, _)| index.0 != 0) {
        let name = text(symbol.name(endian, strings)?);
        // Versions themselves are listed as absolute symbols.
        if name.is_empty() || symbol.st_shndx(endian) == elf::SHN_ABS || symbol.is_local() {
            continue;
        }
        let (version, default) = version_of(versions.as_ref(), endian, index)?;
        let found = Versioned { name, version, default };
        if symbol.is_undefined(endian) { out.imports.push(found) } else { out.exports.push(found) }
    }

    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries {
            let string = || entry.string(endian, strings).map(text);
            match entry.tag(endian) {
                elf::DT_NEEDED => out.needed.push(string()?),
                elf::DT_SONAME => out.soname = Some(string()?),
                elf::DT_TEXTREL => out.text_relocations = true,
                elf::DT_FLAGS if entry.val(endian) & u64::from(elf::DF_TEXTREL) != 0 => {
                    out.text_relocations = true;
                }
                _ => {}
            }
        }
    }
    Ok(out)
}

fn version_of(
    versions: Option<&VersionTable<'_, Header>>,
    endian: Endianness,
    index: object::SymbolIndex,
) -> read::Result<(String, bool)> {
    let Some(versions) = versions else { return Ok((String::new(), true)) };
    let index = versions.version_index(endian, index);
    let name = versions.version(index)?.map(|v| text(v.name())).unwrap_or_default();
    Ok((name, !index.is_hidden()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
