//! The shared library exports the symbols and versions of rdma-core's, and nothing else.

use std::path::Path;

use crate::support::elf::{self, Versioned};
use crate::support::stand_in;
use softverbs::symbols::{OWN, OWN_VERSION, symbols};

/// rdma-core's own library, where Debian and Ubuntu put it.
const REAL: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/aarch64-linux-gnu/libibverbs.so.1"];

fn listed() -> Vec<Versioned> {
    let mut all: Vec<_> = symbols()
        .map(|s| Versioned { name: s.name.to_owned(), version: s.version.to_owned(), default: s.default })
        .collect();
    all.sort();
    all
}

/// Panics with the differences.
fn assert_same(what: &str, found: &[Versioned], expected: &[Versioned]) {
    let missing: Vec<_> = expected.iter().filter(|s| !found.contains(s)).collect();
    let extra: Vec<_> = found.iter().filter(|s| !expected.contains(s)).collect();
    assert!(missing.is_empty() && extra.is_empty(), "{what}: missing {missing:#?}, too many {extra:#?}");
}

#[test]
fn the_stand_in_exports_the_list_and_its_own_functions() {
    let library = elf::dynamic(&stand_in::folder().join("libibverbs.so.1"));
    let mut expected = listed();
    let own =
        |name: &str| Versioned { name: name.to_owned(), version: OWN_VERSION.to_owned(), default: true };
    expected.extend(OWN.map(own));
    assert_same("libibverbs.so.1", &library.exports, &expected);
}

#[test]
fn the_stand_in_needs_only_libc() {
    let library = elf::dynamic(&stand_in::folder().join("libibverbs.so.1"));
    assert_eq!(library.soname.as_deref(), Some("libibverbs.so.1"));
    for needed in &library.needed {
        let known = ["libc.so.", "libgcc_s.so.", "ld-linux"].iter().any(|k| needed.starts_with(k));
        assert!(known, "needs {needed}; only libc, libgcc_s and the loader are expected");
    }
    assert!(!library.text_relocations);
    let verbs: Vec<_> = library.imports.iter().filter(|s| s.name.contains("ibv_")).collect();
    assert!(verbs.is_empty(), "wants {verbs:?} from another library");
}

#[test]
fn the_list_matches_rdma_core_44() {
    let Some(path) = REAL.iter().map(Path::new).find(|p| p.exists()) else {
        panic!("no libibverbs.so.1 in {REAL:?}: install libibverbs1 (make setup)");
    };
    // The target of the link contains the version: libibverbs.so.1.14.44.0.
    let file = path.canonicalize().expect("it exists");
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name.ends_with(".44.0") {
        println!("not compared: {name} is not version 44");
        return;
    }
    assert_same(&name, &elf::dynamic(&file).exports, &listed());
}

/// Libraries of rdma-core that perftest loads need private symbols too.
#[test]
fn other_libraries_of_rdma_core_find_all_symbols() {
    let folder = Path::new(REAL[0]).parent().expect("a file has a folder");
    let mut seen = 0;
    for name in ["librdmacm.so.1", "libmlx5.so.1", "libefa.so.1", "libmlx4.so.1"] {
        let path = folder.join(name);
        if !path.exists() {
            continue;
        }
        seen += 1;
        let missing = elf::unserved(&path);
        assert!(missing.is_empty(), "{name} wants {missing:?}");
    }
    assert!(
        seen > 0,
        "none of rdma-core's libraries found: install librdmacm1 and ibverbs-providers (make setup)"
    );
}
