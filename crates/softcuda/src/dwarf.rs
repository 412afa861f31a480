//! Reads the debug information of a library: units, entries, names, types.

use std::ops::ControlFlow;

use gimli::{
    AttributeValue, DW_AT_count, DW_AT_name, DW_AT_type, DW_AT_upper_bound, DebuggingInformationEntry, DwAt,
    EndianSlice, LittleEndian, UnitOffset, UnitRef,
};
use object::{Object, ObjectSection};

/// The bytes of a section.
pub type Reader<'a> = EndianSlice<'a, LittleEndian>;
/// An entry of a unit, for instance a structure or a member.
pub type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;
/// Errors of reading are gimli's.
pub type Read<T> = Result<T, gimli::Error>;

/// A section that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("section {name}: {source}")]
pub struct SectionError {
    name: &'static str,
    source: object::Error,
}

/// Opens the debug information of a file. A section that the file lacks is empty.
pub fn load<'a>(file: &object::File<'a>) -> Result<gimli::Dwarf<Reader<'a>>, SectionError> {
    gimli::Dwarf::load(|id| {
        let Some(section) = file.section_by_name(id.name()) else { return Ok(Reader::default()) };
        let data = section.data().map_err(|source| SectionError { name: id.name(), source })?;
        Ok(EndianSlice::new(data, LittleEndian))
    })
}

/// Visits the compilation units until `visit` returns `Break`.
pub fn for_each_unit(
    dwarf: &gimli::Dwarf<Reader<'_>>,
    mut visit: impl FnMut(&Unit<'_>) -> Read<ControlFlow<()>>,
) -> Read<()> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        let unit = dwarf.unit(header)?;
        if visit(&Unit(unit.unit_ref(dwarf)))?.is_break() {
            break;
        }
    }
    Ok(())
}

/// A compilation unit.
#[derive(Debug)]
pub struct Unit<'a>(UnitRef<'a, Reader<'a>>);

impl<'a> Unit<'a> {
    /// Visits the entries of the outermost level.
    pub fn for_each_entry(&self, mut visit: impl FnMut(&Entry<'a>) -> Read<()>) -> Read<()> {
        let mut tree = self.0.entries_tree(None)?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            visit(child.entry())?;
        }
        Ok(())
    }

    /// Returns the direct children of the entry at an offset.
    pub fn children(&self, offset: UnitOffset) -> Read<Vec<Entry<'a>>> {
        let mut tree = self.0.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        let mut all = Vec::new();
        while let Some(child) = children.next()? {
            all.push(child.entry().clone());
        }
        Ok(all)
    }

    /// Returns an entry's name.
    pub fn name(&self, entry: &Entry<'a>) -> Read<Option<String>> {
        let Some(value) = entry.attr_value(DW_AT_name) else { return Ok(None) };
        Ok(Some(self.0.attr_string(value)?.to_string_lossy().into_owned()))
    }

    /// Returns the entry of an entry's type; `None` for `void`.
    pub fn target(&self, entry: &Entry<'a>) -> Read<Option<Entry<'a>>> {
        match entry.attr_value(DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => self.0.entry(offset).map(Some),
            _ => Ok(None),
        }
    }
}

/// Returns an attribute that is a number without a sign.
pub fn number<T: TryFrom<u64>>(entry: &Entry<'_>, name: DwAt) -> Option<T> {
    entry.attr_value(name)?.udata_value().and_then(|n| T::try_from(n).ok())
}

/// Returns the number of elements of an array's range (`DW_TAG_subrange_type`); 0 if it has none.
pub fn length(range: &Entry<'_>) -> usize {
    let last = number(range, DW_AT_upper_bound).map(|last: usize| last + 1);
    last.or_else(|| number(range, DW_AT_count)).unwrap_or(0)
}
