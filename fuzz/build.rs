//! Exports the functions of softverbs, which is linked in: the plugin looks up those of libibverbs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ibv_*,--export-dynamic-symbol=_ibv_*");
}
