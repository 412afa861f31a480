//! What the manual has of the document and the metrics. With `WRITE_MANUAL=1` the test writes it.

use std::fs;
use std::path::PathBuf;

use mpib_host_view::{Adapter, Connection, Host, Port, Process, Rail, manual, schema};
use mpib_test_env::stands_in_the_guide;
use serde_json::Value;

const HINT: &str = "WRITE_MANUAL=1 cargo test -p mpib-host-view documents";

fn guide(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide")).join(name)
}

fn writes() -> bool {
    std::env::var_os("WRITE_MANUAL").is_some()
}

//= stats.md: the schema of the document
#[test]
fn the_guide_has_the_schema() {
    let path = guide("stats.schema.json");
    if writes() {
        fs::write(&path, schema()).unwrap();
    }
    assert!(fs::read_to_string(path).unwrap() == schema(), "docs/guide/stats.schema.json differs: {HINT}");
}

//= stats.md: the metrics
#[test]
fn the_guide_has_the_metrics() {
    stands_in_the_guide("stats.md", "metrics", &manual());
}

/// Checks that a value has the type of a schema, all required members, and no others.
fn check(value: &Value, schema: &Value, all: &Value, path: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        return check(value, &all["$defs"][name.rsplit('/').next().unwrap()], all, path);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let choice = choices.iter().find(|choice| (choice["type"] == "null") == value.is_null());
        return check(value, choice.unwrap(), all, path);
    }
    if let Some(words) = schema["oneOf"].as_array() {
        return assert!(words.iter().any(|word| word["const"] == *value), "{path}: {value}");
    }
    let is = |name: &str| {
        schema["type"] == name || schema["type"].as_array().is_some_and(|t| t.contains(&name.into()))
    };
    match value {
        Value::Object(members) => {
            assert!(is("object"), "{path}");
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(members.contains_key(name.as_str().unwrap()), "{path}: {name} is missing");
            }
            for (name, member) in members {
                let of_member = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
                assert!(of_member.is_object(), "{path}: {name} is in no schema");
                check(member, of_member, all, &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => {
            assert!(is("array"), "{path}");
            items.iter().for_each(|item| check(item, &schema["items"], all, path));
        }
        Value::Number(n) => assert!(is("number") || is("integer") && !n.is_f64(), "{path}: {n}"),
        Value::String(_) => assert!(is("string"), "{path}"),
        Value::Null => assert!(is("null"), "{path}"),
        Value::Bool(_) => assert!(is("boolean"), "{path}"),
    }
}

//= stats.md: the schema of the document
#[test]
fn documents_fit_the_schema() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let full = Host {
        ports: vec![Port { adapter: Some(Adapter::default()), cause: Some("x".into()), ..Port::default() }],
        processes: vec![Process {
            ports: vec![Port::default()],
            connections: vec![Connection { rails: vec![Rail::default()], ..Connection::default() }],
            ..Process::default()
        }],
        unreadable: vec!["x".into()],
        interval_seconds: Some(1.5),
        ..Host::default()
    };
    for host in [Host::default(), full] {
        check(&serde_json::to_value(host).unwrap(), &schema, &schema, "host");
    }
}
