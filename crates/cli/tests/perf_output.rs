//! What `mpib perf` prints, on a foreign plugin.

mod fake;

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use fake::{MPIB, QUICK, fake, json, listener, perf, text};

#[test]
fn sizes_and_times_are_read_as_they_are_printed() {
    let args = ["--sizes", "1kB,1.5K,4KiB", "--time", "20ms", "--json"];
    let report = json(&perf(&args).output().unwrap());
    let sizes: Vec<_> = report["plan"]["sizes"].as_array().unwrap().iter().map(|s| s.as_u64()).collect();
    assert_eq!(sizes, [Some(1000), Some(1536), Some(4096)]);
    assert_eq!((&report["plan"]["time"], &report["plan"]["timeout"]), (&0.02.into(), &30.0.into()));
    for (args, words) in [
        (["--sizes", "1Mib/s"], "is not a size; expected 4096, 64K, 1.5M, 8MiB or 1GB"),
        (["--time", "soon"], "is not a time; expected seconds (0.5) or numbers with units"),
        (["--memory", "0"], "expected memory for at least one message"),
        (["--pin", "one"], "expected numbers and ranges (0-3,8), or device"),
    ] {
        let output = perf(&args).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{words:?} is not in {said}");
    }
}

//= perf.md: the columns of the table
#[test]
fn rates_fit_together() {
    let both = json(&perf(&["--bidirectional", "--json"]).args(QUICK).output().unwrap());
    let one = json(&perf(&["--ping-pong", "--json"]).args(QUICK).output().unwrap());
    for (report, messages, directions, depth) in [(both, 200, 2.0, 8), (one, 200, 1.0, 1)] {
        let result = &report["tables"][0]["results"][0];
        let number = |name: &str| result[name].as_f64().unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() <= b * 1e-9, "{a} {b} {result}");
        assert_eq!((&result["messages"], &result["depth"]), (&messages.into(), &depth.into()));
        near(number("gigabytes_per_second"), number("bytes") / number("seconds") / 1e9);
        near(number("bus_gigabytes_per_second"), number("gigabytes_per_second") / directions);
        near(number("messages_per_second"), number("messages") / number("seconds"));
    }
}

//= perf.md: --csv
#[test]
fn values_are_separated_by_commas() {
    let output = perf(&["--csv", "--abi", "all", "--sizes", "8,4K", "--iterations", "20"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 5, "{table}");
    let column = |name: &str| lines[0].iter().position(|column| *column == name).expect(name);
    for (line, (abi, size)) in lines[1..].iter().zip([("11", "8"), ("11", "4096"), ("8", "8"), ("8", "4096")])
    {
        assert_eq!((line[column("abi")], line[column("size")]), (abi, size));
        assert_eq!((line[column("device")], line[column("messages")]), ("fake0", "20"));
        let number = |name: &str| line[column(name)].parse::<f64>().unwrap();
        assert!((number("gigabits_per_second") - 8.0 * number("gigabytes_per_second")).abs() < 1e-9);
    }
}

/// Each end names its own table: the versions must be equal.
//= perf.md: a table that is not exported, between two machines
#[test]
fn a_hidden_table_is_measured_between_two_machines() {
    let hidden = ["--table", "fakeTransport", "--abi", "v11"];
    let args = [&["--listen", "127.0.0.1:0", "--merge", "0,1"][..], &hidden].concat();
    let (there, _said, address) = listener(&args, "");
    let here = perf(&["--connect", &address, "--json"]).args(hidden).args(QUICK).output().unwrap();
    let report = json(&here);
    assert_eq!(report["ok"], true, "{}", text(&here.stderr));
    assert_eq!(
        (&report["tables"][0]["net"], &report["tables"][0]["device"]["name"]),
        (&"hidden".into(), &"fake0".into())
    );
    let there = there.wait_with_output().unwrap();
    assert!(there.status.success());
    assert!(
        text(&there.stdout).starts_with("v11: hidden, device \"fake0+fake1\""),
        "{}",
        text(&there.stdout)
    );
}

#[test]
fn each_failure_is_reported_once() {
    let output = perf(QUICK).env("FAKE_FAULT", "init").output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(said.matches("no device of 3 is 99.5% right").count(), 1, "{said}");
    assert!(said.lines().all(|line| line.starts_with("mpib: ")), "{said}");
    let output = perf(QUICK).env("FAKE_FAULT", "error").output().unwrap();
    let said = text(&output.stderr);
    assert!(said.lines().all(|line| line.starts_with("mpib: ") || line.contains(": plugin ")), "{said}");
    assert_eq!(said.matches("rail sup is down").count(), 1, "{said}");
}

#[test]
fn a_closed_pipe_ends_the_run_in_silence() {
    let mut child = perf(&["--time", "50ms", "--sizes", "8..1M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("v11: fake"), "{line}");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

#[test]
fn workers_run_where_they_are_pinned() {
    let allowed = |list: &str| {
        let output = perf(&["--pin", list, "--json"]).args(QUICK).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(allowed("0"), (Some(0), String::new()));
    let (code, said) = allowed("1023");
    assert!(code == Some(1) && said.contains("cannot use the processors [1023]"), "{said}");
    let (code, said) = allowed("0:device");
    assert!(
        code == Some(2) && said.contains("receiver: --pin device: device \"fake0\" has no PCI address"),
        "{said}"
    );
}

/// The two listeners have the same default port.
#[test]
fn another_command_at_the_port_is_named_at_both_ends() {
    let (mut there, mut said, address) = listener(&["--listen", "127.0.0.1:0"], "");
    let here = Command::new(MPIB).args(["doctor", "--plugin"]).arg(fake()).arg(&address).output().unwrap();
    let here = text(&here.stderr);
    let expected = "runs \"mpib doctor\", expected \"mpib perf\"; run the same command at both ends";
    assert!(here.contains(&format!("the other machine refused: the other machine {expected}")), "{here}");
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains(expected) && line.contains("still listening"), "{line}");
    there.kill().unwrap();
    there.wait().unwrap();
}
