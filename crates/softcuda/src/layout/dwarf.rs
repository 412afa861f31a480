//! Reads structures of a library from its debug information.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{
    AttributeValue, DW_AT_bit_offset, DW_AT_bit_size, DW_AT_byte_size, DW_AT_count, DW_AT_data_bit_offset,
    DW_AT_data_member_location, DW_AT_name, DW_AT_type, DW_AT_upper_bound, DebuggingInformationEntry, DwAt,
    EndianSlice, LittleEndian, UnitOffset, UnitRef,
};
use object::{Object, ObjectSection};

use super::LayoutError;

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;
/// Errors below [`Structures::read`] are gimli's.
type Read<T> = Result<T, gimli::Error>;

/// A member of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    /// Offset in bytes; of a bit-field, of its storage unit.
    pub(super) offset: usize,
    /// Size in bytes.
    pub(super) size: usize,
    /// Lowest bit and width, if the member is a bit-field.
    pub(super) bits: Option<(u32, u32)>,
}

/// A structure. Members of a member have names with a dot, `ring.prev`; members of a structure or
/// union without a name count as the structure's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Structure {
    /// Size in bytes.
    pub(super) size: usize,
    pub(super) members: BTreeMap<String, Member>,
}

/// Structures by their names.
#[derive(Debug, Default)]
pub(super) struct Structures(BTreeMap<String, Structure>);

impl Structures {
    /// Reads the structures of these names. A structure that is not there is not an error here.
    /// `enough` is called after each compilation unit and ends the search.
    pub(super) fn read(
        file: &object::File<'_>,
        names: &BTreeSet<&str>,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<Self, LayoutError> {
        let section = |id: gimli::SectionId| -> Result<Reader<'_>, LayoutError> {
            let Some(section) = file.section_by_name(id.name()) else { return Ok(Reader::default()) };
            let data = section.data().map_err(|e| LayoutError::Debug(format!("{}: {e}", id.name())))?;
            Ok(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section)?;
        let mut found = Self::default();
        found.collect(&dwarf, names, enough).map_err(|e| LayoutError::Debug(e.to_string()))?;
        Ok(found)
    }

    /// Returns a structure.
    pub(super) fn get(&self, name: &str) -> Option<&Structure> {
        self.0.get(name)
    }

    fn collect<'a>(
        &mut self,
        dwarf: &gimli::Dwarf<Reader<'a>>,
        names: &BTreeSet<&str>,
        enough: impl Fn(&Self) -> bool,
    ) -> Read<()> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            let unit = Unit { unit: unit.unit_ref(dwarf) };
            let mut tree = unit.unit.entries_tree(None)?;
            let mut children = tree.root()?.children();
            while let Some(child) = children.next()? {
                let entry = child.entry();
                // A declaration without a definition has no size.
                if entry.tag != gimli::DW_TAG_structure_type || !entry.has_attr(DW_AT_byte_size) {
                    continue;
                }
                let Some(name) = unit.name(entry)? else { continue };
                if names.contains(name.as_str()) && !self.0.contains_key(&name) {
                    self.0.insert(name, unit.structure(entry)?);
                }
            }
            if enough(self) {
                break;
            }
        }
        Ok(())
    }
}

/// A compilation unit.
struct Unit<'a> {
    unit: UnitRef<'a, Reader<'a>>,
}

impl<'a> Unit<'a> {
    fn name(&self, entry: &Entry<'a>) -> Read<Option<String>> {
        let Some(value) = entry.attr_value(DW_AT_name) else { return Ok(None) };
        Ok(Some(self.unit.attr_string(value)?.to_string_lossy().into_owned()))
    }

    fn number(entry: &Entry<'a>, name: DwAt) -> Option<usize> {
        entry.attr_value(name)?.udata_value().and_then(|n| usize::try_from(n).ok())
    }

    /// Returns the entry of an entry's type, behind typedefs and qualifiers; `None` for `void`.
    fn target(&self, entry: &Entry<'a>) -> Read<Option<Entry<'a>>> {
        let Some(AttributeValue::UnitRef(offset)) = entry.attr_value(DW_AT_type) else { return Ok(None) };
        let target = self.unit.entry(offset)?;
        match target.tag {
            gimli::DW_TAG_typedef | gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type => {
                self.target(&target)
            }
            _ => Ok(Some(target)),
        }
    }

    /// Returns an entry's direct children.
    fn children(&self, offset: UnitOffset) -> Read<Vec<Entry<'a>>> {
        let mut tree = self.unit.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        let mut all = Vec::new();
        while let Some(child) = children.next()? {
            all.push(child.entry().clone());
        }
        Ok(all)
    }

    fn structure(&self, entry: &Entry<'a>) -> Read<Structure> {
        let mut structure =
            Structure { size: Self::number(entry, DW_AT_byte_size).unwrap_or(0), ..Structure::default() };
        self.members(entry, "", 0, &mut structure.members)?;
        Ok(structure)
    }

    fn members(
        &self,
        entry: &Entry<'a>,
        prefix: &str,
        base: usize,
        members: &mut BTreeMap<String, Member>,
    ) -> Read<()> {
        for child in self.children(entry.offset)? {
            if child.tag != gimli::DW_TAG_member {
                continue;
            }
            let Some(target) = self.target(&child)? else { continue };
            let storage = Self::number(&child, DW_AT_byte_size).map_or_else(|| self.size(&target), Ok)?;
            let offset = base + Self::number(&child, DW_AT_data_member_location).unwrap_or(0);
            let place = bit_field(&child, Member { offset, size: storage, bits: None });
            let name = self.name(&child)?.map(|name| format!("{prefix}{name}"));
            if matches!(target.tag, gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type) {
                let prefix = name.as_ref().map_or_else(|| prefix.to_owned(), |name| format!("{name}."));
                self.members(&target, &prefix, place.offset, members)?;
            }
            if let Some(name) = name {
                members.insert(name, place);
            }
        }
        Ok(())
    }

    /// Returns the size of a type in bytes.
    fn size(&self, entry: &Entry<'a>) -> Read<usize> {
        if let Some(size) = Self::number(entry, DW_AT_byte_size) {
            return Ok(size);
        }
        match entry.tag {
            gimli::DW_TAG_pointer_type => Ok(8),
            gimli::DW_TAG_array_type => {
                let element = self.target(entry)?.map_or(Ok(0), |element| self.size(&element))?;
                let ranges = self.children(entry.offset)?;
                let ranges = ranges.iter().filter(|c| c.tag == gimli::DW_TAG_subrange_type);
                Ok(element * ranges.map(length).product::<usize>())
            }
            _ => Ok(0),
        }
    }
}

/// Returns the number of elements of an array's range.
fn length(range: &Entry<'_>) -> usize {
    let last = Unit::number(range, DW_AT_upper_bound).map(|last| last + 1);
    last.or_else(|| Unit::number(range, DW_AT_count)).unwrap_or(0)
}

/// Adds the bits of a bit-field to its member. DWARF 4 counts them from the highest bit of the
/// storage unit; DWARF 5 counts them from the structure's first bit.
fn bit_field(entry: &Entry<'_>, mut member: Member) -> Member {
    let Some(width) = Unit::number(entry, DW_AT_bit_size) else { return member };
    let storage = 8 * member.size;
    let low = if let Some(from_top) = Unit::number(entry, DW_AT_bit_offset) {
        storage - width - from_top
    } else {
        let bit = Unit::number(entry, DW_AT_data_bit_offset).unwrap_or(0);
        let unit = bit / storage;
        member.offset += unit * member.size;
        bit % storage
    };
    member.bits = Some((low as u32, width as u32));
    member
}
