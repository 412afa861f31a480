//! `mpib doctor --listen` on one simulated host and `mpib doctor HOST` on another.

mod built;
mod doctor_util;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStderr, Command, Stdio},
    thread,
};

use built::artifact;
use doctor_util::{Doctor, fabric, mpib};
use serde_json::{Value, json};

const BOTH: [(&str, &str); 2] = [("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup")];

/// Returns a host's two ports: SOUT in a network of all hosts, SUP in this one.
fn ports(host: u8, sup: u8) -> String {
    format!("sout:addr=10.9.0.{host}/24;sup:addr=10.9.{sup}.{host}/24")
}

fn command(fabric: &str, devices: &str, args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = mpib(fabric, devices);
    command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    command.envs(env.iter().copied());
    command
}

/// The listening end. It ends with the test.
struct Listener {
    child: Child,
    said: BufReader<ChildStderr>,
    address: String,
}

impl Listener {
    fn start(fabric: &str, devices: &str, env: &[(&str, &str)]) -> Self {
        let mut command = command(fabric, devices, &["--listen", "127.0.0.1:0"], env);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, said, address }
    }

    /// Returns the next line on stderr with these words.
    fn says(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended without {words:?}");
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Ends the process; returns its output.
    fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the pairs as (here, there, verdict, whether it carried data out and back).
fn table(found: &Doctor) -> Vec<(String, String, String, bool)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let works = |m: &Value| m["gigabytes_per_second"].as_f64().is_some_and(|g| g > 0.0);
    let rows = found.document["routes"].as_array().unwrap().iter();
    let row = |r: &Value| {
        (text(&r["ours"]), text(&r["theirs"]), text(&r["verdict"]), works(&r["out"]) && works(&r["back"]))
    };
    rows.map(row).collect()
}

fn row(ours: &str, theirs: &str, verdict: &str, works: bool) -> (String, String, String, bool) {
    (ours.into(), theirs.into(), verdict.into(), works)
}

//= doctor.md: two hosts check each other; a pair that does not work is a row
#[test]
fn two_hosts_check_each_other_and_a_way_that_does_not_work_is_a_row() {
    let fabric = fabric();
    let listener = Listener::start(&fabric, &ports(2, 1), &BOTH);
    let run =
        |devices: &str| Doctor::of(&mut command(&fabric, devices, &["--json", &listener.address], &BOTH));
    // SUP of this host is in another network: nothing answers there.
    let broken = run(&ports(1, 7));
    broken.usable_with(&["routes"]);
    assert_eq!(
        table(&broken),
        [
            // Within an island SUP carries all data, and SOUT stands in.
            row("sout:1", "sout:1", "first", true),
            row("sup:1", "sup:1", "first", false),
            row("sout:1", "sup:1", "refused", false),
            row("sup:1", "sout:1", "refused", false),
        ]
    );
    let routes = &broken.document["routes"];
    let why = routes[1]["out"]["error"].as_str().unwrap();
    assert!(
        why.contains("sup:1 (10.9.7.1) to sup:1 (10.9.1.2)") && why.contains("the probe did not complete"),
        "{why}"
    );
    assert_eq!((&routes[1]["back"], &routes[2]["out"]), (&Value::Null, &Value::Null));
    assert_eq!(routes[2]["why"], "sout:1 is SOUT, sup:1 is SUP");
    broken.says("routes", "warn", &["sup:1 to sup:1 does not work", "the probe did not complete"]);
    broken.says("peer", "ok", &["by itself is usable"]);
    assert_eq!(broken.document["peer"]["mpib"], env!("CARGO_PKG_VERSION"));
    // The next host is served as well, and all its pairs work.
    let good = run(&ports(3, 1));
    good.usable_with(&[]);
    assert_eq!(
        table(&good)[..2],
        [row("sout:1", "sout:1", "first", true), row("sup:1", "sup:1", "first", true)]
    );
    let text = listener.end();
    assert_eq!(text.matches("checked by ").count(), 2, "{text}");
    let fails = |line: &str| line.contains("sup:1") && line.contains("first") && line.contains("fails");
    assert_eq!(text.lines().filter(|line| fails(line)).count(), 1, "{text}");
}

//= doctor.md: hosts without a working pair are unusable
#[test]
fn hosts_without_a_way_between_them_are_unusable() {
    let fabric = fabric();
    let listener = Listener::start(&fabric, "a:link=ib,lid=3", &[]);
    let mut command = command(&fabric, "b:addr=10.9.0.1/24", &["--json", &listener.address], &[]);
    let found = Doctor::of(&mut command);
    found.unusable();
    assert_eq!(table(&found), [row("b:1", "a:1", "refused", false)]);
    assert_eq!(found.document["routes"][0]["why"], "b:1 is Ethernet, a:1 is InfiniBand");
    found.says("routes", "fail", &["no port of this host can be joined"]);
}

/// Each end has the reason from the other's HELLO; with FLIDs the pair is measured.
//= reach.md: InfiniBand subnets are joined by FLIDs
#[test]
fn infiniband_subnets_need_flids() {
    let fabric = fabric();
    let port = |name: &str, subnet: u8, flid: &str| {
        format!("{name}:link=ib,lid=3,subnet=0xfe8000000000000{subnet}{flid}")
    };
    let listener = Listener::start(&fabric, &port("a", 1, ",flid=1001"), &[]);
    let of = |devices: &str| Doctor::of(&mut command(&fabric, devices, &["--json", &listener.address], &[]));
    let alone = of(&port("b", 2, ""));
    alone.unusable();
    assert_eq!(table(&alone), [row("b:1", "a:1", "refused", false)]);
    let why = alone.document["routes"][0]["why"].as_str().unwrap();
    assert!(why.contains("b:1 is in InfiniBand subnet fe80000000000002, a:1 in fe80000000000001"), "{why}");
    assert!(why.ends_with("without an FLID in GID entry NCCL_IB_ROUTABLE_FLID_GID_INDEX: b:1"), "{why}");
    let routed = of(&port("b", 2, ",flid=1002"));
    routed.usable_with(&[]);
    assert_eq!(table(&routed), [row("b:1", "a:1", "first", true)]);
}

//= doctor.md: settings that differ are reported with both values
#[test]
fn settings_that_differ_are_told_with_both_values() {
    let fabric = fabric();
    let listener = Listener::start(&fabric, &ports(2, 1), &BOTH);
    let env = [BOTH[0], BOTH[1], ("MPIB_SOUT_QP", "3")];
    let found = Doctor::of(&mut command(&fabric, &ports(1, 1), &["--json", &listener.address], &env));
    found.unusable();
    found.says("routes", "fail", &["MPIB_SOUT_QP is 3 here and 2 there", "set it to the same value on both"]);
}

/// Encodes a message of the protocol.
fn frame(message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &body].concat()
}

fn read_frame(stream: &mut TcpStream) -> Value {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

//= doctor.md: strangers and other versions are refused and delay nobody
#[test]
fn strangers_are_turned_away_with_a_reason_and_hold_nobody_up() {
    let fabric = fabric();
    let mut listener = Listener::start(&fabric, &ports(2, 1), &BOTH);
    let connect = || TcpStream::connect(&listener.address).unwrap();
    // One client sends nothing during the whole test.
    let _silent = connect();
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let refused = read_frame(&mut garbage);
    assert!(
        refused["refused"].as_str().unwrap().contains("announced a message of 542393671 bytes"),
        "{refused}"
    );
    let mut newer = connect();
    newer
        .write_all(&frame(&json!({ "magic": "mpib doctor", "protocol": 99, "join": null, "more": [1] })))
        .unwrap();
    let refused = read_frame(&mut newer);
    assert_eq!(refused["refused"], "protocol 99, expected 1; use the same release of mpib at both ends");
    // One joins an unknown run, and one closes before it has identified itself.
    let mut joins = connect();
    joins.write_all(&frame(&json!({ "magic": "mpib doctor", "protocol": 1, "join": "x" }))).unwrap();
    let mut leaves = connect();
    leaves.write_all(&frame(&json!({ "magic": "mpib doctor", "protocol": 1, "join": null }))).unwrap();
    assert_eq!(read_frame(&mut leaves)["refused"], Value::Null);
    drop(leaves);
    listener.says("closed the control connection");
    let found = Doctor::of(&mut command(&fabric, &ports(1, 1), &["--json", &listener.address], &BOTH));
    found.usable_with(&[]);
}

//= doctor.md: strangers and other versions are refused and delay nobody
#[test]
fn whoever_is_no_doctor_is_no_verdict() {
    let run = |address: &str| {
        let output = command(&fabric(), &ports(1, 1), &["--json", address], &BOTH).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    let answer = |bytes: Vec<u8>| {
        let listener = free.try_clone().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&bytes).unwrap();
            // Until the peer has closed.
            let _ = stream.read_to_end(&mut Vec::new());
        })
    };
    for (bytes, said) in [
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "announced a message of"),
        (
            frame(&json!({ "magic": "x", "protocol": 1, "refused": null, "wait": false, "token": "" })),
            "is not an \"mpib doctor --listen\"",
        ),
        (
            frame(
                &json!({ "magic": "mpib doctor", "protocol": 2, "refused": null, "wait": false, "token": "" }),
            ),
            "speaks protocol 2, expected 1; use the same release of mpib at both ends",
        ),
    ] {
        let server = answer(bytes);
        let (code, text) = run(&address);
        assert_eq!(code, 3, "{text}");
        assert!(text.contains(said), "{said:?} in {text}");
        server.join().unwrap();
    }
    drop(free);
    let (code, text) = run(&address);
    assert!(code == 3 && text.contains("is \"mpib doctor --listen\" running there?"), "{code} {text}");
}
