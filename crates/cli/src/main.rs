//! The program `mpib`.

fn main() -> std::process::ExitCode {
    mpib::main()
}
