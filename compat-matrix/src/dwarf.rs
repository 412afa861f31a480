//! Reads a release's structures, signatures and enumerators from the library's debug information,
//! in the form of `nccl_net_abi::describe`.

use std::collections::BTreeMap;

use gimli::{
    AttributeValue, DW_AT_byte_size, DW_AT_const_value, DW_AT_count, DW_AT_data_member_location, DW_AT_name,
    DW_AT_type, DW_AT_upper_bound, DebuggingInformationEntry, DwAt, DwTag, EndianSlice, LittleEndian,
    UnitOffset, UnitRef,
};
use object::{Object, ObjectSection};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Result};

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = DebuggingInformationEntry<Reader<'a>>;
/// Errors in this module are gimli's.
type Read<T> = std::result::Result<T, gimli::Error>;

/// Returns whether a typedef belongs to the interface's structures.
fn of_interest(name: &str) -> bool {
    (name.starts_with("ncclNet") || name.starts_with("ncclProfilerNet")) && name.ends_with("_t")
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
        let section = |id: gimli::SectionId| -> Result<Reader<'_>> {
            let Some(section) = file.section_by_name(id.name()) else { return Ok(Reader::default()) };
            let data = section.data().cannot(format!("read section {}", id.name()))?;
            Ok(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section)?;
        let mut types = Self::default();
        types.collect(&dwarf).cannot("read the debug information")?;
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

    fn collect<'a>(&mut self, dwarf: &gimli::Dwarf<Reader<'a>>) -> Read<()> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            let unit = Unit { unit: unit.unit_ref(dwarf) };
            let mut tree = unit.unit.entries_tree(None)?;
            let mut children = tree.root()?.children();
            while let Some(child) = children.next()? {
                self.entry(&unit, child.entry())?;
            }
        }
        Ok(())
    }

    /// Reads one entry of a unit's outermost level.
    fn entry<'a>(&mut self, unit: &Unit<'a>, entry: &Entry<'a>) -> Read<()> {
        match entry.tag {
            gimli::DW_TAG_typedef => {
                let Some(name) = unit.name(entry)? else { return Ok(()) };
                if of_interest(&name)
                    && !self.structs.contains_key(&name)
                    && let Some(found) = unit.structure_of(entry)?
                {
                    self.structs.insert(name, found);
                }
            }
            gimli::DW_TAG_structure_type if !self.structs.contains_key("ncclComm") => {
                let complete = entry.has_attr(DW_AT_byte_size);
                if complete && unit.name(entry)?.as_deref() == Some("ncclComm") {
                    self.structs.insert("ncclComm".into(), unit.structure(entry)?);
                }
            }
            gimli::DW_TAG_enumeration_type => unit.enumerators(entry, &mut self.enumerators)?,
            _ => {}
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

    fn number(entry: &Entry<'a>, name: DwAt) -> Option<u64> {
        entry.attr_value(name)?.udata_value()
    }

    /// Returns the entry of an entry's type; `None` for `void`.
    fn target(&self, entry: &Entry<'a>) -> Read<Option<Entry<'a>>> {
        match entry.attr_value(DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => self.unit.entry(offset).map(Some),
            _ => Ok(None),
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

    /// Returns the structure behind a typedef, or behind a typedef of a typedef.
    fn structure_of(&self, typedef: &Entry<'a>) -> Read<Option<Struct>> {
        let Some(target) = self.target(typedef)? else { return Ok(None) };
        match target.tag {
            gimli::DW_TAG_typedef => self.structure_of(&target),
            gimli::DW_TAG_structure_type if target.has_attr(DW_AT_byte_size) => {
                self.structure(&target).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn structure(&self, entry: &Entry<'a>) -> Read<Struct> {
        let mut fields = Vec::new();
        self.members(entry, 0, &mut fields)?;
        Ok(Struct { size: Self::number(entry, DW_AT_byte_size).unwrap_or(0), fields })
    }

    /// Reads the members. Members of a union without a name count as the structure's own.
    fn members(&self, entry: &Entry<'a>, base: u64, fields: &mut Vec<Field>) -> Read<()> {
        for member in self.children(entry.offset)? {
            if member.tag != gimli::DW_TAG_member {
                continue;
            }
            let offset = base + Self::number(&member, DW_AT_data_member_location).unwrap_or(0);
            match self.name(&member)? {
                Some(name) => {
                    let c_type = self.c_type(self.target(&member)?.as_ref())?;
                    fields.push(Field { name, offset, c_type });
                }
                None => {
                    if let Some(inner) = self.target(&member)? {
                        self.members(&inner, offset, fields)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn enumerators(&self, entry: &Entry<'a>, all: &mut BTreeMap<String, i64>) -> Read<()> {
        for child in self.children(entry.offset)? {
            let Some(name) = self.name(&child)? else { continue };
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
    fn c_type(&self, entry: Option<&Entry<'a>>) -> Read<String> {
        let Some(entry) = entry else { return Ok("void".into()) };
        let target = || self.target(entry);
        Ok(match entry.tag {
            gimli::DW_TAG_base_type => plain(&self.name(entry)?.unwrap_or_default()),
            gimli::DW_TAG_typedef => {
                let name = self.name(entry)?.unwrap_or_default();
                let target = target()?;
                // A typedef of a typedef, of a pointer or of an integer with fixed width is not a
                // type by itself.
                match target.as_ref().map(|t| t.tag) {
                    Some(gimli::DW_TAG_typedef) if of_interest(&name) || is_alias(&name) => {
                        self.c_type(target.as_ref())?
                    }
                    Some(gimli::DW_TAG_pointer_type) => self.c_type(target.as_ref())?,
                    _ if is_alias(&name) => self.c_type(target.as_ref())?,
                    _ => name,
                }
            }
            gimli::DW_TAG_const_type => format!("const {}", self.c_type(target()?.as_ref())?),
            gimli::DW_TAG_pointer_type => match target()? {
                Some(function) if function.tag == gimli::DW_TAG_subroutine_type => {
                    self.function(&function)?
                }
                other => format!("{} *", self.c_type(other.as_ref())?),
            },
            gimli::DW_TAG_array_type => {
                let element = self.c_type(target()?.as_ref())?;
                format!("{element} [{}]", self.length(entry)?)
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_enumeration_type => {
                self.name(entry)?.unwrap_or_default()
            }
            other => tag_name(other),
        })
    }

    fn length(&self, array: &Entry<'a>) -> Read<u64> {
        let range = self.children(array.offset)?.into_iter().find(|c| c.tag == gimli::DW_TAG_subrange_type);
        let Some(range) = range else { return Ok(0) };
        let last = Self::number(&range, DW_AT_upper_bound).map(|last| last + 1);
        Ok(last.or_else(|| Self::number(&range, DW_AT_count)).unwrap_or(0))
    }

    fn function(&self, function: &Entry<'a>) -> Read<String> {
        let result = self.c_type(self.target(function)?.as_ref())?;
        let mut arguments = Vec::new();
        for child in self.children(function.offset)? {
            match child.tag {
                gimli::DW_TAG_formal_parameter => arguments.push(self.c_type(self.target(&child)?.as_ref())?),
                gimli::DW_TAG_unspecified_parameters => arguments.push("...".into()),
                _ => {}
            }
        }
        Ok(format!("{result} (*)({})", arguments.join(", ")))
    }
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
