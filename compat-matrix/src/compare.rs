//! Compares a library's types with the description in crate `abi`.

use nccl_net_abi::describe;

use crate::dwarf::{Struct, Types};

/// The result of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Number of structures that both sides have.
    pub(crate) structs: usize,
    pub(crate) enumerators: usize,
    pub(crate) differences: Vec<String>,
}

/// Compares everything that both the description and the library have.
pub(crate) fn compare(types: &Types) -> Compared {
    let mut compared = Compared::default();
    for ours in describe::structs() {
        if let Some(theirs) = types.structs.get(ours.c_name) {
            compared.structs += 1;
            compare_struct(types, &ours, theirs, &mut compared.differences);
        }
    }
    for (name, value) in describe::constants() {
        let Some(theirs) = types.enumerators.get(*name) else { continue };
        compared.enumerators += 1;
        if theirs != value {
            compared.differences.push(format!("{name}: {value} here, {theirs} there"));
        }
    }
    compared
}

fn compare_struct(types: &Types, ours: &describe::Struct, theirs: &Struct, said: &mut Vec<String>) {
    let name = ours.c_name;
    if ours.size as u64 != theirs.size {
        said.push(format!("{name}: {} bytes here, {} there", ours.size, theirs.size));
    }
    let here: Vec<&str> = ours.fields.iter().map(|f| f.name).collect();
    let there: Vec<&str> = theirs.fields.iter().map(|f| f.name.as_str()).collect();
    if here != there {
        said.push(format!("{name}: fields {here:?} here, {there:?} there"));
    }
    for field in &ours.fields {
        let Some(other) = theirs.field(field.name) else { continue };
        let place = format!("{name}.{}", field.name);
        if field.offset as u64 != other.offset {
            said.push(format!("{place}: offset {} here, {} there", field.offset, other.offset));
        }
        let (here, there) = (types.oldest(&field.c_type), types.oldest(&other.c_type));
        if here != there && !there.is_empty() {
            said.push(format!("{place}: {} here, {} there", field.c_type, other.c_type));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dwarf::Field;

    /// Returns the description in a library's form.
    fn ours() -> Types {
        let structs = describe::structs().into_iter().map(|s| {
            let fields = s.fields.into_iter().map(|f| Field {
                name: f.name.to_owned(),
                offset: f.offset as u64,
                c_type: f.c_type,
            });
            (s.c_name.to_owned(), Struct { size: s.size as u64, fields: fields.collect() })
        });
        let constants = describe::constants().iter().map(|(name, value)| ((*name).to_owned(), *value));
        Types { structs: structs.collect(), enumerators: constants.collect() }
    }

    /// Applies one change; the difference must contain these words.
    #[track_caller]
    fn found(change: impl FnOnce(&mut Types), words: &str) {
        let mut types = ours();
        change(&mut types);
        let said = compare(&types).differences.join("; ");
        assert!(said.contains(words), "{said:?}");
    }

    #[test]
    fn the_description_is_like_itself() {
        let compared = compare(&ours());
        assert_eq!(compared.differences, [""; 0]);
        assert_eq!(compared.structs, describe::structs().len());
    }

    #[test]
    fn each_kind_of_difference_is_found() {
        fn table(types: &mut Types) -> &mut Struct {
            types.structs.get_mut("ncclNet_v12_t").unwrap()
        }
        found(|t| table(t).size += 8, "ncclNet_v12_t: 176 bytes here, 184 there");
        found(|t| table(t).fields.swap(3, 4), "fields");
        found(|t| table(t).fields[2].offset += 8, "ncclNet_v12_t.devices: offset 16 here, 24 there");
        found(
            |t| table(t).fields[2].c_type = "ncclResult_t (*)(long *)".into(),
            "devices: ncclResult_t (*)(int *) here",
        );
        found(
            |t| *t.enumerators.get_mut("ncclRemoteError").unwrap() += 1,
            "ncclRemoteError: 6 here, 7 there",
        );
    }

    #[test]
    fn a_structure_defined_again_is_the_same_only_where_its_fields_are() {
        let again = |t: &mut Types| {
            let old = t.structs["ncclNetCommConfig_v10_t"].clone();
            t.structs.insert("ncclNetCommConfig_v11_t".into(), old);
            let table = t.structs.get_mut("ncclNet_v11_t").unwrap();
            table.fields[1].c_type = table.fields[1].c_type.replace("CommConfig_v10", "CommConfig_v11");
        };
        let mut types = ours();
        again(&mut types);
        assert_eq!(compare(&types).differences, [""; 0]);
        found(
            |t| {
                again(t);
                t.structs.get_mut("ncclNetCommConfig_v11_t").unwrap().size += 4;
            },
            "ncclNet_v11_t.init",
        );
    }
}
