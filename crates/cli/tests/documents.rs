//! The documents of `--json`: their schemas in the guide, and what is printed on failure. With
//! `WRITE_MANUAL=1` the test writes the schemas.

extern crate mpib_test_env as _;

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;

fn mpib(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mpib")).args(args).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

//= perf.md: the schemas of the documents
#[test]
fn the_guide_has_the_schemas() {
    for command in ["perf", "compare", "doctor", "abi", "stats"] {
        let (code, schema) = mpib(&[command, "--schema"]);
        assert_eq!(code, 0, "{command}");
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
        let path = PathBuf::from(guide).join(format!("{command}.schema.json"));
        if std::env::var_os("WRITE_MANUAL").is_some() {
            fs::write(&path, &schema).unwrap();
        }
        let hint = "WRITE_MANUAL=1 cargo test -p mpib --test documents";
        assert!(fs::read_to_string(&path).unwrap() == schema, "{} differs: {hint}", path.display());
    }
}

//= perf.md: each command prints a document on failure, too
#[test]
fn a_failure_is_a_document() {
    for (args, kind, exit_code) in [
        (&["abi", "--json", "/nonexistent"][..], "load", 3),
        (&["stats", "--json", "4194305"], "tool", 3),
        (&["doctor", "--json", "--plugin", "/nonexistent", "no such host"], "peer", 3),
        (&["compare", "--json", "--plugin", "/nonexistent"], "load", 3),
    ] {
        let (code, text) = mpib(args);
        let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
        assert_eq!((code, &document["ok"]), (exit_code, &Value::Bool(false)), "{args:?}: {document}");
        let error = &document["error"];
        assert_eq!(
            (&error["kind"], &error["exit_code"]),
            (&kind.into(), &exit_code.into()),
            "{args:?}: {error}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty(), "{args:?}: {error}");
    }
}

//= perf.md: mpib --version
#[test]
fn the_version_names_what_must_be_equal_at_both_ends() {
    let (code, text) = mpib(&["--version"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((code, lines.len()), (0, 5), "{text}");
    assert_eq!(lines[0], concat!("mpib ", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit ").unwrap();
    assert!(commit == "unknown" || commit.chars().all(|c| c.is_ascii_hexdigit()), "{text}");
    assert_eq!(lines[2], "tables v6 to v12");
    assert!(
        lines[3].starts_with("between two machines: perf ") && lines[4].starts_with("statistics page "),
        "{text}"
    );
}
