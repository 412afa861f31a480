//! Reads structures of a library from its debug information.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use gimli::{
    DW_AT_bit_offset, DW_AT_bit_size, DW_AT_byte_size, DW_AT_data_bit_offset, DW_AT_data_member_location,
};

use super::LayoutError;
use crate::dwarf::{self, Entry, Read, Reader, Unit, length, number};

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
        let dwarf = dwarf::load(file).map_err(|e| LayoutError::Debug(e.to_string()))?;
        let mut found = Self::default();
        found.collect(&dwarf, names, enough).map_err(|e| LayoutError::Debug(e.to_string()))?;
        Ok(found)
    }

    /// Returns a structure.
    pub(super) fn get(&self, name: &str) -> Option<&Structure> {
        self.0.get(name)
    }

    fn collect(
        &mut self,
        dwarf: &gimli::Dwarf<Reader<'_>>,
        names: &BTreeSet<&str>,
        enough: impl Fn(&Self) -> bool,
    ) -> Read<()> {
        dwarf::for_each_unit(dwarf, |unit| {
            unit.for_each_entry(|entry| self.entry(unit, entry, names))?;
            Ok(if enough(self) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }

    /// Reads one entry of a unit's outermost level.
    fn entry<'a>(&mut self, unit: &Unit<'a>, entry: &Entry<'a>, names: &BTreeSet<&str>) -> Read<()> {
        // A structure without a name has the one of its typedef.
        let is_typedef = entry.tag == gimli::DW_TAG_typedef;
        if !is_typedef && entry.tag != gimli::DW_TAG_structure_type {
            return Ok(());
        }
        let Some(name) = unit.name(entry)? else { return Ok(()) };
        if !names.contains(name.as_str()) || self.0.contains_key(&name) {
            return Ok(());
        }
        let found = if is_typedef { target(unit, entry)? } else { Some(entry.clone()) };
        // A declaration without a definition has no size.
        if let Some(found) = found.filter(|found| found.has_attr(DW_AT_byte_size)) {
            self.0.insert(name, structure(unit, &found)?);
        }
        Ok(())
    }
}

/// Returns the entry of an entry's type, behind typedefs and qualifiers; `None` for `void`.
fn target<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Read<Option<Entry<'a>>> {
    let Some(found) = unit.target(entry)? else { return Ok(None) };
    match found.tag {
        gimli::DW_TAG_typedef | gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type => {
            target(unit, &found)
        }
        _ => Ok(Some(found)),
    }
}

fn structure<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Read<Structure> {
    let mut structure =
        Structure { size: number(entry, DW_AT_byte_size).unwrap_or(0), ..Structure::default() };
    members(unit, entry, "", 0, &mut structure.members)?;
    Ok(structure)
}

fn members<'a>(
    unit: &Unit<'a>,
    entry: &Entry<'a>,
    prefix: &str,
    base: usize,
    all: &mut BTreeMap<String, Member>,
) -> Read<()> {
    for child in unit.children(entry.offset)? {
        if child.tag != gimli::DW_TAG_member {
            continue;
        }
        let Some(target) = target(unit, &child)? else { continue };
        let storage = number(&child, DW_AT_byte_size).map_or_else(|| size(unit, &target), Ok)?;
        let offset = base + number(&child, DW_AT_data_member_location).unwrap_or(0);
        let place = bit_field(&child, Member { offset, size: storage, bits: None });
        let name = unit.name(&child)?.map(|name| format!("{prefix}{name}"));
        if matches!(target.tag, gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type) {
            let prefix = name.as_ref().map_or_else(|| prefix.to_owned(), |name| format!("{name}."));
            members(unit, &target, &prefix, place.offset, all)?;
        }
        if let Some(name) = name {
            all.insert(name, place);
        }
    }
    Ok(())
}

/// Returns the size of a type in bytes.
fn size<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Read<usize> {
    if let Some(size) = number(entry, DW_AT_byte_size) {
        return Ok(size);
    }
    match entry.tag {
        gimli::DW_TAG_pointer_type => Ok(8),
        gimli::DW_TAG_array_type => {
            let element = target(unit, entry)?.map_or(Ok(0), |element| size(unit, &element))?;
            let ranges = unit.children(entry.offset)?;
            let ranges = ranges.iter().filter(|c| c.tag == gimli::DW_TAG_subrange_type);
            Ok(element * ranges.map(length).product::<usize>())
        }
        _ => Ok(0),
    }
}

/// Adds the bits of a bit-field to its member. DWARF 4 counts them from the highest bit of the
/// storage unit; DWARF 5 counts them from the structure's first bit.
fn bit_field(entry: &Entry<'_>, mut member: Member) -> Member {
    let Some(width) = number::<usize>(entry, DW_AT_bit_size) else { return member };
    let storage = 8 * member.size;
    let low = if let Some(from_top) = number::<usize>(entry, DW_AT_bit_offset) {
        storage - width - from_top
    } else {
        let bit = number(entry, DW_AT_data_bit_offset).unwrap_or(0);
        let unit = bit / storage;
        member.offset += unit * member.size;
        bit % storage
    };
    member.bits = Some((low as u32, width as u32));
    member
}
