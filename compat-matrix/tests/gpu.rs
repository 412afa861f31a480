//! Collectives on GPUs, where there is none.

use std::process::Command;

#[test]
fn without_a_gpu_the_exit_code_is_that_of_a_check_that_is_left_out() {
    let program = env!("CARGO_BIN_EXE_compat-matrix");
    // SAFETY: the driver's library, if there is one, whose constructors every CUDA program runs.
    if unsafe { libloading::Library::new("libcuda.so.1") }.is_ok() {
        println!("skipped: this machine has NVIDIA's driver");
        return;
    }
    let output = Command::new(program).args(["collectives", "2.28.9", "--gpu"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert!(text.contains("no GPU: libcuda.so.1: cannot open shared object file"), "{text}");
}
