//! What `mpib perf` prints, on a foreign plugin.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use crate::fake::{MPIB, QUICK, fake, fake_cuda, json, listener, perf, text};

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

/// Memory of a stand-in for a GPU, which is not the memory that is filled and checked.
//= perf.md: --memory cuda
#[test]
fn messages_in_memory_of_a_gpu_are_checked_like_others() {
    let run = |args: &[&str], fault: &str| {
        let mut command = perf(args);
        command.args(["--memory", "cuda"]).args(QUICK);
        command.env("LD_LIBRARY_PATH", fake_cuda()).env("FAKE_GPU", "1").env("FAKE_FAULT", fault);
        command.output().unwrap()
    };
    for args in [&["--receives", "3", "--bidirectional", "--json"][..], &["--ping-pong", "--json"]] {
        let output = run(args, "");
        let report = json(&output);
        assert_eq!(report["ok"], true, "{}", text(&output.stderr));
        assert_eq!(
            (&report["tables"][0]["gpu"], &report["tables"][0]["results"][0]["checked"]),
            (&0.into(), &true.into())
        );
    }
    assert!(
        text(&run(&[], "").stdout).contains("device \"fake0\" of 10 Gb/s, memory of GPU 0; one direction")
    );
    for (fault, words) in [
        ("corrupt", "message 20 of 1000 B: byte 500 is 0x"),
        ("truncate", "nothing was written to it"),
        ("overrun", "the plugin wrote 0 bytes behind the message's end"),
    ] {
        let output = run(&[], fault);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(5) && said.contains(words), "{fault}: {said}");
    }
    let output = run(&["--optional"], "");
    assert!(text(&output.stderr).contains("does not support optional receives into memory of GPUs"));
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let fails = |memory: &str, env: &[(&str, &str)], words: &[&str]| {
        let mut command = perf(&["--memory", memory]);
        let output = command.args(QUICK).envs(env.iter().copied()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
    };
    let cuda = fake_cuda().to_str().unwrap();
    let with = [("LD_LIBRARY_PATH", cuda), ("FAKE_GPU", "1")];
    fails("cuda", &[with[0], with[1], ("FAKE_NO_GPU", "1")], &["cuInit returned 100 (CUDA_ERROR_NO_DEVICE)"]);
    fails("cuda:1", &with, &["cuDeviceGet of GPU 1 returned 101 (CUDA_ERROR_INVALID_DEVICE)"]);
    fails("cuda", &with[..1], &["does not support memory of GPUs (ptrSupport 0x1)"]);
    // A file that is no library: this host may have a driver.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libcuda.so.1"), "no library").unwrap();
    let words = ["--memory cuda: cannot use libcuda.so.1: ", "NVIDIA's driver has it"];
    fails("cuda", &[("LD_LIBRARY_PATH", dir.path().to_str().unwrap())], &words);
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = perf(&["--listen", &format!(":{port}")]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("mpib: cannot listen on every address, port {port}: ")), "{said}");
    assert!(said.ends_with("; to use another port: --listen :PORT\n"), "{said}");
}
