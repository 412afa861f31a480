//! Sets the cfg `loom`: some suites compile files of the plugin with loom's atomics, and such a file
//! leaves out its own tests then. Exports the functions of softverbs, which is linked in: the plugin
//! looks up those of libibverbs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=ibv_*,--export-dynamic-symbol=_ibv_*");
}
