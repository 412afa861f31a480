//! The plugin file as a dynamic linker sees it: what it exports, what it needs, and that it stays
//! mapped.

use std::{collections::BTreeSet, fs};

use mpib_tests::paths::artifact;
use object::{
    Endianness,
    elf::{self, FileHeader64},
    read::elf::{Dyn, FileHeader, SectionTable, Sym},
};

/// The bytes of a file that `make build` puts below `build/`.
fn built(name: &str) -> Vec<u8> {
    fs::read(artifact(name)).unwrap()
}

struct Elf<'a> {
    data: &'a [u8],
    endian: Endianness,
    sections: SectionTable<'a, FileHeader64<Endianness>>,
}

impl<'a> Elf<'a> {
    fn parse(data: &'a [u8]) -> Self {
        let header = FileHeader64::<Endianness>::parse(data).expect("a 64-bit ELF file");
        let endian = header.endian().unwrap();
        Self { data, endian, sections: header.sections(endian, data).unwrap() }
    }

    /// Defined or undefined global symbols.
    fn symbols(&self, defined: bool) -> BTreeSet<String> {
        let (endian, data) = (self.endian, self.data);
        let table = self.sections.symbols(endian, data, elf::SHT_DYNSYM).unwrap();
        let mut names = BTreeSet::new();
        for symbol in table.iter() {
            let name = String::from_utf8_lossy(symbol.name(endian, table.strings()).unwrap()).into_owned();
            if name.is_empty() || symbol.is_local() || symbol.is_undefined(endian) == defined {
                continue;
            }
            names.insert(name);
        }
        names
    }

    /// Entries of the dynamic section with this tag.
    fn dynamic(&self, tag: i64) -> Vec<u64> {
        let (entries, _) = self.sections.dynamic(self.endian, self.data).unwrap().expect("a dynamic section");
        entries.iter().filter(|e| e.tag(self.endian) == tag).map(|e| e.val(self.endian)).collect()
    }

    /// The same, where the values are strings.
    fn dynamic_text(&self, tag: i64) -> Vec<String> {
        let (endian, data) = (self.endian, self.data);
        let (entries, link) = self.sections.dynamic(endian, data).unwrap().expect("a dynamic section");
        let strings = self.sections.strings(endian, data, link).unwrap();
        let text = |e: &elf::Dyn64<Endianness>| {
            String::from_utf8_lossy(e.string(endian, strings).expect("a string in the table")).into_owned()
        };
        entries.iter().filter(|e| e.tag(endian) == tag).map(text).collect()
    }
}

#[test]
fn exports_the_tables_and_the_doctor_and_nothing_else() {
    let file = built("libnccl-net-mpib.so");
    let exported = Elf::parse(&file).symbols(true);
    let mut expected: Vec<String> =
        (6..=12).flat_map(|v| [format!("ncclNetPlugin_v{v}"), format!("ncclNet_v{v}")]).collect();
    expected.extend((13..=16).map(|v| format!("ncclRmaPlugin_v{v}")));
    expected.extend((1..=7).map(|v| format!("ncclProfiler_v{v}")));
    expected.extend(["mpib_doctor_v1", "mpib_doctor_routes_v1"].map(String::from));
    assert_eq!(exported, expected.into_iter().collect());
}

/// The file loads on any host: init opens libibverbs.
#[test]
fn needs_only_the_c_library() {
    let file = built("libnccl-net-mpib.so");
    let known = ["libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"];
    let mut needed = Elf::parse(&file).dynamic_text(elf::DT_NEEDED);
    needed.retain(|name| !known.contains(&name.as_str()) && !name.starts_with("ld-linux"));
    assert!(needed.is_empty(), "{needed:?}");
    let symbols = Elf::parse(&file).symbols(false);
    let verbs: Vec<_> = symbols.iter().filter(|name| name.contains("ibv_")).collect();
    assert!(verbs.is_empty(), "{verbs:?}");
}

//= faults.md: 55: there is no name service: the plugin looks up no names
#[test]
fn looks_up_no_names() {
    let file = built("libnccl-net-mpib.so");
    let symbols = Elf::parse(&file).symbols(false);
    let lookups: Vec<_> = symbols
        .iter()
        .filter(|name| {
            ["getaddrinfo", "gethostby", "getservby", "getnameinfo", "res_"]
                .iter()
                .any(|part| name.contains(part))
        })
        .collect();
    assert!(lookups.is_empty(), "{lookups:?}");
}

/// NCCL unloads and reloads plugins, in some releases with pointers into the old image.
#[test]
fn stays_when_it_is_unloaded_and_is_named_as_its_file() {
    let file = built("libnccl-net-mpib.so");
    let elf = Elf::parse(&file);
    let flags = elf.dynamic(elf::DT_FLAGS_1).into_iter().fold(0, |all, one| all | one);
    assert_ne!(
        flags & u64::from(elf::DF_1_NODELETE),
        0,
        "DF_1_NODELETE is not set (DT_FLAGS_1 = {flags:#x})"
    );
    assert_eq!(elf.dynamic_text(elf::DT_SONAME), ["libnccl-net-mpib.so"]);
}
