//! Compares the headers with the Rust types through the system's C compiler.
//!
//! Compared are sizes, alignments, offsets, the type of every field and slot, and every constant.
//! Headers with a seeded fault show that the comparison can fail.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nccl_net_abi::describe;

const HEADERS: [&str; 21] = [
    "err.h",
    "types.h",
    "net_device.h",
    "net_v6.h",
    "net_v7.h",
    "net_v8.h",
    "net_v9.h",
    "net_v10.h",
    "net_v11.h",
    "net_v12.h",
    "rma_v13.h",
    "rma_v14.h",
    "rma_v15.h",
    "rma_v16.h",
    "profiler_v1.h",
    "profiler_v2.h",
    "profiler_v3.h",
    "profiler_v4.h",
    "profiler_v5.h",
    "profiler_v6.h",
    "profiler_v7.h",
];

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Runs the C compiler on `source` with `include` as include path. Produces no object file.
fn compile(source: &str, include: &Path, flags: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("check.c");
    fs::write(&file, source).expect("the folder is writable");
    let cc = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    Command::new(&cc)
        .args(flags)
        .arg("-I")
        .arg(include)
        .arg("-fsyntax-only")
        .arg(&file)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; the tests need a C compiler", cc.display()))
}

/// Returns C source that compiles only if the headers agree with the Rust types. Each message names
/// the place.
fn assertions() -> String {
    let mut c = String::from("#include <stddef.h>\n");
    for version in 6..=12 {
        let _ = writeln!(c, "#include \"nccl/net_v{version}.h\"");
    }
    for version in 13..=16 {
        let _ = writeln!(c, "#include \"nccl/rma_v{version}.h\"");
    }
    for version in 1..=7 {
        let _ = writeln!(c, "#include \"nccl/profiler_v{version}.h\"");
    }
    c += "#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)\n";
    for s in describe::structs() {
        let name = s.c_name;
        let _ = writeln!(c, "_Static_assert(sizeof({name}) == {}, \"size of {name}\");", s.size);
        let _ = writeln!(c, "_Static_assert(_Alignof({name}) == {}, \"alignment of {name}\");", s.align);
        for f in &s.fields {
            let place = format!("{name}.{}", f.name);
            let field = format!("(({name}*)0)->{}", f.name);
            let _ = writeln!(
                c,
                "_Static_assert(offsetof({name}, {}) == {}, \"offset of {place}\");",
                f.name, f.offset
            );
            let _ = writeln!(c, "_Static_assert(sizeof({field}) == {}, \"size of {place}\");", f.size);
            let _ = writeln!(
                c,
                "_Static_assert(SAME_TYPE(__typeof__({field}), {}), \"type of {place}\");",
                f.c_type
            );
        }
    }
    for (name, c_type) in describe::callbacks() {
        let _ = writeln!(c, "_Static_assert(SAME_TYPE({name}, {c_type}), \"type of {name}\");");
    }
    for (name, value) in describe::constants() {
        let _ = writeln!(c, "_Static_assert((long long)({name}) == {value}LL, \"value of {name}\");");
    }
    c
}

/// Compiles [`assertions`] against the headers under `include`. Returns the compiler's messages on
/// failure.
fn check(include: &Path) -> Result<(), String> {
    let out = compile(&assertions(), include, &["-std=gnu11", "-Wall", "-Werror"]);
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

#[test]
fn headers_agree_with_the_rust_types() {
    let result = check(&include());
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

#[test]
fn every_table_and_every_slot_is_checked() {
    let source = assertions();
    for (version, slots) in [(6, 17), (7, 19), (8, 19), (9, 20), (10, 20), (11, 22), (12, 22)] {
        let types = source.matches(&format!("\"type of ncclNet_v{version}_t.")).count();
        assert_eq!(types, slots, "type assertions of the v{version} table, its name included");
    }
    for (table, slots) in [("Gin_v13", 21), ("Rma_v14", 21), ("Rma_v15", 21), ("Rma_v16", 22)] {
        let types = source.matches(&format!("\"type of nccl{table}_t.")).count();
        assert_eq!(types, slots, "type assertions of nccl{table}_t, its name included");
    }
}

#[test]
fn each_header_compiles_alone() {
    let strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"];
    for header in HEADERS {
        let out = compile(&format!("#include \"nccl/{header}\"\n"), &include(), &strict);
        assert!(out.status.success(), "{header}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn headers_compile_together_in_any_order() {
    let strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"];
    let forward: String = HEADERS.iter().map(|h| format!("#include \"nccl/{h}\"\n")).collect();
    let backward: String = HEADERS.iter().rev().map(|h| format!("#include \"nccl/{h}\"\n")).collect();
    for source in [forward.clone() + &forward, backward] {
        let out = compile(&source, &include(), &strict);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// A fault seeded in a header: the file, the text to replace, its replacement and the message
/// expected.
struct Fault {
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    message: &'static str,
}

const FAULTS: [Fault; 15] = [
    Fault {
        what: "a field of a profiled collective too few",
        file: "profiler_v4.h",
        from: "  int root;\n  const char* datatype;\n  uint8_t nChannels;",
        to: "  const char* datatype;\n  uint8_t nChannels;",
        message: "ncclProfilerColl_v4_t",
    },
    Fault {
        what: "an argument of a signal too few",
        file: "rma_v14.h",
        from: "bool isStrongSignal, ",
        to: "",
        message: "type of ncclRma_v14_t.iputSignal",
    },
    Fault {
        what: "a size of a boolean",
        file: "rma_v16.h",
        from: "bool flushesAllPutsOnAnySignal;",
        to: "int flushesAllPutsOnAnySignal;",
        message: "size of ncclRmaProperties_v16_t",
    },
    Fault {
        what: "an argument's type",
        file: "net_v9.h",
        from: "(*isend)(void* sendComm, void* data, size_t size",
        to: "(*isend)(void* sendComm, void* data, int size",
        message: "type of ncclNet_v9_t.isend",
    },
    Fault {
        what: "an array's element type, the same number of arguments",
        file: "net_v8.h",
        from: "int n, void** data, int* sizes, int* tags, void** mhandles, void** request",
        to: "int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request",
        message: "type of ncclNet_v8_t.irecv",
    },
    Fault {
        what: "an argument too few",
        file: "net_v10.h",
        from: "void** mhandles,\n                        void** phandles, void** request",
        to: "void** mhandles,\n                        void** request",
        message: "type of ncclNet_v10_t.irecv",
    },
    Fault {
        what: "the order of two arguments",
        file: "net_v11.h",
        from: "(*listen)(void* ctx, int dev, void* handle",
        to: "(*listen)(int dev, void* ctx, void* handle",
        message: "type of ncclNet_v11_t.listen",
    },
    Fault {
        what: "a structure behind a pointer",
        file: "net_v12.h",
        from: "(*getProperties)(int dev, ncclNetProperties_v12_t* props)",
        to: "(*getProperties)(int dev, ncclNetProperties_v11_t* props)",
        message: "type of ncclNet_v12_t.getProperties",
    },
    Fault {
        what: "a pointer more",
        file: "net_v7.h",
        from: "(*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v7_t** recvDevComm)",
        to: "(*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v7_t* recvDevComm)",
        message: "type of ncclNet_v7_t.accept",
    },
    Fault {
        what: "the order of two slots of one type",
        file: "net_v12.h",
        from: "(*closeSend)(void* sendComm);\n  ncclResult_t (*closeRecv)(void* recvComm);",
        to: "(*closeRecv)(void* recvComm);\n  ncclResult_t (*closeSend)(void* sendComm);",
        message: "offset of ncclNet_v12_t.closeSend",
    },
    Fault {
        what: "a slot removed",
        file: "net_v11.h",
        from: "ncclResult_t (*finalize)(void* ctx);",
        to: "",
        message: "finalize",
    },
    Fault {
        what: "a field removed",
        file: "net_v12.h",
        from: "int16_t planeId;",
        to: "",
        message: "planeId",
    },
    Fault {
        what: "a field's type, its size the same",
        file: "net_v6.h",
        from: "int speed;",
        to: "float speed;",
        message: "type of ncclNetProperties_v6_t.speed",
    },
    Fault {
        what: "the order of two fields of one type",
        file: "net_v9.h",
        from: "size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */\n  size_t maxCollBytes;",
        to: "size_t maxCollBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */\n  size_t maxP2pBytes;",
        message: "offset of ncclNetProperties_v9_t.maxP2pBytes",
    },
    Fault {
        what: "a constant's value",
        file: "types.h",
        from: "NCCL_NET_MAX_DEVS_PER_NIC_V12 8",
        to: "NCCL_NET_MAX_DEVS_PER_NIC_V12 4",
        message: "value of NCCL_NET_MAX_DEVS_PER_NIC_V12",
    },
];

#[test]
fn a_fault_in_a_header_is_found_and_named() {
    for fault in FAULTS {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let copy = dir.path().join("nccl");
        fs::create_dir(&copy).expect("the folder is writable");
        for header in HEADERS {
            let mut text = fs::read_to_string(include().join("nccl").join(header)).expect("a header");
            if header == fault.file {
                assert_eq!(
                    text.matches(fault.from).count(),
                    1,
                    "{}: {:?} in {header}",
                    fault.what,
                    fault.from
                );
                text = text.replace(fault.from, fault.to);
            }
            fs::write(copy.join(header), text).expect("the folder is writable");
        }
        let complaint = check(dir.path()).expect_err(fault.what);
        assert!(complaint.contains(fault.message), "{}: {complaint}", fault.what);
    }
}
