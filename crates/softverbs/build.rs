//! Generates the unsupported functions from the list of symbols, which exists only once. Sets the cfg
//! `sanitizer` in a build with one.

use std::{env, fmt::Write, fs, path::PathBuf};

const LIST: &str = "ibverbs.symbols";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LIST}");
    // The compiler names the sanitizer only if it permits unstable options.
    println!("cargo::rustc-check-cfg=cfg(sanitizer, values(\"address\", \"thread\"))");
    for name in env::var("CARGO_CFG_SANITIZE").iter().flat_map(|names| names.split(',')) {
        if matches!(name, "address" | "thread") {
            println!("cargo::rustc-cfg=sanitizer=\"{name}\"");
        }
    }
    let list = fs::read_to_string(LIST).unwrap_or_else(|e| panic!("{LIST}: {e}"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("unsupported_calls.rs"), calls(&list)).expect("OUT_DIR is writable");
}

/// Returns one macro call with an item for each default-version symbol that src/ does not define.
fn calls(list: &str) -> String {
    let mut out = String::from("unsupported! {\n");
    for (number, line) in list.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (symbol, answer) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let report = match words.next() {
            None => "logged",
            Some("silent") => "silent",
            Some(word) => panic!("{LIST}:{}: found {word:?}, expected \"silent\" or nothing", number + 1),
        };
        let Some((name, version)) = symbol.split_once('@') else {
            panic!("{LIST}:{}: found {symbol:?}, expected name@VERSION or name@@VERSION", number + 1);
        };
        match answer {
            "defined" => {}
            "errno" | "null" | "minus1" | "zero" | "void" if version.starts_with('@') => {
                writeln!(out, "    {name} {answer} {report};").expect("writing to a String succeeds");
            }
            "errno" | "null" | "minus1" | "zero" | "void" => {} // build-libibverbs.sh generates a stub
            _ => panic!(
                "{LIST}:{}: found {answer:?} after {symbol}, expected a kind from the head of the file",
                number + 1
            ),
        }
    }
    out += "}\n";
    out
}
