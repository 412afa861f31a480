//! Debian's perftest: RDMA writes, reads, atomics and sends, many in flight.

use crate::support::pair::{HOSTS, Pair};

/// Both ends, on two hosts with unlimited rate.
fn pair(name: &'static str, args: &str) -> Pair {
    Pair::new(name, &format!("-F -d soft0 -x 3 {args}"))
}

/// Both ends, with a rate or latency.
fn shaped(name: &'static str, args: &str, shape: &str) -> Pair {
    let [server, client] = HOSTS.map(|host| format!("{host},{shape}"));
    pair(name, args).env_of(0, "SOFTVERBS_DEVICES", &server).env_of(1, "SOFTVERBS_DEVICES", &client)
}

/// Runs a program. Returns the table of the client: a row of numbers for each message size.
#[track_caller]
fn table(name: &'static str, args: &str) -> Vec<Vec<f64>> {
    rows(name, args, &pair(name, args))
}

#[track_caller]
fn rows(name: &'static str, args: &str, pair: &Pair) -> Vec<Vec<f64>> {
    let [server, client] = pair.outputs();
    for text in [&server, &client] {
        // The client of ib_send_bw does not destroy a completion queue, which is logged. Nothing
        // else is.
        let mut logged = text.split("softverbs[").skip(1).filter(|line| !line.contains("ibv_close_device("));
        assert_eq!(logged.next(), None, "{name} {args} logged a fault:\n{text}");
    }
    // A row is written without its line end: a log line may follow on the same line.
    let words = |line: &'_ str| line.split("softverbs[").next().unwrap_or_default().to_owned();
    let number = |word: &str| word.parse::<f64>().ok();
    let rows: Vec<Vec<f64>> = client
        .lines()
        .filter_map(|line| words(line).split_whitespace().map(number).collect::<Option<Vec<f64>>>())
        .filter(|row| row.len() >= 4)
        .collect();
    assert!(!rows.is_empty(), "{name} {args}: no table in\n{client}");
    rows
}

/// A bandwidth test at one size: bytes, iterations, peak, average, message rate.
#[track_caller]
fn bandwidth(name: &'static str, args: &str, size: f64, iterations: f64) {
    let rows = table(name, args);
    let [row] = rows.as_slice() else { panic!("{name} {args}: one row expected: {rows:?}") };
    assert_eq!(row[..2], [size, iterations], "{name} {args}: {row:?}");
    assert!(row[3] > 0.0, "{name} {args}: no bandwidth: {row:?}");
}

/// A latency test at one size: bytes, iterations, least, most, typical, average ...
#[track_caller]
fn latency(name: &'static str, args: &str, size: f64, iterations: f64) {
    let rows = table(name, args);
    let [row] = rows.as_slice() else { panic!("{name} {args}: one row expected: {rows:?}") };
    assert_eq!(row[..2], [size, iterations], "{name} {args}: {row:?}");
    assert!(row[4] > 0.0 && row[2] <= row[3], "{name} {args}: no latency: {row:?}");
}

#[test]
fn write_bw() {
    bandwidth("ib_write_bw", "-n 1000", 65536.0, 1000.0);
    bandwidth("ib_write_bw", "-n 500 -s 4096 -b", 4096.0, 500.0);
    bandwidth("ib_write_bw", "-n 500 -s 64 -I 64 -q 4", 64.0, 2000.0);
    bandwidth("ib_write_bw", "-n 512 -s 256 -Q 16 -l 16", 256.0, 512.0);
}

#[test]
fn a_rate_is_a_limit() {
    for (name, args) in
        [("ib_write_bw", "-n 100"), ("ib_read_bw", "-n 100"), ("ib_send_bw", "-n 50 -s 131072")]
    {
        let rows = rows(name, args, &shaped(name, args, "rate=100MB"));
        // perftest counts in MiB: 100 MB are 95.4. It cannot be more on any machine.
        assert!(rows[0][3] > 0.0 && rows[0][3] < 95.4, "{name}: {rows:?}");
    }
}

#[test]
fn a_latency_is_a_lower_limit() {
    let rows = rows("ib_send_lat", "-n 50", &shaped("ib_send_lat", "-n 50", "lat=300us"));
    assert!(rows[0][2] >= 300.0, "{rows:?}");
}

#[test]
fn write_bw_through_shared_memory() {
    for (name, args) in [("ib_write_bw", "-n 300"), ("ib_read_bw", "-n 300"), ("ib_atomic_bw", "-n 300")] {
        let rows = rows(name, args, &pair(name, args).env("SOFTVERBS_COPY", "bounce"));
        assert_eq!(rows[0][1], 300.0, "{rows:?}");
    }
}

#[test]
fn write_bw_of_all_sizes() {
    let rows = table("ib_write_bw", "-a -n 20");
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    let expected: Vec<f64> = (1..=23).map(|i| f64::from(1_u32 << i)).collect();
    assert_eq!(sizes, expected);
}

#[test]
fn write_lat() {
    latency("ib_write_lat", "-n 500", 2.0, 500.0);
    latency("ib_write_lat", "-n 500 -s 4096 -I 0", 4096.0, 500.0);
}

#[test]
fn send_bw() {
    bandwidth("ib_send_bw", "-n 1000", 65536.0, 1000.0);
    bandwidth("ib_send_bw", "-n 500 -s 1024 -b", 1024.0, 500.0);
    bandwidth("ib_send_bw", "-n 500 -s 2048 -e", 2048.0, 500.0);
    bandwidth("ib_send_bw", "-n 500 -s 512 -r 64 -q 2", 512.0, 1000.0);
}

#[test]
fn send_lat() {
    latency("ib_send_lat", "-n 500", 2.0, 500.0);
    latency("ib_send_lat", "-n 300 -e -s 4096", 4096.0, 300.0);
}

#[test]
fn read_bw() {
    bandwidth("ib_read_bw", "-n 1000", 65536.0, 1000.0);
    bandwidth("ib_read_bw", "-n 500 -s 4096 -b -o 4", 4096.0, 500.0);
    bandwidth("ib_read_bw", "-n 500 -s 4096 -e", 4096.0, 500.0);
}

#[test]
fn read_lat() {
    latency("ib_read_lat", "-n 500 -s 64", 64.0, 500.0);
}

#[test]
fn atomic_bw() {
    bandwidth("ib_atomic_bw", "-n 1000", 8.0, 1000.0);
    bandwidth("ib_atomic_bw", "-n 500 -A CMP_AND_SWAP -b", 8.0, 500.0);
    bandwidth("ib_atomic_bw", "-n 500 -A FETCH_AND_ADD -e", 8.0, 500.0);
}

#[test]
fn atomic_lat() {
    latency("ib_atomic_lat", "-n 500", 8.0, 500.0);
    latency("ib_atomic_lat", "-n 500 -A CMP_AND_SWAP", 8.0, 500.0);
}
