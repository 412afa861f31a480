//! Reads a release's structures, signatures and enumerators from the library's debug information,
//! in the form of `nccl_net_abi::describe`.

use std::{collections::BTreeMap, ops::ControlFlow};

use gimli::{AttributeValue, DW_AT_byte_size, DW_AT_const_value, DW_AT_data_member_location, DwTag};
use serde::{Deserialize, Serialize};
use softcuda::dwarf::{self, Entry, Read, Unit, length, number};

use crate::failure::{Context, Failure, Result};

/// Returns whether a typedef belongs to the interface's structures.
fn of_interest(name: &str) -> bool {
    let stems = ["ncclNet", "ncclProfilerNet", "ncclRma", "ncclGin"];
    stems.iter().any(|stem| name.starts_with(stem)) && name.ends_with("_t")
}

/// A field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// Offset in bytes.
    pub(crate) offset: u64,
    /// The type as C writes it; empty for a structure without a name.
    pub(crate) c_type: String,
}

/// A structure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Struct {
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) fields: Vec<Field>,
}

impl Struct {
    /// Returns size, names and offsets.
    fn places(&self) -> (u64, Vec<(&str, u64)>) {
        (self.size, self.fields.iter().map(|f| (f.name.as_str(), f.offset)).collect())
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }
}

/// The part of a library's debug information that the checks use.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Types {
    /// Structures by the name of the typedef; `ncclComm` by its tag.
    pub(crate) structs: BTreeMap<String, Struct>,
    /// Every enumerator whose name begins with nccl or NCCL.
    pub(crate) enumerators: BTreeMap<String, i64>,
}

impl Types {
    /// Reads all units of a library.
    pub(crate) fn read(file: &object::File<'_>) -> Result<Self> {
        let dwarf = dwarf::load(file).cannot("read the debug information")?;
        let mut types = Self::default();
        let all = dwarf::for_each_unit(&dwarf, |unit| {
            unit.for_each_entry(|entry| types.entry(unit, entry))?;
            Ok(ControlFlow::Continue(()))
        });
        all.cannot("read the debug information")?;
        if types.structs.is_empty() {
            return Err(Failure::tool("the library has no debug information about NCCL's structures"));
        }
        Ok(types)
    }

    /// Returns a type in which each structure has the name of the oldest version with the same
    /// fields at the same offsets. Some releases define such a structure again, others give the old
    /// one a new name.
    pub(crate) fn oldest(&self, c_type: &str) -> String {
        let old = |word: &str| {
            let Some((stem, version)) = versioned(word) else { return word.to_owned() };
            let Some(fields) = self.structs.get(word).map(Struct::places) else { return word.to_owned() };
            let older = (0..version).map(|v| format!("{stem}_v{v}_t"));
            let mut same =
                older.filter(|name| self.structs.get(name).map(Struct::places).as_ref() == Some(&fields));
            same.next().unwrap_or_else(|| word.to_owned())
        };
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let mut out = String::new();
        let mut rest = c_type;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c| is_name(c) != is_name(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out += &if is_name(first) { old(word) } else { word.to_owned() };
            rest = after;
        }
        out
    }

    /// Reads one entry of a unit's outermost level.
    fn entry<'a>(&mut self, unit: &Unit<'a>, entry: &Entry<'a>) -> Read<()> {
        match entry.tag {
            gimli::DW_TAG_typedef => {
                let Some(name) = unit.name(entry)? else { return Ok(()) };
                if of_interest(&name)
                    && !self.structs.contains_key(&name)
                    && let Some(found) = structure_of(unit, entry)?
                {
                    self.structs.insert(name, found);
                }
            }
            gimli::DW_TAG_structure_type if !self.structs.contains_key("ncclComm") => {
                let complete = entry.has_attr(DW_AT_byte_size);
                if complete && unit.name(entry)?.as_deref() == Some("ncclComm") {
                    self.structs.insert("ncclComm".into(), structure(unit, entry)?);
                }
            }
            gimli::DW_TAG_enumeration_type => enumerators(unit, entry, &mut self.enumerators)?,
            _ => {}
        }
        Ok(())
    }
}

/// Returns the structure behind a typedef, or behind a typedef of a typedef.
fn structure_of<'a>(unit: &Unit<'a>, typedef: &Entry<'a>) -> Read<Option<Struct>> {
    let Some(target) = unit.target(typedef)? else { return Ok(None) };
    match target.tag {
        gimli::DW_TAG_typedef => structure_of(unit, &target),
        gimli::DW_TAG_structure_type if target.has_attr(DW_AT_byte_size) => {
            structure(unit, &target).map(Some)
        }
        _ => Ok(None),
    }
}

fn structure<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Read<Struct> {
    let mut fields = Vec::new();
    members(unit, entry, 0, &mut fields)?;
    Ok(Struct { size: number(entry, DW_AT_byte_size).unwrap_or(0), fields })
}

/// Reads the members. Members of a union without a name count as the structure's own.
fn members<'a>(unit: &Unit<'a>, entry: &Entry<'a>, base: u64, fields: &mut Vec<Field>) -> Read<()> {
    for member in unit.children(entry.offset)? {
        if member.tag != gimli::DW_TAG_member {
            continue;
        }
        let offset = base + number(&member, DW_AT_data_member_location).unwrap_or(0);
        match unit.name(&member)? {
            Some(name) => {
                let c_type = c_type(unit, unit.target(&member)?.as_ref())?;
                fields.push(Field { name, offset, c_type });
            }
            None => {
                if let Some(inner) = unit.target(&member)? {
                    members(unit, &inner, offset, fields)?;
                }
            }
        }
    }
    Ok(())
}

fn enumerators<'a>(unit: &Unit<'a>, entry: &Entry<'a>, all: &mut BTreeMap<String, i64>) -> Read<()> {
    for child in unit.children(entry.offset)? {
        let Some(name) = unit.name(&child)? else { continue };
        let value = match child.attr_value(DW_AT_const_value) {
            Some(AttributeValue::Sdata(value)) => Some(value),
            // A form of fixed width has no sign.
            other => other.and_then(|v| v.udata_value()).and_then(|v| i64::try_from(v).ok()),
        };
        if let (Some(value), true) = (value, name.starts_with("nccl") || name.starts_with("NCCL")) {
            all.insert(name, value);
        }
    }
    Ok(())
}

/// Formats a type as C writes it, without a name.
fn c_type<'a>(unit: &Unit<'a>, entry: Option<&Entry<'a>>) -> Read<String> {
    let Some(entry) = entry else { return Ok("void".into()) };
    let target = || unit.target(entry);
    Ok(match entry.tag {
        gimli::DW_TAG_base_type => plain(&unit.name(entry)?.unwrap_or_default()),
        gimli::DW_TAG_typedef => {
            let name = unit.name(entry)?.unwrap_or_default();
            let target = target()?;
            // A typedef of a typedef, of a pointer or of an integer with fixed width is not a
            // type by itself.
            match target.as_ref().map(|t| t.tag) {
                Some(gimli::DW_TAG_typedef) if of_interest(&name) || is_alias(&name) => {
                    c_type(unit, target.as_ref())?
                }
                Some(gimli::DW_TAG_pointer_type) => c_type(unit, target.as_ref())?,
                _ if is_alias(&name) => c_type(unit, target.as_ref())?,
                _ => name,
            }
        }
        gimli::DW_TAG_const_type => format!("const {}", c_type(unit, target()?.as_ref())?),
        gimli::DW_TAG_pointer_type => match target()? {
            Some(function) if function.tag == gimli::DW_TAG_subroutine_type => signature(unit, &function)?,
            other => format!("{} *", c_type(unit, other.as_ref())?),
        },
        gimli::DW_TAG_array_type => {
            let element = c_type(unit, target()?.as_ref())?;
            format!("{element} [{}]", elements(unit, entry)?)
        }
        gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_enumeration_type => {
            unit.name(entry)?.unwrap_or_default()
        }
        other => tag_name(other),
    })
}

/// Returns the number of elements of an array; 0 without a range.
fn elements(unit: &Unit<'_>, array: &Entry<'_>) -> Read<usize> {
    let ranges = unit.children(array.offset)?;
    Ok(ranges.iter().find(|c| c.tag == gimli::DW_TAG_subrange_type).map_or(0, length))
}

fn signature<'a>(unit: &Unit<'a>, function: &Entry<'a>) -> Read<String> {
    let result = c_type(unit, unit.target(function)?.as_ref())?;
    let mut arguments = Vec::new();
    for child in unit.children(function.offset)? {
        match child.tag {
            gimli::DW_TAG_formal_parameter => arguments.push(c_type(unit, unit.target(&child)?.as_ref())?),
            gimli::DW_TAG_unspecified_parameters => arguments.push("...".into()),
            _ => {}
        }
    }
    Ok(format!("{result} (*)({})", arguments.join(", ")))
}

/// Returns whether C's library gives this name to an integer. The interface's description does not
/// distinguish these names.
fn is_alias(name: &str) -> bool {
    ["int32_t", "__int32_t", "__uint64_t", "__uint32_t", "__uint8_t", "__int64_t", "__int16_t"]
        .contains(&name)
}

/// Translates g++'s names of base types into the description's.
fn plain(name: &str) -> String {
    match name {
        "long unsigned int" => "unsigned long",
        other => other,
    }
    .to_owned()
}

fn tag_name(tag: DwTag) -> String {
    tag.static_string().unwrap_or("an unknown tag").to_owned()
}

/// Splits `ncclNetAttr_v11_t` into `ncclNetAttr` and 11.
fn versioned(name: &str) -> Option<(&str, u32)> {
    let (stem, version) = name.strip_suffix("_t")?.rsplit_once("_v")?;
    Some((stem, version.parse().ok()?))
}
