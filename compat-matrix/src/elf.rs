//! Reads and changes ELF files: symbols that are not exported, the slots of imported functions, the
//! names of plugins' tables, and copies of the plugin without some of its tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget, elf,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Result};

/// The beginning of the names of tables for one-sided transfers.
const RMA: &str = "ncclRmaPlugin_v";

/// Places in a library, relative to its load address.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Places {
    /// Functions and data of the full symbol table.
    pub(crate) symbols: BTreeMap<String, u64>,
    /// The slots that hold the address of an imported function.
    pub(crate) imports: BTreeMap<String, Vec<u64>>,
}

impl Places {
    /// Reads the named symbols and the slots of the named imports. Fails if any of them is missing.
    pub(crate) fn read(file: &object::File<'_>, symbols: &[String], imports: &[&str]) -> Result<Self> {
        let mut places = Self::default();
        for symbol in file.symbols() {
            let Ok(name) = symbol.name() else { continue };
            if symbols.iter().any(|s| s == name) && symbol.is_definition() {
                places.symbols.insert(name.to_owned(), symbol.address());
            }
        }
        if let Some(lacking) = symbols.iter().find(|s| !places.symbols.contains_key(*s)) {
            return Err(Failure::tool(format!("the library's symbol table has no {lacking}")));
        }
        let table =
            file.dynamic_symbol_table().ok_or_else(|| Failure::tool("the library imports nothing"))?;
        for (place, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let (RelocationTarget::Symbol(index), true) = (relocation.target(), is_slot(relocation.flags()))
            else {
                continue;
            };
            let symbol = table.symbol_by_index(index).cannot("read the library's imports")?;
            let Ok(name) = symbol.name() else { continue };
            if imports.contains(&name) {
                places.imports.entry(name.to_owned()).or_default().push(place);
            }
        }
        match imports.iter().find(|name| !places.imports.contains_key(**name)) {
            Some(lacking) => Err(Failure::tool(format!("the library does not import {lacking}"))),
            None => Ok(places),
        }
    }
}

/// Returns whether a relocation makes a slot that holds nothing but the address of a symbol.
fn is_slot(flags: RelocationFlags) -> bool {
    let RelocationFlags::Elf { r_type } = flags else { return false };
    [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT, elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT]
        .contains(&r_type)
}

/// Returns the names of plugins' tables among a library's constant strings. A library that looks
/// for such a table in a plugin has its name there.
pub(crate) fn sought_tables(file: &object::File<'_>) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for section in file.sections().filter(|s| s.name().is_ok_and(|name| name.starts_with(".rodata"))) {
        let bytes = section.data().cannot("read the library's constants")?;
        names.extend(bytes.split(|byte| *byte == 0).filter_map(table_name).map(str::to_owned));
    }
    Ok(names)
}

/// Returns the table's name at the end of a string: the linker lets strings share their ends. It is
/// `ncclNetPlugin_v12`, `ncclProfiler_v7`, or a format that makes such names. The numbers of NCCL's
/// own functions, as in `ncclDevCommCreate_v22902`, are releases and have five digits.
fn table_name(string: &[u8]) -> Option<&str> {
    let start = string.windows(4).rposition(|four| four == b"nccl")?;
    let name = str::from_utf8(&string[start..]).ok()?;
    let (stem, version) = name.rsplit_once("_v")?;
    let number = version.len() <= 3 && version.parse::<u32>().is_ok();
    let format =
        version.strip_prefix('%').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric()));
    (stem.bytes().all(|b| b.is_ascii_alphabetic()) && (number || format)).then_some(name)
}

/// Returns what a shared library exports.
pub(crate) fn exports(library: &Path) -> Result<BTreeSet<String>> {
    let bytes = fs::read(library).cannot(format!("read {}", library.display()))?;
    let file = object::File::parse(&*bytes).cannot(format!("read {}", library.display()))?;
    let names =
        file.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok().map(str::to_owned));
    Ok(names.collect())
}

/// Copies the plugin's file without the tables of these versions: their names are changed in the
/// copy's string table, and no look-up finds them.
pub(crate) fn copy_without(plugin: &Path, to: &Path, versions: &[u32]) -> Result<()> {
    let symbols: Vec<_> = versions.iter().map(|version| format!("ncclNetPlugin_v{version}")).collect();
    copy_without_symbols(plugin, to, &symbols)
}

/// Copies the plugin's file without its tables for one-sided transfers.
pub(crate) fn copy_without_rma(plugin: &Path, to: &Path) -> Result<()> {
    let symbols: Vec<_> = exports(plugin)?.into_iter().filter(|name| name.starts_with(RMA)).collect();
    copy_without_symbols(plugin, to, &symbols)
}

fn copy_without_symbols(plugin: &Path, to: &Path, symbols: &[String]) -> Result<()> {
    let mut bytes = fs::read(plugin).cannot(format!("read {}", plugin.display()))?;
    for symbol in symbols {
        let at = name_of(&bytes, symbol)
            .ok_or_else(|| Failure::tool(format!("{}: exports no {symbol}", plugin.display())))?;
        bytes[at] = b'-';
    }
    fs::write(to, bytes).cannot(format!("write {}", to.display()))
}

/// Returns the position of an exported symbol's name in the file.
fn name_of(bytes: &[u8], symbol: &str) -> Option<usize> {
    let file = object::File::parse(bytes).ok()?;
    let found = file.dynamic_symbols().find(|s| s.is_definition() && s.name() == Ok(symbol))?;
    // The name is a part of `bytes`.
    Some(found.name().ok()?.as_ptr() as usize - bytes.as_ptr() as usize)
}

#[cfg(test)]
mod tests {
    use nccl_net_host::exported_versions;

    use super::*;

    #[test]
    fn a_copy_lacks_exactly_the_tables_that_were_taken_out() {
        let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/libnccl-net-mpib.so");
        assert!(plugin.is_file(), "run \"make build\" first (make test does)");
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy.so");
        copy_without(&plugin, &copy, &[12, 8]).unwrap();
        assert_eq!(exported_versions(&copy).unwrap(), [11, 10, 9, 7, 6]);
        copy_without_rma(&copy, &copy).unwrap();
        assert_eq!(exported_versions(&copy).unwrap(), [11, 10, 9, 7, 6]);
        assert!(!exports(&copy).unwrap().iter().any(|name| name.starts_with(RMA)));
        let said = copy_without(&copy, &copy, &[8]).unwrap_err().to_string();
        assert!(said.contains("exports no ncclNetPlugin_v8"), "{said}");
    }

    #[test]
    fn names_of_tables_and_formats_that_make_them_are_found() {
        let names = [
            "ncclNetPlugin_v12",
            "ncclProfiler_v7",
            "ncclRailPlugin_v1",
            "ncclNetPlugin_v%d",
            "ncclNetPlugin_v%02u",
        ];
        for name in names {
            assert_eq!(table_name(name.as_bytes()), Some(name));
            let behind = [b"\xffFailed to find ".as_slice(), name.as_bytes()].concat();
            assert_eq!(table_name(&behind), Some(name));
        }
        for other in [
            "",
            "nccl",
            "ncclNetPlugin",
            "ncclNetPlugin_v",
            "ncclNetPlugin_vX",
            "ncclNetPlugin_v12 is too old",
            "ncclNet_v5_as_v6_init",
            "ncclNet_v5_as_v6",
            "ncclDevCommCreate_v22902",
            "NET/Plugin: %s_v%d",
        ] {
            assert_eq!(table_name(other.as_bytes()), None, "{other}");
        }
    }
}
