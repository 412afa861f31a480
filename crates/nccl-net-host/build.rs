//! Compiles the variadic logger, which stable Rust cannot define.

fn main() {
    println!("cargo::rerun-if-changed=csrc/logger.c");
    cc::Build::new()
        .file("csrc/logger.c")
        .warnings(true)
        .extra_warnings(true)
        // Its debug information would have the path of this folder, which remapping of rustc's paths
        // does not reach: programs would depend on where they were built.
        .debug(false)
        .compile("nccl_net_host_logger");
}
