//! The agent as a separate process: how soon it follows a rate that changes, how soon its page
//! shows that a rail has died, and what it costs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use mpib_agent::http::{Http, listen};
use mpib_agent::{Config, Server};
use mpib_host_view::Source;
use mpib_tests::pair::connect;
use mpib_tests::pair::init;
use mpib_tests::table::newest as newest_table;
use mpib_tests::vdevices::rails;
use nccl_net_mpib_agent_iface::agent::{Register, Request, TAKES_MEMORY};
use nccl_net_mpib_agent_iface::stats::{Data, Direction, Islands, NewConnection, StatsWriter, Traffic};

use crate::stream::{Stream, changes, quantile};
use crate::{MIB, number, set_rates};

/// What a process of this program does, in its environment.
const ROLE: &str = "BENCH_ADAPTIVE_ROLE";
/// The agent's folder, for the other processes.
const FOLDER: &str = "BENCH_ADAPTIVE_FOLDER";
/// Address of the agent's HTTP server, for the other processes.
const HTTP: &str = "BENCH_ADAPTIVE_HTTP";
/// Connections of the process that the agent's load is measured with.
const CONNECTIONS: u32 = 1000;

/// Does what the environment wants of this process. Returns `false` in the first process.
pub(crate) fn plays_role() -> bool {
    match std::env::var(ROLE).as_deref() {
        Ok("agent") => serve(),
        Ok("changes") => changes("by the agent", job()),
        Ok("outage") => outage(),
        Ok("connections") => hold_connections(),
        _ => return false,
    }
    true
}

/// Measures everything that needs an agent.
pub(crate) fn measure(what: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = start("agent", folder.path(), "");
    let address = line(&mut agent.0);
    if what.contains("agent") {
        wait(start("changes", folder.path(), &address));
        outages(folder.path(), &address);
    }
    if what.contains("load") {
        load(agent.0.id(), folder.path());
    }
}

/// A process that ends with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, folder: &Path, address: &str) -> Ended {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let env = [
        ("SOFTVERBS_FABRIC", format!("bench-adaptive-{role}-{}", std::process::id())),
        ("SOFTVERBS_DEVICES", rails(2, 1)),
        ("MPIB_MODE", "1".into()),
        ("MPIB_HCA_SOUT", "r0".into()),
        ("MPIB_HCA_SUP", "r1".into()),
        ("MPIB_AGENT_SOCKET", folder.join("agent.sock").display().to_string()),
        (FOLDER, folder.display().to_string()),
        (HTTP, address.into()),
        (ROLE, role.into()),
    ];
    command.env_remove("MPIB_RAIL_SPEED").env_remove("NCCL_IB_MERGE_NICS").envs(env);
    let is_piped = role != "changes";
    let out = if is_piped { Stdio::piped() } else { Stdio::inherit() };
    Ended(command.stdin(Stdio::piped()).stdout(out).spawn().expect("a process"))
}

fn wait(mut process: Ended) {
    let status = process.0.wait().expect("the end of a process");
    assert!(status.success(), "{status}");
}

fn line(process: &mut Child) -> String {
    let mut line = String::new();
    let out = process.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The agent with its defaults.
fn serve() {
    let folder = variable(FOLDER);
    let folder = Path::new(&folder);
    let server = Server::bind(folder, Config::default(), None).expect("an agent");
    let listener = listen("127.0.0.1:0".parse().expect("an address"), None).expect("a listener");
    let http = Http::start(Some(listener), folder, Source::default(), server.handle());
    let http = http.expect("an HTTP server");
    println!("{}", http.address().expect("an address"));
    server.run().expect("the agent's loop");
}

/// A connection of SOUT and SUP whose shares the agent decides.
fn job() -> Stream {
    let ctx = init(newest_table());
    Stream::of(connect(newest_table(), ctx, 0), MIB / 2)
}

/// Lets SUP fail under load. Prints after how many ms the stream of the page shows that.
fn outage() {
    set_rates(&[4, 4]);
    let (stream, events) = (job(), follow(&variable(HTTP)));
    // Readings are a second apart unless something happens: the fault is at any time between two.
    let wait = Duration::from_millis(1000 + u64::from(std::process::id()) * 137 % 1000);
    let (start, mut down, mut shown) = (Instant::now(), None, None);
    stream.run(|now| {
        if down.is_none() && now >= start + wait {
            down = Some(Instant::now());
            softverbs::set_link("r1", false).expect("a link");
        }
        shown = events.try_iter().find(|(_, state)| down.is_some() && state == "down");
        shown.is_none()
    });
    stream.close();
    let (Some(down), Some((at, _))) = (down, shown) else { return };
    println!("{}", at.saturating_duration_since(down).as_secs_f64() * 1e3);
}

/// Lets SUP of one job after another fail: a port that has failed often is held down.
fn outages(folder: &Path, address: &str) {
    let one = |_| {
        let mut process = start("outage", folder, address);
        let time = line(&mut process.0).parse().expect("a time");
        wait(process);
        time
    };
    let mut times: Vec<f64> = (0..number("CHANGES", 40) / 2).map(one).collect();
    println!("\n| a rail goes down | the page's stream of events has it after, ms |");
    println!("|---|---:|");
    for (name, q) in [("median", 0.5), ("p99", 0.99)] {
        println!("| {} times, {name} | {:.0} |", times.len(), quantile(&mut times, q));
    }
}

/// Follows the stream of an agent, as its page does: the times of its events, each with the state of
/// SUP's port.
fn follow(address: &str) -> Receiver<(Instant, String)> {
    let mut stream = TcpStream::connect(address).expect("the agent");
    let request = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).expect("a request");
    let (send, events) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        for line in lines {
            let Some(document) = line.strip_prefix("data: ") else { continue };
            let at = Instant::now();
            let document: serde_json::Value = serde_json::from_str(document).expect("a document");
            let ports = document["host"]["ports"].as_array().into_iter().flatten();
            let sup = ports.into_iter().find(|port| port["name"] == "r1:1");
            let state = sup.and_then(|port| port["state"].as_str()).unwrap_or_default();
            if send.send((at, state.to_owned())).is_err() {
                return;
            }
        }
    });
    events
}

/// The processor time of a process in all its threads.
fn processor_time(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the agent's threads");
    let nanos = tasks.flatten().map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or_default()
    });
    Duration::from_nanos(nanos.sum())
}

/// The agent's part of a core while a process has many connections under load.
fn load(agent: u32, folder: &Path) {
    let seconds = number("LOAD", 20);
    let mut process = start("connections", folder, "");
    line(&mut process.0);
    thread::sleep(Duration::from_secs(1));
    let (from, before) = (Instant::now(), processor_time(agent));
    thread::sleep(Duration::from_secs(seconds));
    let used = processor_time(agent).saturating_sub(before).as_secs_f64();
    println!("\n| the agent's load, {CONNECTIONS} connections, {seconds} s | % of a core |");
    println!("|---|---:|");
    println!("| policy \"measured\" | {:.2} |", 100.0 * used / from.elapsed().as_secs_f64());
}

/// A process with many connections in its statistics. Each is registered. All of them count
/// messages all the time.
fn hold_connections() {
    let writer = StatsWriter::for_this_process("bench").expect("a page");
    let connection = |i: u32| {
        let peer = format!("192.0.2.{}:{i} (node{}, pid {i})", i % 250, i % 125);
        let (direction, islands, data) = (Direction::Send, Islands::Two, Data::Split);
        let rails = &[(0, "r0:1"), (1, "r1:1")];
        writer.add(&NewConnection {
            direction,
            islands,
            data,
            traffic: Traffic::Messages,
            peer: &peer,
            rails,
            substituted: false,
        })
    };
    let all: Vec<_> = (0..CONNECTIONS).map(connection).collect();
    let mut agent = UnixStream::connect(variable("MPIB_AGENT_SOCKET")).expect("the agent");
    for conn_id in 0..CONNECTIONS {
        let to = |net| Ipv4Addr::new(10, net, 1, (conn_id % 250) as u8);
        let from = |net| Ipv4Addr::new(10, net, 0, 1);
        let (sout_src, sout_dst, sup_src, sup_dst) = (from(0), to(0), from(1), to(1));
        let register = Request::Register(Register { conn_id, sout_src, sout_dst, sup_src, sup_dst });
        let (bytes, len) = register.encode_with(TAKES_MEMORY);
        agent.write_all(&bytes[..len]).expect("a request");
        agent.read_exact(&mut [0; 16]).expect("an answer");
    }
    println!("{} connections", all.len());
    let ports = ["r0:1", "r1:1"].map(|name| writer.port(name).expect("a record"));
    for round in 0_u64.. {
        // Goodput that changes all the time.
        ports[0].add_measured(128 << 20, 1_000_000, 1000);
        ports[1].add_measured(64 << 20, 900_000 + round % 200 * 1000, 1000);
        for connection in &all {
            let entry = connection.entry();
            entry.request();
            entry.share(341);
            for (rail, bytes) in [(0, 2 << 16), (1, 1 << 16)] {
                entry.rail(rail).posted(1, 1, bytes);
                entry.rail(rail).completed(1);
            }
            entry.done(1, 3 << 16);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
