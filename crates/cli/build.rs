//! Compiles the variadic logger.

fn main() {
    println!("cargo::rerun-if-changed=csrc/logger.c");
    cc::Build::new().file("csrc/logger.c").warnings(true).extra_warnings(true).compile("mpib_logger");
}
