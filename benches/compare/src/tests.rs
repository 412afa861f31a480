//! `mpib-bench compare` between this plugin and a copy of it, and `mpib-bench storm`, on softverbs, with
//! the files of "make build".

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

extern crate mpib_test_env as _;

/// Returns a file of "make build".
fn artifact(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build").join(name);
    let path = path.canonicalize().unwrap_or(path);
    assert!(path.exists(), "{}: not there; run \"make build\" first (make test does)", path.display());
    path
}

fn compare(args: &[&str]) -> Command {
    let mut command = Command::new(artifact("mpib-bench"));
    command.args(["compare", "--ours"]).arg(artifact("libnccl-net-mpib.so"));
    command.arg("--softverbs").arg(artifact("softverbs")).args(args).stdin(Stdio::null());
    // A setting of the shell must not reach the plugins.
    command
        .env("MPIB_SOUT_QP", "nonsense")
        .env("NCCL_IB_TIMEOUT", "nonsense")
        .env("SOFTVERBS_COPY", "nonsense");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_copies_have_every_figure_and_its_ratio() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("libnccl-net-copy.so");
    fs::copy(artifact("libnccl-net-mpib.so"), &copy).unwrap();
    let spec = format!("{},name=copy <2>", copy.display());
    let (svg, markdown, file) =
        (dir.path().join("a.svg"), dir.path().join("a.md"), dir.path().join("a.json"));
    let mut command = compare(&[
        "--only",
        "2+1",
        "--rounds",
        "1",
        "--time",
        "0.01",
        "--connections",
        "3",
        "--json",
        "--goals",
        "--plugin",
        &spec,
    ]);
    command.arg("--svg").arg(&svg).arg("--markdown").arg(&markdown).arg("--json-file").arg(&file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report, serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap());
    assert_eq!(report["contestants"][1]["name"], "copy <2>");
    let rows = report["scenarios"][0]["rows"].as_array().unwrap();
    let metrics: Vec<_> = rows.iter().map(|r| r["metric"].as_str().unwrap()).collect();
    for metric in [
        "half round trip of 8 B, median",
        "message of 8 B beside 8 of 512 KiB, median",
        "message of 8 B beside 8 of 512 KiB, p99",
        "bandwidth, 256 MiB",
        "of the rails' sum, 16 MiB",
        "connections, one after the other",
        "connections, 64 at a time",
    ] {
        assert!(metrics.contains(&metric), "{metric:?} is not in {metrics:?}");
    }
    for row in rows {
        assert_eq!(row["values"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["values"][0].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ratios"].as_array().unwrap().len(), 1, "{row}");
    }
    let markdown = fs::read_to_string(&markdown).unwrap();
    assert!(
        markdown
            .contains("| 2+1 GB/s | mpib | copy <2> | mpib : copy <2> | goal |\n|---|---:|---:|---:|---|\n"),
        "{markdown}"
    );
    let svg = fs::read_to_string(&svg).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("2+1 GB/s : copy &lt;2&gt;"),
        "{svg}"
    );
    assert_eq!(svg.matches("ratio ").count(), rows.len());
}

#[test]
fn work_is_counted_where_rails_are_equal() {
    let copy = artifact("libnccl-net-mpib.so");
    let args =
        ["--only", "equal", "--rounds", "1", "--time", "0.01", "--connections", "1", "--no-instructions"];
    let output = compare(&args).arg("--json").arg("--plugin").arg(&copy).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["scenarios"][0]["rows"].as_array().unwrap();
    let row = |metric: &str| {
        rows.iter().find(|r| r["metric"] == metric).unwrap_or_else(|| panic!("{metric}: {rows:?}"))
    };
    // A CTS write and a write with immediate; 64 KiB use both rails, each with its own doorbell.
    for (metric, count) in [("doorbells for 8 B", 2.0), ("doorbells for 64 KiB", 3.0)] {
        let row = row(metric);
        // On a busy machine the watchdog may have pinged a rail: a doorbell more in thousands.
        let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 0.05;
        assert!(near(&row["values"][0], count) && near(&row["values"][1], count), "{metric}: {row}");
        assert!(near(&row["ratios"][0], 1.0), "{metric}: {row}");
    }
}

#[test]
fn processes_connect_all_to_all() {
    let mut command = Command::new(artifact("mpib-bench"));
    command.args(["storm", "--processes", "3", "--rounds", "2"]);
    let output = command.env("NCCL_IB_TIMEOUT", "nonsense").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((rows("quiet"), rows("a busy loop on each core")), (2, 2), "{text}");
    assert!(text.contains("3 processes on ") && text.contains(" 6 connections at once"), "{text}");
}

/// On verbs that complete at once each figure is a time of the plugin alone.
#[test]
fn small_messages_are_timed_without_softverbs() {
    let copy = artifact("libnccl-net-mpib.so");
    let args = ["--only", "null", "--rounds", "2", "--no-instructions"];
    let output = compare(&args).arg("--json").arg("--plugin").arg(&copy).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let scenarios = report["scenarios"].as_array().unwrap();
    let names: Vec<_> = scenarios.iter().map(|s| s["scenario"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["null verbs, one rail", "null verbs, two rails"]);
    for scenario in scenarios {
        let rows = scenario["rows"].as_array().unwrap();
        let metrics: Vec<_> = rows.iter().map(|r| r["metric"].as_str().unwrap()).collect();
        let expected = [
            "message of 8 B, 8 in flight",
            "message of 8 B, one at a time",
            "message of 8 B, by turns on 32 connections",
            "message of 8 B, by turns on 128 connections",
            "message of 8 B, by turns on 256 connections",
            "message of 8 B, by turns on 1,000 connections",
            "test that finds nothing",
            "isend before its receive",
            "regMr and deregMr of registered memory",
        ];
        assert_eq!(metrics, expected);
        for row in rows {
            assert_eq!((row["unit"].as_str(), row["values"].as_array().unwrap().len()), (Some("ns"), 2));
            assert!(row["values"][0].as_f64().unwrap() > 0.0 && row["reached"].is_boolean(), "{row}");
        }
    }
}

#[test]
fn one_sided_traffic_has_every_figure_on_one_rail_and_on_two() {
    let copy = artifact("libnccl-net-mpib.so");
    let spec = format!("{},abi=v15,name=copy", copy.display());
    let output = compare(&["--one-sided", "--rounds", "1", "--time", "0.01", "--json", "--plugin", &spec])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let columns = report["columns"].as_array().unwrap();
    let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mpib, one rail", "copy, one rail", "mpib, two rails"]);
    let metrics = report["metrics"].as_array().unwrap().len();
    for column in columns {
        let rounds = column["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), metrics);
        assert!(rounds.iter().all(|round| round[0].as_f64().unwrap() > 0.0), "{column}");
    }
    let output =
        compare(&["--one-sided", "--plugin", &format!("{},abi=v12", copy.display())]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("exports no table v12"), "{}", said(&output));
}

#[test]
fn a_plugin_that_fails_is_named_with_its_scenario() {
    // This plugin's two rails are one device already: there is nothing to merge.
    let ours = artifact("libnccl-net-mpib.so");
    let spec = format!("{},name=merging,merge", ours.display());
    let output =
        compare(&["--only", "equal", "--rounds", "1", "--time", "0.01", "--plugin", &spec]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("merging, equal rails, 2+2 GB/s: a run exited with status 3"), "{said}");
    assert!(said.contains("--merge 1: the plugin has 1, numbered from 0"), "{said}");
}

#[test]
fn what_is_asked_for_wrongly_is_said_before_anything_runs() {
    let fails = |args: &[&str], code, words: &str| {
        let output = compare(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{words:?} is not in {}", said(&output));
    };
    let ours = artifact("libnccl-net-mpib.so");
    let ours = ours.display().to_string();
    fails(&[], 2, "--plugin <SPEC>");
    fails(&["--plugin", "/nonexistent.so"], 3, "/nonexistent.so: No such file");
    fails(&["--plugin", &format!("{ours},table=absent,abi=v12")], 3, "no data symbol absent");
    fails(&["--plugin", &ours, "--only", "three"], 2, "no scenario begins with this");
    let output = Command::new(artifact("mpib-bench"))
        .args(["compare", "--ours", &ours, "--plugin", &ours, "--softverbs", "/nonexistent"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nonexistent: no libibverbs.so.1 in this folder"), "{}", said(&output));
}
