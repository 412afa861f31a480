//! The plugin file as a dynamic linker sees it: what it exports, what it needs, and that it stays
//! mapped.

use std::{collections::BTreeSet, fs};

use mpib_tests::paths::{artifact, workspace};
use object::{
    Endianness,
    elf::{self, FileHeader64},
    read::elf::{Dyn, FileHeader, SectionTable, Sym, VersionTable},
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

/// A symbol of the dynamic table, with the version it is bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    name: String,
    version: Option<String>,
}

impl<'a> Elf<'a> {
    fn parse(data: &'a [u8]) -> Self {
        let header = FileHeader64::<Endianness>::parse(data).expect("a 64-bit ELF file");
        let endian = header.endian().unwrap();
        Self { data, endian, sections: header.sections(endian, data).unwrap() }
    }

    /// Defined or undefined global symbols.
    fn symbols(&self, defined: bool) -> BTreeSet<Name> {
        let (endian, data) = (self.endian, self.data);
        let table = self.sections.symbols(endian, data, elf::SHT_DYNSYM).unwrap();
        let versions: VersionTable<'_, FileHeader64<Endianness>> =
            self.sections.versions(endian, data).unwrap().unwrap_or_default();
        let mut names = BTreeSet::new();
        for (index, symbol) in table.enumerate() {
            let name = String::from_utf8_lossy(symbol.name(endian, table.strings()).unwrap()).into_owned();
            if name.is_empty() || symbol.is_local() || symbol.is_undefined(endian) == defined {
                continue;
            }
            let version = versions.version(versions.version_index(endian, index)).unwrap();
            let version = version.map(|v| String::from_utf8_lossy(v.name()).into_owned());
            names.insert(Name { name, version });
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

fn names(symbols: &BTreeSet<Name>) -> BTreeSet<&str> {
    symbols.iter().map(|s| s.name.as_str()).collect()
}

#[test]
fn exports_the_tables_and_the_doctor_and_nothing_else() {
    let file = built("libnccl-net-mpib.so");
    let exported = Elf::parse(&file).symbols(true);
    let mut expected: Vec<String> =
        (6..=12).flat_map(|v| [format!("ncclNetPlugin_v{v}"), format!("ncclNet_v{v}")]).collect();
    expected.extend((13..=16).map(|v| format!("ncclRmaPlugin_v{v}")));
    expected.extend(["mpib_doctor_v1", "mpib_doctor_routes_v1"].map(String::from));
    assert_eq!(names(&exported), expected.iter().map(String::as_str).collect());
}

/// Name and version of each symbol that programs are linked with today, of rdma-core 44 (Debian
/// 12).
fn rdma_core_44() -> BTreeSet<Name> {
    let list = workspace().join("crates/softverbs/ibverbs.symbols");
    let list = fs::read_to_string(list).unwrap();
    let symbols = list.lines().filter_map(|line| {
        let (name, version) = line.split_whitespace().next()?.split_once("@@")?;
        Some(Name { name: name.into(), version: Some(version.into()) })
    });
    symbols.collect()
}

/// A symbol newer than IBVERBS_1.1 would keep the whole file from loading on an older rdma-core.
#[test]
fn asks_libibverbs_for_nothing_newer_than_its_first_versions() {
    let file = built("libnccl-net-mpib.so");
    let asked: BTreeSet<Name> =
        Elf::parse(&file).symbols(false).into_iter().filter(|s| s.name.starts_with("ibv_")).collect();
    assert!(names(&asked).contains("ibv_get_device_list"), "uses verbs at all: {asked:?}");
    let old = |s: &&Name| matches!(s.version.as_deref(), Some("IBVERBS_1.0" | "IBVERBS_1.1"));
    let there: BTreeSet<Name> = rdma_core_44().iter().filter(old).cloned().collect();
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// NCCL's processes are linked with BIND_NOW libraries: a stand-in that lacks one symbol does not
/// load.
#[test]
fn softverbs_has_every_symbol_that_the_plugin_asks_for() {
    let (plugin, stand_in) = (built("libnccl-net-mpib.so"), built("softverbs/libibverbs.so.1"));
    let asked: BTreeSet<Name> =
        Elf::parse(&plugin).symbols(false).into_iter().filter(|s| s.name.starts_with("ibv_")).collect();
    let there = Elf::parse(&stand_in).symbols(true);
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(Elf::parse(&stand_in).dynamic_text(elf::DT_SONAME), ["libibverbs.so.1"]);
}

#[test]
fn needs_only_libibverbs_and_the_c_library() {
    let file = built("libnccl-net-mpib.so");
    let needed = Elf::parse(&file).dynamic_text(elf::DT_NEEDED);
    assert!(needed.iter().any(|n| n == "libibverbs.so.1"), "{needed:?}");
    let known = |n: &&String| {
        !["libibverbs.so.1", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"]
            .contains(&n.as_str())
            && !n.starts_with("ld-linux")
    };
    let strange: Vec<_> = needed.iter().filter(known).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

//= faults.md: 55: there is no name service: the plugin looks up no names
#[test]
fn looks_up_no_names() {
    let file = built("libnccl-net-mpib.so");
    let symbols = Elf::parse(&file).symbols(false);
    let lookups: Vec<_> = names(&symbols)
        .into_iter()
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
