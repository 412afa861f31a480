//! Compiles the variadic logger, which stable Rust cannot define.

fn main() {
    println!("cargo::rerun-if-changed=csrc/logger.c");
    cc::Build::new()
        .file("csrc/logger.c")
        .warnings(true)
        .extra_warnings(true)
        .compile("nccl_net_host_logger");
}
