//! The families of tables that a plugin's file can have.

use std::{fs, path::Path};

use nccl_net_abi::{rma_v13, rma_v14, rma_v15, rma_v16};
use object::{Object, ObjectSymbol};

use crate::{Error, error::Result, symtab, table};

/// Tables of one purpose, in several versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// What the names of the exported symbols begin with; the version follows.
    prefix: &'static str,
    /// The size of the table of each version that this crate can drive, newest first.
    sizes: &'static [(u32, usize)],
}

const fn net(version: u32) -> (u32, usize) {
    match table::size(version) {
        Some(size) => (version, size),
        None => panic!("a version that this crate cannot drive"),
    }
}

impl Family {
    /// Two-sided traffic: `ncclNetPlugin_v6` to `v12`, for [`Table`](crate::Table).
    pub const NET: &Self = &Self {
        prefix: "ncclNetPlugin_v",
        sizes: &[net(12), net(11), net(10), net(9), net(8), net(7), net(6)],
    };

    /// One-sided traffic: `ncclRmaPlugin_v13` to `v16`, for [`Rma`](crate::Rma).
    pub const RMA: &Self = &Self {
        prefix: "ncclRmaPlugin_v",
        sizes: &[
            (16, size_of::<rma_v16::Rma>()),
            (15, size_of::<rma_v15::Rma>()),
            (14, size_of::<rma_v14::Rma>()),
            (13, size_of::<rma_v13::Rma>()),
        ],
    };

    /// Returns the versions that this crate can drive, newest first.
    pub fn versions(&self) -> impl DoubleEndedIterator<Item = u32> + Clone {
        self.sizes.iter().map(|(version, _)| *version)
    }

    /// Returns the size of a version's table in bytes; `None` if this crate cannot drive it.
    pub fn size(&self, version: u32) -> Option<usize> {
        self.sizes.iter().find(|(known, _)| *known == version).map(|(_, size)| *size)
    }

    /// Returns the symbol under which plugins export the table of a version.
    pub fn symbol(&self, version: u32) -> String {
        format!("{}{version}", self.prefix)
    }

    /// Returns the versions whose tables a file exports, newest first. No code of the file runs.
    ///
    /// # Errors
    /// The file is no shared object, or exports none of this family's tables.
    pub fn exported(&self, path: &Path) -> Result<Vec<u32>> {
        let fail = |what: String| Error::file(path, what);
        let meta = fs::metadata(path).map_err(|e| Error::io(path, &e))?;
        if !meta.is_file() {
            return Err(fail("not a file; expected a plugin's shared object".into()));
        }
        let bytes = fs::read(path).map_err(|e| Error::io(path, &e))?;
        let elf = object::File::parse(&*bytes).map_err(|e| fail(format!("not a shared object: {e}")))?;
        let exports: Vec<&str> =
            elf.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok()).collect();
        let exported = |version: &u32| exports.contains(&self.symbol(*version).as_str());
        let versions: Vec<u32> = self.versions().filter(exported).collect();
        if versions.is_empty() {
            let found: Vec<_> = exports.iter().filter(|n| n.starts_with("nccl")).copied().collect();
            let found =
                if found.is_empty() { "no symbol that begins with nccl".into() } else { found.join(", ") };
            return Err(fail(format!("exports none of {}; found {found}", self.symbols())));
        }
        Ok(versions)
    }

    /// Checks that a file has a table of this version under any symbol, exported or not. No code of
    /// the file runs.
    ///
    /// # Errors
    /// The file has no such symbol, or its size is not that of the version's table.
    pub fn check_hidden(&self, path: &Path, symbol: &str, version: u32) -> Result<()> {
        symtab::find(path, symbol, self, version).map(drop)
    }

    /// Names the oldest and the newest symbol.
    fn symbols(&self) -> String {
        self.range(|version| self.symbol(version))
    }

    /// Names the oldest and the newest version.
    pub(crate) fn range(&self, name: impl Fn(u32) -> String) -> String {
        let mut versions = self.versions();
        let ends = [versions.next_back(), versions.next()];
        ends.into_iter().flatten().map(name).collect::<Vec<_>>().join(" to ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_tables_are_those_of_table() {
        assert!(Family::NET.versions().eq(table::VERSIONS.iter().copied()));
        for version in table::VERSIONS {
            assert_eq!(Some(Family::NET.symbol(*version).as_str()), table::symbol(*version));
            assert_eq!(Family::NET.size(*version), table::size(*version));
        }
        assert_eq!(Family::RMA.symbols(), "ncclRmaPlugin_v13 to ncclRmaPlugin_v16");
        assert!(Family::RMA.versions().rev().eq(crate::RMA_VERSIONS));
    }
}
