//! Measures the time that reading and formatting the statistics of 4,000 connections takes: four
//! processes with 1,000 connections of eight rails each.
//!
//! cargo run --release -p mpib-host-view --example scrape

use std::io::{BufRead, BufReader, Read, stdin};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use mpib_host_view::{Host, MetricsOptions, Source, metrics};
use nccl_net_mpib_agent_iface::stats::{Data, Direction, Islands, NewConnection, StatsWriter, Traffic};

const PROCESSES: usize = 4;
const CONNECTIONS: usize = 1000;

/// Opens connections, and waits until the measurement is over.
fn process() {
    let writer = StatsWriter::for_this_process("scrape").expect("a page");
    let names: Vec<String> = (0..8).map(|i| format!("mlx5_{i}:1")).collect();
    let rails: Vec<(u8, &str)> = (0..8).zip(names.iter().map(String::as_str)).collect();
    let open = |i: usize| {
        let direction = if i.is_multiple_of(2) { Direction::Send } else { Direction::Receive };
        let peer = format!("192.0.2.{}:{i} (node{}, pid {i})", i % 250, i % 125);
        let (islands, data, substituted) = (Islands::Unknown, Data::Plain, false);
        let traffic = Traffic::Messages;
        let one =
            NewConnection { direction, islands, data, traffic, peer: &peer, rails: &rails, substituted };
        let one = writer.add(&one);
        one.entry().request();
        one.entry().done(1, 1 << 40);
        (0..8).for_each(|rail| one.entry().rail(rail).posted(1, 1, 1 << 37));
        one
    };
    let all: Vec<_> = (0..CONNECTIONS).map(open).collect();
    println!("{} connections", all.len());
    // Until the parent closes the pipe.
    let _ = stdin().read(&mut [0]);
}

fn child() -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let mut child =
        command.arg("process").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    let out = child.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut String::new()).expect("its line");
    child
}

/// Prints the least and the median of 50 times in ms.
fn measure<T>(what: &str, mut work: impl FnMut() -> T) {
    let mut times: Vec<f64> = (0..50)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(work());
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what:<28} {:6.2} ms at least, {:6.2} ms in the median", times[0], times[times.len() / 2]);
}

fn main() {
    if std::env::args().nth(1).is_some() {
        return process();
    }
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| child()).collect();
    let mut source = Source::default();
    let read = |source: &mut Source| -> Host { source.host().expect("a host") };
    let host = read(&mut source);
    let open: u32 = host.processes.iter().map(|process| process.open).sum();
    println!("{open} connections in {} processes, {} ports", host.processes.len(), host.ports.len());
    measure("reading", || read(&mut source));
    measure("formatting metrics", || metrics(&host, MetricsOptions::default()));
    measure("the same with peers", || metrics(&host, MetricsOptions { per_peer: true }));
    measure("formatting JSON", || serde_json::to_string(&host).map(|text| text.len()));
    measure("a scrape", || metrics(&read(&mut source), MetricsOptions::default()));
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().expect("its end");
    }
}
