//! `mpib perf --put`, `--signal` and `--get` on a foreign plugin: a small one in C over TCP
//! (`fake-plugin/rma.c`), which can have one fault and refuses what NCCL never calls.

use crate::fake::{QUICK, fake, fake_cuda, fake_rma, json, listening, perf, perf_of, text};

/// Asserts that a run of the fake plugin with this fault ends with this exit code and these words.
#[track_caller]
fn fails(fault: &str, args: &[&str], code: i32, words: &[&str]) {
    let output = perf_of(fake_rma(), args).env("FAKE_FAULT", fault).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{fault}: {said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{fault}: {word:?} is not in: {said}"));
}

//= perf.md: one-sided traffic, in each direction, with every byte compared
#[test]
fn puts_signals_and_gets_are_counted_and_checked() {
    const SIZES: &[&str] = &["--sizes", "1,8,4095,1M"];
    for (args, operation, sizes, each_way) in [
        (&["--put"][..], "put", &[1, 8, 4095, 1 << 20][..], 1),
        (&["--put", "--ping-pong"], "put", &[1, 8, 4095, 1 << 20], 2),
        (&["--put", "--bidirectional"], "put", &[1, 8, 4095, 1 << 20], 2),
        (&["--get"], "get", &[1, 8, 4095, 1 << 20], 1),
        (&["--get", "--bidirectional", "--depth", "32"], "get", &[1, 8, 4095, 1 << 20], 2),
        (&["--signal"], "signal", &[0], 1),
        (&["--signal", "--ping-pong"], "signal", &[0], 2),
    ] {
        let more = if operation == "signal" { &[] } else { SIZES };
        let args = [args, more, &["--iterations", "40", "--json"]].concat();
        let output = perf_of(fake_rma(), &args).output().unwrap();
        let report = json(&output);
        assert_eq!(report["ok"], true, "{args:?}: {}", text(&output.stderr));
        assert_eq!(report["plan"]["operation"], operation);
        let table = &report["tables"][0];
        assert_eq!(
            (&table["abi"], &table["net"], &table["device"]["name"]),
            (&16.into(), &"fake".into(), &"fake0".into())
        );
        let results = table["results"].as_array().unwrap();
        let found: Vec<_> = results.iter().map(|result| result["size"].as_u64().unwrap()).collect();
        assert_eq!(found, sizes, "{args:?}");
        for result in results {
            assert_eq!((&result["messages"], &result["checked"]), (&(40 * each_way).into(), &true.into()));
            assert!(result["time_ns"]["median"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn a_put_of_no_bytes_is_a_signal() {
    let output = perf_of(fake_rma(), &["--put", "--sizes", "0", "--iterations", "40"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn the_table_names_the_operation() {
    for (args, title) in [
        (&["--put"][..], "one direction, puts with signals, every byte checked"),
        (&["--put", "--ping-pong"], "there and back (half round trips), puts with signals"),
        (&["--get", "--bidirectional"], "both directions, gets, every byte checked"),
    ] {
        let output = perf_of(fake_rma(), &[args, QUICK].concat()).output().unwrap();
        let table = text(&output.stdout);
        assert!(
            table.starts_with("v16: fake, device \"fake0\" of 10 Gb/s; ") && table.contains(title),
            "{table}"
        );
    }
    let args = ["--put", "--csv", "--sizes", "8,4K", "--iterations", "20"];
    let lines = text(&perf_of(fake_rma(), &args).output().unwrap().stdout);
    let begin: Vec<_> = lines.lines().map(|line| line.split(',').take(4).collect::<Vec<_>>()).collect();
    assert_eq!(begin[0], ["abi", "net", "device", "size"]);
    assert_eq!(begin[1..], [["16", "fake", "fake0", "8"], ["16", "fake", "fake0", "4096"]]);
}

#[test]
fn wrong_data_is_named() {
    let put = [&["--put"], QUICK].concat();
    fails("corrupt", &put, 5, &["receiver: message 20 of 1000 B: byte 500 is 0x", "(1 wrong in all)"]);
    fails("truncate", &put, 5, &["message 20 of 1000 B: byte 999", "nothing was written to it"]);
    let get = [&["--get"], QUICK].concat();
    fails(
        "shift",
        &get,
        5,
        &["first end: message 20 of 1000 B: byte 0", "this message's data from offset 8"],
    );
    fails("corrupt", &[&["--put", "--ping-pong"], QUICK].concat(), 5, &["message 20 of 1000 B: byte 500"]);
}

#[test]
fn a_lost_signal_is_a_timeout_that_says_how_many_came() {
    // The warm-up has 16 requests.
    let args = ["--signal", "--iterations", "100", "--timeout", "3"];
    fails("lost-signal", &args, 6, &["receiver: nothing completed for 3.", "4 of 100 signals have arrived"]);
    let args = ["--put", "--ping-pong", "--sizes", "8", "--iterations", "100", "--timeout", "3"];
    fails("lost-signal", &args, 6, &["in a round trip, "]);
}

#[test]
fn a_call_that_fails_is_named() {
    let put = [&["--put"], QUICK].concat();
    fails(
        "error",
        &put,
        4,
        &["sender: the plugin's iputSignal returned 2 (ncclSystemError)", "rail sup is down"],
    );
    fails("null", &put, 4, &["the plugin's iputSignal returned ncclSuccess but no request (NULL)"]);
    fails("connect", &put, 4, &["the plugin's connect returned 6 (ncclRemoteError)", "no way to rank"]);
    fails("error", &[&["--get"], QUICK].concat(), 4, &["the plugin's iget returned 2 (ncclSystemError)"]);
}

//= perf.md: what one-sided traffic does not have
#[test]
fn options_of_messages_are_refused() {
    for (args, word) in [
        (&["--put", "--receives", "2"][..], "'--receives <N>'"),
        (&["--get", "--optional"], "'--optional'"),
        (&["--signal", "--connections", "2"], "'--connections <N>'"),
        (&["--put", "--merge", "0,1"], "'--merge <N,N>'"),
        (&["--put", "--fault", "sup:link=down"], "'--fault <DEVICE:FAULT>'"),
        (&["--put", "--get"], "'--put'"),
        (&["--put", "--signal"], "'--put'"),
        (&["--get", "--ping-pong"], "'--ping-pong'"),
        (&["--signal", "--sizes", "8"], "'--sizes <SIZES>'"),
    ] {
        let output = perf_of(fake_rma(), args).output().unwrap();
        let said = text(&output.stderr);
        let expected =
            output.status.code() == Some(2) && said.contains("cannot be used with") && said.contains(word);
        assert!(expected, "{args:?}: {said}");
    }
}

#[test]
fn tables_are_those_for_one_sided_traffic() {
    let hidden = [&["--put", "--table", "fakeProxy", "--abi", "v16", "--json"], QUICK].concat();
    let report = json(&perf_of(fake_rma(), &hidden).output().unwrap());
    assert_eq!((&report["ok"], &report["tables"][0]["net"]), (&true.into(), &"hidden".into()));
    let words = "fakeProxy has 176 bytes, a table of v15 has 168; a table of v16 has this size";
    fails("", &["--put", "--table", "fakeProxy", "--abi", "v15"], 3, &[words]);
    fails("", &["--put", "--abi", "v12"], 3, &["exports no table v12; found v16"]);
    fails("", &["--put", "--abi", "v17"], 2, &["or v13 to v16 with --put, --signal or --get"]);
    fails("", &[], 3, &["exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12; found ncclRmaPlugin_v16"]);
    let said = text(&perf(&["--put"]).output().unwrap().stderr);
    assert!(
        said.contains("exports none of ncclRmaPlugin_v13 to ncclRmaPlugin_v16; found ncclNetPlugin"),
        "{said}"
    );
}

//= perf.md: one-sided traffic between two machines
#[test]
fn both_machines_say_that_traffic_is_one_sided() {
    let (there, _said, address) =
        listening(&mut perf_of(fake_rma(), &["--put", "--listen", "127.0.0.1:0", "--json"]));
    let args = [&["--get", "--connect", &address, "--json"], QUICK].concat();
    let here = json(&perf_of(fake_rma(), &args).output().unwrap());
    let there = json(&there.wait_with_output().unwrap());
    assert_eq!((&here["ok"], &here["plan"]["operation"]), (&true.into(), &"get".into()));
    assert_eq!(here["tables"][0]["results"], there["tables"][0]["results"]);

    let (mut there, _said, address) = listening(&mut perf_of(fake(), &["--listen", "127.0.0.1:0"]));
    let output = perf_of(fake_rma(), &["--put", "--connect", &address]).output().unwrap();
    let said = text(&output.stderr);
    let words =
        "this end has tables for messages, the other one moves puts; give --put, --signal or --get to both";
    assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    there.kill().unwrap();
    there.wait().unwrap();
}

/// Memory of a stand-in for a GPU, which is not the memory that is filled and checked. The fake
/// plugin refuses a flush of memory of the host.
#[test]
fn windows_in_memory_of_a_gpu_are_checked_like_others() {
    let run = |args: &[&str], fault: &str| {
        let mut command = perf_of(fake_rma(), args);
        command.args(["--memory", "cuda"]).args(QUICK);
        command.env("LD_LIBRARY_PATH", fake_cuda()).env("FAKE_GPU", "1").env("FAKE_FAULT", fault);
        command.output().unwrap()
    };
    for args in [&["--put"][..], &["--put", "--ping-pong"], &["--get", "--bidirectional"]] {
        let output = run(args, "");
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains(", memory of GPU 0; "), "{}", text(&output.stdout));
    }
    for (args, fault) in [(&["--put"], "corrupt"), (&["--get"], "shift")] {
        let output = run(args, fault);
        assert_eq!(output.status.code(), Some(5), "{fault}: {}", text(&output.stderr));
    }
}
