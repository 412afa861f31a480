#![no_main]
// SAFETY: libFuzzer initializes the program before it starts a thread.
libfuzzer_sys::fuzz_target!(init: unsafe { mpib_fuzz_targets::prepare("commands") }, |data: &[u8]| mpib_fuzz_targets::commands(data));
