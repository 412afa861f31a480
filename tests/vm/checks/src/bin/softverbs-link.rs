//! `softverbs-link NAME up|down`: sets the link of a softverbs device, which has no `ip link`, for
//! every process of the fabric.
//!
//! This is a separate program because a program with softverbs linked in exports libibverbs'
//! symbols, and a plugin that it loads would use those.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [device, state @ ("up" | "down")] = words[..] else {
        eprintln!("usage: softverbs-link NAME up|down");
        return ExitCode::from(2);
    };
    match softverbs::set_link(device, state == "up") {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{device}: {e}");
            ExitCode::FAILURE
        }
    }
}
