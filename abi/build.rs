//! Reads the C headers, so that the Rust types are compared with what a C compiler sees in them.

use std::env;
use std::path::{Path, PathBuf};

/// This crate's structures under the names that the headers give them. In `tables.rs` they stand for the headers'
/// own, so that a slot's type is equal only if every structure behind a pointer is the right one.
const PRELUDE: &str = "use crate::*;
use crate::v6::{Props as ncclNetProperties_v6_t};
use crate::v7::{DeviceHandle as ncclNetDeviceHandle_v7_t, Props as ncclNetProperties_v7_t};
use crate::v8::{DeviceHandle as ncclNetDeviceHandle_v8_t, Props as ncclNetProperties_v8_t};
use crate::v9::{DeviceHandle as ncclNetDeviceHandle_v9_t, Props as ncclNetProperties_v9_t,
    VDeviceProps as ncclNetVDeviceProps_v9_t};
use crate::v10::{CommConfig as ncclNetCommConfig_v10_t, DeviceHandle as ncclNetDeviceHandle_v10_t,
    Props as ncclNetProperties_v10_t, VDeviceProps as ncclNetVDeviceProps_v10_t};
use crate::v11::{CommConfig as ncclNetCommConfig_v11_t, DeviceHandle as ncclNetDeviceHandle_v11_t,
    NetAttr as ncclNetAttr_v11_t, Props as ncclNetProperties_v11_t, VDeviceProps as ncclNetVDeviceProps_v11_t};
use crate::v12::{CommConfig as ncclNetCommConfig_v12_t, DeviceHandle as ncclNetDeviceHandle_v12_t,
    NetAttr as ncclNetAttr_v12_t, Props as ncclNetProperties_v12_t, VDeviceProps as ncclNetVDeviceProps_v12_t};
";

fn main() {
    let include = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("include/nccl");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed={}", include.display());
    println!("cargo::rerun-if-changed=build.rs");

    let all: String = (6..=12).map(|v| format!("#include \"net_v{v}.h\"\n")).collect();
    let headers = || {
        bindgen::Builder::default()
            .header_contents("all.h", &all)
            .clang_arg(format!("-I{}", include.display()))
            .use_core()
            .layout_tests(false)
            .derive_default(false)
            .derive_debug(false)
            .generate_comments(false)
            .generate_cstr(true)
    };
    let generate = |builder: bindgen::Builder, file: &str| {
        let bindings = builder.generate().unwrap_or_else(|e| {
            panic!(
                "{file}: the headers in {} do not compile: {e} (libclang is taken from LIBCLANG_PATH if that is set)",
                include.display()
            )
        });
        bindings.write_to_file(out.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    };
    generate(headers().allowlist_type("nccl.*").allowlist_var("nccl.*|NCCL_.*"), "structs.rs");
    generate(
        headers()
            .allowlist_type("ncclNet_v[0-9]+_t")
            .blocklist_type("ncclNet[A-Z].*|ncclDebug.*|ncclProfiler.*|ncclResult_t")
            .raw_line(PRELUDE),
        "tables.rs",
    );
}
