//! Sets the cfg `loom`: some suites compile files of the plugin with loom's atomics, and such a file
//! leaves out its own tests then.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
