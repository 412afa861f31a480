//! `mpib doctor --record` on one simulated host and `--expect` on others.

use std::fs;
use std::path::Path;

use crate::built::artifact;
use crate::doctor_util::{Doctor, TWO, fabric, mpib};
use serde_json::Value;

/// Runs `mpib doctor` with these options; returns exit code, stdout and stderr.
fn run(devices: &str, args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = mpib(&fabric(), devices);
    command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn expect(file: &Path, devices: &str, env: &[(&str, &str)]) -> Doctor {
    let mut command = mpib(&fabric(), devices);
    command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    Doctor::of(command.arg("--expect").arg(file).envs(env.iter().copied()))
}

//= fleet.md: one record serves all equal hosts, and every difference is a failure with both values
#[test]
fn an_equal_host_is_usable_and_another_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("good.json");
    let path = file.to_str().unwrap();
    let set = ("MPIB_SPLIT_MIN", "4096");
    let (code, _, said) = run(TWO, &["--record", path], &[set]);
    assert!(code < 2 && said.contains("good.json"), "{said}");
    // Other names and addresses are no difference.
    let record = fs::read_to_string(&file).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for name in ["sout", "10.9.0.1", "fe80", &format!("\"{}\"", host.trim())] {
        assert!(!record.contains(name), "{name}: {record}");
    }
    let equal = expect(&file, "a:addr=10.7.0.5/16;b:addr=10.8.0.5/16", &[set]);
    equal.usable_with(&[]);
    equal.says("expect", "ok", &["good.json"]);
    // Another MTU, speed and setting.
    let other = expect(&file, "a:addr=10.7.0.5/16,mtu=1024;b:addr=10.8.0.5/16,rate=25Gb", &[]);
    other.unusable();
    for words in [
        "the MTU of a:1 is 1024, expected 4096",
        "the speed of b:1 is 25 Gb/s, expected 100 Gb/s",
        "MPIB_SPLIT_MIN is the default, expected 4096",
    ] {
        other.says("expect", "fail", &[words, "record"]);
    }
    assert_eq!(other.checks("expect", "fail").len(), 3, "{other:#?}");
    // A port is missing.
    let one = expect(&file, "a:addr=10.7.0.5/16", &[set]);
    one.says("expect", "fail", &["the number of ports is 1 (a:1), expected 2"]);
    // For a health check: one line for all.
    let (code, text, _) =
        run("a:addr=10.7.0.5/16,mtu=1024;b:addr=10.8.0.5/16", &["-q", "--expect", path], &[]);
    assert!(
        code == 2 && text.contains("fail  expect     2: the MTU of a:1") && text.contains("[MPIB-132]"),
        "{text}"
    );
}

//= fleet.md: a record of another form is an error, and no file is replaced
#[test]
fn a_record_of_another_form_gives_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("good.json");
    let path = file.to_str().unwrap();
    for (text, why) in [
        ("{", "EOF"),
        ("{\"format\":9}", "format 9"),
        ("{\"format\":1,\"prots\":[]}", "unknown field `prots`"),
    ] {
        fs::write(&file, text).unwrap();
        let (code, out, said) = run(TWO, &["--expect", path], &[]);
        assert_eq!((code, &*out), (3, ""), "{said}");
        assert!(
            said.contains(path) && said.contains(why) && said.contains("mpib doctor --record FILE"),
            "{said}"
        );
    }
    let (code, _, said) = run(TWO, &["--expect", "/nowhere/good.json"], &[]);
    assert!(code == 3 && said.contains("/nowhere/good.json"), "{said}");
    let (code, _, said) = run(TWO, &["--record", path], &[]);
    assert!(code == 3 && said.contains("exists, and is not replaced"), "{said}");
    // A host that is unusable is no example.
    let other = dir.path().join("bad.json");
    let (code, _, said) = run(TWO, &["--record", other.to_str().unwrap()], &[("MPIB_MODE", "7")]);
    assert!(code == 3 && said.contains("nothing was recorded") && !other.exists(), "{said}");
}

//= fleet.md: the schema of the record
#[test]
fn a_record_has_what_the_schema_requires() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("good.json");
    run(TWO, &["--record", file.to_str().unwrap()], &[]);
    let record: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/expect.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(guide).unwrap()).unwrap();
    let all: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(record.as_object().unwrap().keys().collect::<Vec<_>>(), all);
    assert!(
        schema["required"].as_array().unwrap().iter().all(|name| !record[name.as_str().unwrap()].is_null())
    );
}
