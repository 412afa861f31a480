//! Link arguments of the plugin file. Tests and benches of this package have them too, without harm.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for arg in [
        "-Wl,-soname,libnccl-net-mpib.so",
        // NCCL unloads a plugin and loads it again, in some releases without init and with pointers
        // that it kept: the file stays mapped, and finds its live state.
        "-Wl,-z,nodelete",
        // A missing symbol is an error of dlopen, not of a call hours later.
        "-Wl,-z,now",
        "-Wl,-z,relro",
    ] {
        println!("cargo::rustc-link-arg={arg}");
    }
    // Tests and benches alone have the feature. The plugin looks up the functions of libibverbs, and those
    // of softverbs are linked into them.
    if std::env::var_os("CARGO_FEATURE_SIMULATION").is_some() {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=ibv_*,--export-dynamic-symbol=_ibv_*");
    }
}
