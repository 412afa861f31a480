//! Facts that are read once from a release's file and used by every process that loads it.

use std::{collections::BTreeSet, fs::File, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    dwarf::Types,
    elf::{self, Places},
    failure::{Context, Failure, Result},
    matrix::Release,
    seen,
};

/// All facts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) places: Places,
    pub(crate) comm: CommFields,
}

/// Places in `struct ncclComm`, in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CommFields {
    pub(crate) size: u64,
    /// `ncclNet`
    pub(crate) net: u64,
    /// `netContext`, 2.28 and later.
    pub(crate) context: Option<u64>,
}

/// All that is read from a release's file.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) facts: Facts,
    /// For the comparison of layouts.
    pub(crate) types: Types,
    /// The tables that the release looks for in plugins, by their symbols.
    pub(crate) sought: BTreeSet<String>,
}

/// Reads a library.
pub(crate) fn read(library: &Path, release: &Release) -> Result<Library> {
    let open = || format!("read {}", library.display());
    let file = File::open(library).cannot(open())?;
    // SAFETY: the cache's file is put in place whole and never written to.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.cannot(open())?;
    let elf = object::File::parse(&*bytes).cannot(open())?;
    let types = Types::read(&elf)?;
    let mut symbols = vec!["ncclGetVersion".to_owned()];
    symbols.extend(release.opens.iter().chain(&release.closes).cloned());
    let imports = seen::hooks().map(|(name, _)| name);
    let places = Places::read(&elf, &symbols, &imports)?;
    let comm = types.structs.get("ncclComm");
    let comm = comm.ok_or_else(|| Failure::tool("the debug information has no struct ncclComm"))?;
    let offset = |name: &str| comm.field(name).map(|field| field.offset);
    let net = offset("ncclNet").ok_or_else(|| Failure::tool("struct ncclComm has no field ncclNet"))?;
    let comm = CommFields { size: comm.size, net, context: offset("netContext") };
    let sought = elf::sought_tables(&elf)?;
    Ok(Library { facts: Facts { places, comm }, types, sought })
}
