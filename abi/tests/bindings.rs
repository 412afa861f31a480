//! `src/header/` holds what bindgen reads in the headers.
//!
//! The comparison with the crate's types happens when the crate's own tests compile. After a change
//! to a header, `NCCL_NET_ABI_BINDINGS=write cargo test -p nccl-net-abi --test headers bindings` renews the
//! files. bindgen loads libclang at run time; `LIBCLANG_PATH` names its folder if the system does
//! not know it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The crate's structures under the names that the headers give them, for the tables.
const PRELUDE: &str = "use crate::*;
use crate::v6::{Props as ncclNetProperties_v6_t};
use crate::v7::{DeviceHandle as ncclNetDeviceHandle_v7_t, Props as ncclNetProperties_v7_t};
use crate::v8::{DeviceHandle as ncclNetDeviceHandle_v8_t, Props as ncclNetProperties_v8_t};
use crate::v9::{DeviceHandle as ncclNetDeviceHandle_v9_t, Props as ncclNetProperties_v9_t,
    VDeviceProps as ncclNetVDeviceProps_v9_t};
use crate::v10::{CommConfig as ncclNetCommConfig_v10_t, DeviceHandle as ncclNetDeviceHandle_v10_t,
    Props as ncclNetProperties_v10_t, VDeviceProps as ncclNetVDeviceProps_v10_t};
use crate::v11::{CommConfig as ncclNetCommConfig_v11_t, DeviceHandle as ncclNetDeviceHandle_v11_t,
    NetAttr as ncclNetAttr_v11_t, Props as ncclNetProperties_v11_t,
    VDeviceProps as ncclNetVDeviceProps_v11_t};
use crate::v12::{CommConfig as ncclNetCommConfig_v12_t, DeviceHandle as ncclNetDeviceHandle_v12_t,
    NetAttr as ncclNetAttr_v12_t, Props as ncclNetProperties_v12_t,
    VDeviceProps as ncclNetVDeviceProps_v12_t};
use crate::rma_v13::{Config as ncclGinConfig_v13_t};
use crate::rma_v14::{Config as ncclRmaConfig_v14_t};
use crate::rma_v15::{Config as ncclRmaConfig_v15_t};
use crate::rma_v16::{Config as ncclRmaConfig_v16_t, Properties as ncclRmaProperties_v16_t};
use crate::profiler_v1::{Event as ncclProfilerEventDescr_v1_t};
use crate::profiler_v2::{Event as ncclProfilerEventDescr_v2_t};
use crate::profiler_v3::{Event as ncclProfilerEventDescr_v3_t};
use crate::profiler_v4::{Event as ncclProfilerEventDescr_v4_t};
use crate::profiler_v5::{Event as ncclProfilerEventDescr_v5_t};
use crate::profiler_v6::{Event as ncclProfilerEventDescr_v6_t};
use crate::profiler_v7::{Event as ncclProfilerEventDescr_v7_t};
";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns bindgen's settings for all headers together.
fn headers() -> bindgen::Builder {
    let nets = (6..=12).map(|v| format!("#include \"net_v{v}.h\"\n"));
    let all: String = nets
        .chain((13..=16).map(|v| format!("#include \"rma_v{v}.h\"\n")))
        .chain((1..=7).map(|v| format!("#include \"profiler_v{v}.h\"\n")))
        .collect();
    bindgen::Builder::default()
        .header_contents("all.h", &all)
        .clang_arg(format!("-I{}", here("include/nccl").display()))
        .formatter(bindgen::Formatter::Prettyplease)
        .use_core()
        .layout_tests(false)
        .derive_default(false)
        .derive_debug(false)
        .generate_comments(false)
        .generate_cstr(true)
}

/// Compares `file` with what bindgen generates now, or writes the file if the environment requests
/// it.
fn up_to_date(builder: bindgen::Builder, file: &str) {
    let generated = builder.generate().unwrap_or_else(|e| panic!("{file}: the headers do not compile: {e}"));
    let path = here("src/header").join(file);
    if env::var_os("NCCL_NET_ABI_BINDINGS").is_some_and(|value| value == "write") {
        generated.write_to_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(
        committed == generated.to_string(),
        "{} is not what bindgen reads in include/nccl; after a change to a header run \
         NCCL_NET_ABI_BINDINGS=write cargo test -p nccl-net-abi --test headers bindings",
        path.display()
    );
}

#[test]
fn structures_are_up_to_date() {
    let structures = headers().allowlist_type("nccl(Net|Rma|Gin)[A-Z].*|ncclProfiler[A-Z].*");
    up_to_date(structures, "structs.rs");
}

#[test]
fn tables_are_up_to_date() {
    let tables = headers()
        .allowlist_type("nccl(Net|Rma|Gin|Profiler)_v[0-9]+_t")
        .blocklist_type("nccl(Net|Rma|Gin)[A-Z].*|ncclDebug.*|ncclProfiler[A-Z].*|ncclResult_t")
        .raw_line(PRELUDE);
    up_to_date(tables, "tables.rs");
}
