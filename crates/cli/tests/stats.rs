//! `mpib stats` with real processes: `mpib perf` with the plugin of "make build", and others.

use std::{
    ffi::CString,
    fs,
    io::Read,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    process::{Command, Stdio},
};

use crate::built::artifact;
use crate::transfer::{Ended, fabric_of, perf, said, stats, until, workers};
use serde_json::Value;

/// Returns the document of one process, if it has a page yet.
fn document(pid: u32) -> Option<Value> {
    let output = stats(&[&pid.to_string(), "--json"]);
    if output.status.code() == Some(5) {
        return None;
    }
    assert!(output.status.success(), "{:?}", said(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["processes"].as_array().unwrap().len(), 1);
    Some(document["processes"][0].clone())
}

#[test]
fn a_running_transfer_is_shown_in_numbers_that_fit_together() {
    let mut perf = perf("running");
    let [sender, receiver] = workers(&perf);
    let (first, theirs) = (document(sender).unwrap(), document(receiver).unwrap());
    let connection = &first["connections"][0];
    let words = [("direction", "send"), ("state", "open"), ("islands", "intra"), ("data", "split")];
    for (name, value) in words.into_iter().chain([("traffic", "messages")]) {
        assert_eq!(connection[name], value);
    }
    assert_eq!(
        (&first["pid"], &first["command"], &first["open"]),
        (&sender.into(), &"mpib".into(), &1.into())
    );
    assert_eq!(first["plugin"], env!("CARGO_PKG_VERSION"));
    assert!(connection["peer"].as_str().unwrap().contains(&format!("pid {receiver}")), "{connection}");
    assert_eq!((&connection["share"], &connection["failed_at_ms"]), (&256.into(), &Value::Null));
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
    let rails = connection["rails"].as_array().unwrap();
    assert_eq!((&rails[0]["name"], &rails[1]["name"]), (&"sout:1".into(), &"sup:1".into()));
    let [on_sout, on_sup] = [0, 1].map(|i| number(&rails[i]["bytes"]));
    assert_eq!((on_sout % 49_152, on_sup % 16_384), (0, 0), "each message is cut at a quarter");
    assert!(number(&connection["in_flight"]) <= 8, "{connection}");
    assert_eq!(theirs["connections"][0]["rails"][0]["bytes"], Value::Null, "a receiver does not know");
    for (document, totals) in [(&first, "send"), (&theirs, "recv")] {
        let (sum, one) = (&document["totals"][totals], &document["connections"][0]);
        assert_eq!((&sum["messages"], &sum["bytes"]), (&one["messages"], &one["bytes"]));
        let ports = document["ports"].as_array().unwrap();
        assert_eq!((&ports[0]["name"], &ports[1]["name"]), (&"sout:1".into(), &"sup:1".into()));
        for (port, rail) in ports.iter().zip(one["rails"].as_array().unwrap()) {
            let parts = number(&port["parts_sent"]) + number(&port["parts_received"]);
            assert_eq!((&port["state"], parts), (&"healthy".into(), number(&rail["parts"])));
            assert_eq!(port["bytes_sent"], *rail.get("bytes").filter(|b| !b.is_null()).unwrap_or(&0.into()));
        }
    }
    until("more messages", || {
        let now = document(sender).unwrap();
        let of = |d: &Value| number(&d["connections"][0]["messages"]);
        (of(&now) > of(&first)).then_some(())
    });
    // The list of all processes has both.
    let (code, all) = said(&stats(&["--json"]));
    let document: Value = serde_json::from_str(&all[..=all.rfind('}').unwrap()]).unwrap();
    let pids: Vec<_> = document["processes"].as_array().unwrap().iter().map(|p| number(&p["pid"])).collect();
    assert!(code == 0 && [sender, receiver].iter().all(|pid| pids.contains(&u64::from(*pid))), "{all}");
    let (code, table) = said(&stats(&[&sender.to_string()]));
    assert_eq!(code, 0);
    for part in
        ["(mpib)", "connections: 1 now, 1 so far", "open intra split", "sout:1 SOUT", "sup:1 SUP", "25.0 %"]
    {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    perf.0.kill().unwrap();
    perf.0.wait().unwrap();
    for pid in [sender, receiver] {
        until("the end of a worker", || (said(&stats(&[&pid.to_string()])).0 == 3).then_some(()));
    }
}

//= stats.md: rails that are given up and episodes are shown
#[test]
fn a_rail_that_is_given_up_is_marked() {
    let perf = perf("given-up");
    let [sender, receiver] = workers(&perf);
    let link = |state: &str| {
        let mut command = Command::new(artifact("softverbs/softverbs-ctl"));
        let output = command.args(["--fabric", &fabric_of("given-up"), "link", "sup", state]).output();
        let (code, text) = said(&output.unwrap());
        assert_eq!(code, 0, "{text}");
    };
    let given_up = |pid: u32| {
        let rails = document(pid).unwrap()["connections"][0]["rails"].clone();
        [0, 1].map(|rail| !rails[rail]["given_up_at_ms"].is_null())
    };
    assert_eq!((given_up(sender), given_up(receiver)), ([false; 2], [false; 2]));
    assert!(!said(&stats(&[&sender.to_string()])).1.contains("failover"));
    link("down");
    for pid in [sender, receiver] {
        until("a rail that is given up", || (given_up(pid) == [false, true]).then_some(()));
    }
    for pid in [sender, receiver] {
        let episodes = || document(pid).unwrap()["failover"]["episodes"].as_u64().unwrap();
        until("an episode", || (episodes() == 1).then_some(()));
    }
    let table = said(&stats(&[&sender.to_string()])).1;
    let row = table.lines().find(|line| line.contains("sup:1 SUP")).unwrap();
    assert!(row.contains("given up") && table.contains("  failover: episodes 1, stalls "), "{table}");
    assert_eq!(table.matches("given up").count(), 1, "{table}");
    link("up");
    until("the rail to return", || (given_up(sender) == [false; 2]).then_some(()));
    until("a return", || (document(sender).unwrap()["failover"]["returns"] == 1).then_some(()));
}

#[test]
fn watching_shows_rates_and_ends_with_the_process() {
    let mut perf = perf("watched");
    let [sender, _] = workers(&perf);
    let mut watch = Ended(
        Command::new(env!("CARGO_BIN_EXE_mpib"))
            .args(["stats", &sender.to_string(), "--watch", "0.1", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut out = watch.0.stdout.take().unwrap();
    let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
    let rate = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let rates = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let rates = rates.map(|d| d["processes"][0]["connections"][0]["bytes_per_second"].clone());
        rates.filter_map(|rate| rate.as_f64()).find(|rate| *rate > 0.0)
    };
    while rate(&text).is_none() {
        let n = out.read(&mut bytes).unwrap();
        assert!(n > 0, "it ended without a rate: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&bytes[..n]);
    }
    let first = String::from_utf8_lossy(&text).lines().next().unwrap().to_owned();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(first["processes"][0]["connections"][0]["bytes_per_second"], Value::Null);
    perf.0.kill().unwrap();
    perf.0.wait().unwrap();
    // Reads to the end: a full pipe would stop the process.
    out.read_to_end(&mut text).unwrap();
    let mut error = String::new();
    watch.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(watch.0.wait().unwrap().success(), "{error}");
    assert_eq!(error.trim(), format!("mpib: process {sender} (mpib) has ended"));
}

#[test]
fn what_shows_nothing_says_why() {
    let sleeper = Ended(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = sleeper.0.id().to_string();
    let (code, text) = said(&stats(&[&pid]));
    assert_eq!(code, 5);
    assert!(text.starts_with(&format!("mpib: process {pid}: it has no statistics page")), "{text}");
    drop(sleeper);
    assert_eq!(said(&stats(&[&pid])), (3, format!("mpib: process {pid}: no such process\n")));
    for bad in ["0", "-1", "x", "4294967296"] {
        assert_eq!(said(&stats(&[bad])).0, 2, "{bad}");
    }
    for bad in ["0", "nan", "-1", "1e9"] {
        assert_eq!(said(&stats(&["--watch", bad])).0, 2, "{bad}");
    }
}

#[test]
fn a_process_of_another_user_is_not_permitted() {
    // SAFETY: cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("mpib");
    // By another process: a child that another test forks meanwhile would hold a descriptor that
    // writes the file, and the file could not be run (ETXTBSY).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_mpib")).arg(&program).status().unwrap();
    assert!(copied.success());
    let ours = std::process::id();
    let mut command = Command::new(&program);
    // Root may inspect every process, and becomes nobody; other users may not inspect process 1.
    let pid = if root {
        command.uid(65534).gid(65534);
        ours
    } else {
        1
    };
    let output = command.args(["stats", &pid.to_string()]).current_dir("/").output().unwrap();
    let (code, text) = said(&output);
    assert_eq!((code, text.contains("not permitted")), (4, true), "{text}");
}

/// Returns the value of a metric with just these labels.
fn metric(text: &str, metric: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

#[test]
fn metrics_are_printed_and_written_for_the_textfile_collector() {
    let perf = perf("metrics");
    let [sender, _] = workers(&perf);
    let sent = "mpib_rail_transmit_bytes_total{device=\"sout\",port=\"1\"}";
    let (code, text) = said(&stats(&[&sender.to_string(), "--metrics"]));
    assert_eq!(code, 0, "{text}");
    let first = metric(&text, sent).unwrap();
    assert!(first > 0.0 && !text.contains("peer="), "{text}");
    assert_eq!(metric(&text, "mpib_processes"), Some(1.0));
    let (_, peers) = said(&stats(&[&sender.to_string(), "--metrics", "--per-peer"]));
    let peer = peers.lines().find(|line| line.starts_with("mpib_peer_connections{peer=\"")).unwrap();
    assert!(peer.ends_with("direction=\"send\"} 1") && !peer.contains("pid"), "{peer}");

    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let (code, text) = said(&stats(&[&sender.to_string(), "--textfile", folder]));
    assert_eq!((code, text.as_str()), (0, ""));
    let written = fs::read_to_string(dir.path().join("mpib.prom")).unwrap();
    assert!(metric(&written, sent).unwrap() >= first);
    let (code, text) = said(&stats(&["--textfile", "/does/not/exist"]));
    assert_eq!(code, 1);
    assert!(text.contains("cannot write mpib.prom in /does/not/exist: "), "{text}");
    for bad in [&["--textfile", folder, "--json"][..], &["--metrics", "--json"], &["--schema", "--json"]] {
        assert_eq!(said(&stats(bad)).0, 2, "{bad:?}");
    }
    drop(perf);

    // Watching keeps what ended processes have counted.
    let perf = self::perf("metrics-watched");
    let [sender, _] = workers(&perf);
    let all = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mpib")).arg("stats").args(args).spawn();
        Ended(output.unwrap())
    };
    let read = || fs::read_to_string(dir.path().join("mpib.prom")).unwrap();
    fs::remove_file(dir.path().join("mpib.prom")).unwrap();
    let _watch = all(&["--textfile", folder, "--watch", "0.1"]);
    let pid = sender.to_string();
    let before = until("metrics of the transfer", || {
        let text = dir.path().join("mpib.prom").exists().then(read)?;
        metric(&text, sent).filter(|sent| *sent > 0.0)
    });
    drop(perf);
    until("the end of the process", || (said(&stats(&[&pid])).0 == 3).then_some(()));
    let connections = until("metrics without the process", || {
        let text = read();
        let port = "mpib_rail_connections{device=\"sout\",port=\"1\"}";
        metric(&text, port).filter(|n| *n == 0.0).map(|_| text)
    });
    assert!(metric(&connections, sent).unwrap() >= before, "{connections}");
}

#[test]
fn the_schema_is_printed() {
    let (code, text) = said(&stats(&["--schema"]));
    let schema: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, schema["title"].as_str()), (0, Some("Host")));
}

/// Makes a descriptor of this process with the name of a page.
fn page(size: usize, seals: i32, words: &[u32]) -> OwnedFd {
    let name = CString::new("mpib-stats").unwrap();
    // SAFETY: a C string; flags of the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor, which nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = fs::File::from(fd.try_clone().unwrap());
    file.set_len(size as u64).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    // SAFETY: our descriptor.
    assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&fd), libc::F_ADD_SEALS, seals) }, 0);
    fd
}

#[test]
fn unreadable_pages_are_reported_with_the_reason() {
    let pid = std::process::id().to_string();
    let size = 512 + 64 * 768 + 1024 * 2560 + 16 * 131 * 256;
    for (size, seals, version, why) in [
        (size, libc::F_SEAL_GROW, 5, "sealed against shrinking"),
        (4096, libc::F_SEAL_SHRINK, 5, "4096 bytes, expected 3207680"),
        (size, libc::F_SEAL_SHRINK, 6, "version 6 of the page, expected 5"),
    ] {
        let page = page(size, seals, &[0x4D50_4953, version]);
        let (code, text) = said(&stats(&[&pid]));
        assert_eq!((code, text.contains(why)), (6, true), "{why}: {text}");
        // Without a named process, the page is one line, and does not affect the others.
        let (_, text) = said(&stats(&[]));
        assert!(text.contains(&format!("mpib: process {pid}: its statistics page")), "{text}");
        drop(page);
    }
}
