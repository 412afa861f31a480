//! `mpib doctor --listen` on one simulated host and `mpib doctor HOST` on another.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};

use crate::built::artifact;
use crate::doctor_util::{Doctor, Listener, fabric, mpib};
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

fn listen(fabric: &str, devices: &str, env: &[(&str, &str)]) -> Listener {
    Listener::of(&mut command(fabric, devices, &["--listen", "127.0.0.1:0"], env))
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
    let listener = listen(&fabric, &ports(2, 1), &BOTH);
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
    // The finding has the cause in few words, and what to do at both hosts.
    let host = &broken.document["report"]["host"];
    let remedy = format!("on {0} and {0}: ping -I", host.as_str().unwrap());
    let cause = "sup:1 to sup:1 does not work: nothing came through: a wrong network, VLAN or cable";
    broken.says("routes", "warn", &[cause, &remedy]);
    let wrong = broken.document["checks"].as_array().unwrap().iter().find(|c| c["level"] == "warn").unwrap();
    // Silent, or too late on a busy machine.
    assert!(["MPIB-315", "MPIB-317", "MPIB-333"].map(Value::from).contains(&wrong["code"]), "{wrong}");
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

/// A rail whose answers take longer than 500 ms works alone, and is left beside another one.
//= doctor.md: a device is checked with all of its rails at once
#[test]
fn a_rail_that_fails_only_beside_another_one_is_found() {
    let fabric = fabric();
    let slow = |host| format!("sout:addr=10.9.0.{host}/24;sup:addr=10.9.1.{host}/24,latency=700ms");
    let env = [BOTH[0], BOTH[1], ("MPIB_SUP_SHARE", "512")];
    let listener = listen(&fabric, &slow(2), &env);
    let found = Doctor::of(&mut command(&fabric, &slow(1), &["--json", &listener.address], &env));
    let works = [row("sout:1", "sout:1", "first", true), row("sup:1", "sup:1", "first", true)];
    assert_eq!(table(&found)[..2], works, "{found:#?}");
    // It is not waited for while the other one answers. On a busy host it may be back by then.
    let lost = found.checks("fused", "warn");
    let says = |words: &str| lost.iter().any(|(text, _)| text.contains(words));
    let has_reason = says("the connection has no rail sup:1") && says("nothing answers");
    assert!(has_reason || says("a rail failed and came back"), "{lost:?}");
    // Without the fault both rails carry data.
    let env = [("MPIB_SUP_SHARE", "512"), BOTH[0], BOTH[1]];
    let listener = listen(&fabric, &ports(4, 1), &env);
    let good = Doctor::of(&mut command(&fabric, &ports(3, 1), &["--json", &listener.address], &env));
    good.says("fused", "ok", &["sout+sup to sout+sup over sout:1, sup:1: checked data"]);
}

//= doctor.md: hosts without a working pair are unusable
#[test]
fn hosts_without_a_way_between_them_are_unusable() {
    let fabric = fabric();
    let listener = listen(&fabric, "a:link=ib,lid=3", &[]);
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
    let listener = listen(&fabric, &port("a", 1, ",flid=1001"), &[]);
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

/// Runs one end with these variables against another one with those.
fn settings(here: &[(&str, &str)], there: &[(&str, &str)]) -> Doctor {
    let fabric = fabric();
    let listener = listen(&fabric, &ports(2, 1), there);
    Doctor::of(&mut command(&fabric, &ports(1, 1), &["--json", &listener.address], here))
}

/// The name of this machine, which both ends have.
fn host(found: &Doctor) -> String {
    found.document["report"]["host"].as_str().unwrap().to_owned()
}

//= doctor.md: settings that differ are reported with both values
#[test]
fn settings_that_differ_are_reported_with_both_values() {
    let found = settings(&[&BOTH[..], &[("MPIB_SOUT_QP", "3"), ("NCCL_PROTO", "Simple")]].concat(), &BOTH);
    found.unusable();
    let host = host(&found);
    let refused = format!("MPIB_SOUT_QP is 3 here ({host}) and 1 there ({host}): the hosts refuse");
    found.says("routes", "fail", &[&refused, "set it to the same value on both"]);
    // A variable of NCCL.
    let hangs = format!("NCCL_PROTO=Simple here ({host}), unset there ({host}): ranks choose different");
    found.says("differs", "fail", &[&hangs, "set it to one value on both hosts"]);
    assert_eq!(found.checks("differs", "warn"), []);
}

/// Which host has which value, what that does, and what to do; settings that do the same in one line.
//= doctor.md: settings that should be equal and are not are warnings; others are none
#[test]
fn settings_that_differ_and_cost_something_are_warnings() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "# ours\nNCCL_IB_TC=106\n").unwrap();
    let conf = conf.path().to_str().unwrap();
    let here = [("NCCL_CONF_FILE", conf), ("MPIB_STALL_MS", "70"), ("MPIB_FAILOVER", "0")];
    let found = settings(&here, &[("NCCL_IB_SL", "3")]);
    found.usable_with(&["differs", "differs"]);
    let host = host(&found);
    let classes =
        format!("NCCL_IB_SL=-1 here ({host}), 3 there ({host}); NCCL_IB_TC=106 here ({host}), -1 there");
    found.says(
        "differs",
        "warn",
        &[&classes, "travel in different classes", &format!("line 2 of {conf} sets NCCL_IB_TC")],
    );
    found.says("differs", "warn", &["MPIB_FAILOVER=0 here", "no failover, which needs both ends"]);
    let harmless = found.says("differs", "ok", &["MPIB_STALL_MS=70 here"]);
    assert!(!harmless.contains("NCCL_IB_TC"), "{harmless}");
    // Equal settings are no finding, also of this kind.
    let equal = settings(&here[..2], &here[..2]);
    assert!(
        ["ok", "warn", "fail"].iter().all(|level| equal.checks("differs", level).is_empty()),
        "{equal:#?}"
    );
}

//= doctor.md: a host that uses fewer ports than the other is named, with the setting
#[test]
fn a_host_that_uses_fewer_ports_is_named_with_its_setting() {
    let chosen = settings(&[], &[("NCCL_IB_HCA", "sout")]);
    chosen.usable_with(&["number"]);
    let host = host(&chosen);
    let ports = format!("2 ports here ({host}), 1 there ({host})");
    chosen.says("number", "warn", &[&ports, &format!("{host} has NCCL_IB_HCA=sout: name all ports there")]);
    let profile = settings(&BOTH, &[]);
    let roles = format!("MPIB_HCA_SOUT=sout here ({host}), unset there ({host})");
    profile.says("differs", "warn", &[&roles, "set it on both hosts, or on neither"]);
}

//= doctor.md: the speed of the two ends of a pair is compared
#[test]
fn a_pair_with_ends_of_different_speed_is_a_warning() {
    let fabric = fabric();
    let listener = listen(&fabric, "a:addr=10.9.0.2/24,rate=10Gb", &[]);
    let devices = "a:addr=10.9.0.1/24,rate=100Gb";
    let found = Doctor::of(&mut command(&fabric, devices, &["--json", &listener.address], &[]));
    found.usable_with(&["speeds"]);
    found.says(
        "speeds",
        "warn",
        &["the link is 100 Gb/s here and 10 Gb/s there: a:1 to a:1", "the slower one"],
    );
}

/// An end of this protocol that sends only what earlier releases do.
//= doctor.md: an end of an earlier release with this protocol is checked without its settings
#[test]
fn an_end_that_says_nothing_of_its_settings_is_checked() {
    let fabric = fabric();
    let listener = listen(&fabric, &ports(2, 1), &[]);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap().to_string();
    let to = listener.address.clone();
    thread::spawn(move || {
        let mut sessions = 0;
        for stream in proxy.incoming() {
            let (mut here, mut there) = (stream.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut up, mut down) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut up, &mut down));
            sessions += 1;
            if sessions == 1 {
                // The reply, and the description of the host.
                for _ in 0..2 {
                    let mut message = read_frame(&mut there);
                    let fields = message.as_object_mut().unwrap();
                    fields.retain(|name, _| !["settings", "plugin"].contains(&&**name));
                    here.write_all(&frame(&message)).unwrap();
                }
            }
            thread::spawn(move || std::io::copy(&mut there, &mut here));
        }
    });
    let env = [("MPIB_FAILOVER", "0")];
    let found = Doctor::of(&mut command(&fabric, &ports(1, 1), &["--json", &address], &env));
    found.usable_with(&[]);
    found.says("differs", "note", &["does not say what is set there: its mpib is of an earlier release"]);
}

//= doctor.md: a direct cable with link-local addresses is no loss
#[test]
fn a_cable_with_link_local_addresses_works() {
    let fabric = fabric();
    let listener = listen(&fabric, "rocep1s0f1:addr=169.254.11.1/16", &[]);
    let devices = "rocep1s0f1:addr=169.254.21.2/16";
    let found = Doctor::of(&mut command(&fabric, devices, &["--json", &listener.address], &[]));
    found.usable_with(&[]);
    assert_eq!(table(&found), [row("rocep1s0f1:1", "rocep1s0f1:1", "first", true)]);
    let why = found.document["routes"][0]["why"].as_str().unwrap();
    assert!(why.contains("link-local addresses, which reach each other on one link only"), "{why}");
}

//= doctor.md: the MTU is compared with the peer's
#[test]
fn different_mtus_are_a_warning() {
    let fabric = fabric();
    let listener = listen(&fabric, "a:addr=10.9.0.2/24,mtu=1024", &[]);
    let devices = "a:addr=10.9.0.1/24";
    let found = Doctor::of(&mut command(&fabric, devices, &["--json", &listener.address], &[]));
    found.usable_with(&["mtu"]);
    found.says("mtu", "warn", &["the MTU is 4096 here and 1024 there: a:1 to a:1", "ip link set mtu 9000"]);
}

//= doctor.md: a port in use is named with what to do
#[test]
fn a_port_that_is_in_use_is_named_with_what_to_do() {
    let fabric = fabric();
    let listener = listen(&fabric, &ports(2, 1), &BOTH);
    let output = command(&fabric, &ports(2, 1), &["--listen", &listener.address], &BOTH).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("cannot listen on 127.0.0.1, port ") && text.contains("--listen :PORT"), "{text}");
}

/// Runs `mpib doctor --hosts` with this file.
fn matrix(fabric: &str, file: &std::path::Path) -> (i32, Value, String) {
    let mut command = mpib(fabric, "");
    let output = command.args(["doctor", "--json", "--hosts"]).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    (output.status.code().unwrap(), document, said)
}

//= fleet.md: every pair of many hosts is checked once from one command
#[test]
fn every_pair_of_three_hosts_is_checked_once() {
    let fabric = fabric();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let start = |devices: &str| {
        let mut command = command(&fabric, devices, &["--listen", "127.0.0.1:0", "--hosts", path], &[]);
        Listener::of(&mut command)
    };
    // The third host has no port in the second network.
    let hosts = [start(&ports(1, 1)), start(&ports(2, 1)), start("sout:addr=10.9.0.3/24")];
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let addresses: Vec<&str> = hosts.iter().map(|host| &*host.address).collect();
    std::fs::write(path, addresses.join("\n") + "\n").unwrap();
    let (code, document, said) = matrix(&fabric, file.path());
    assert!(code < 2, "{document:#} {said}");
    let works = |pair: &Value| {
        let rows = pair["routes"].as_array().unwrap().iter();
        let good = rows.filter(|r| r["out"]["gigabytes_per_second"].as_f64().is_some_and(|g| g > 0.0));
        good.map(|r| format!("{} {}", r["ours"].as_str().unwrap(), r["theirs"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    let pairs = document["pairs"].as_array().unwrap();
    let found: Vec<_> =
        pairs.iter().map(|p| (p["from"].as_str().unwrap(), p["to"].as_str().unwrap(), works(p))).collect();
    let both = || vec!["sout:1 sout:1".to_owned(), "sup:1 sup:1".to_owned()];
    assert_eq!(found[0], (addresses[0], addresses[1], both()));
    assert_eq!(
        (found[1].0, found[1].1, found[2].0, found[2].1),
        (addresses[0], addresses[2], addresses[1], addresses[2])
    );
    assert!(found[1..].iter().all(|(_, _, works)| works == &["sout:1 sout:1"]), "{found:?}");
    assert_eq!(document["hosts"].as_array().unwrap().len(), 3);
    // A host that does not answer is an error, and the others are checked.
    std::fs::write(path, format!("{}\n{free}\n{}\n", addresses[0], addresses[1])).unwrap();
    let (code, document, _) = matrix(&fabric, file.path());
    assert_eq!(code, 2);
    let error = document["hosts"][1]["error"]["message"].as_str().unwrap();
    assert!(error.contains("is \"mpib doctor --listen --hosts FILE\" running there?"), "{error}");
    assert_eq!(works(&document["pairs"][1]), both());
    assert_eq!(document["pairs"][0]["routes"], json!([]));
    // The same for people.
    let mut command = mpib(&fabric, "");
    let text = command.args(["doctor", "--color", "never", "--hosts"]).arg(file.path()).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("unusable: 3 hosts, 3 pairs (all), 1 bad host") && text.contains("2 of 2"),
        "{text}"
    );
    assert!(text.contains(&format!("fail  {free}: cannot connect to")), "{text}");
}

//= fleet.md: a listener connects only to the hosts in its file
#[test]
fn a_listener_connects_to_no_host_that_its_file_does_not_have() {
    let fabric = fabric();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    target.set_nonblocking(true).unwrap();
    let address = target.local_addr().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "127.0.0.1:1\n127.0.0.1:2\n").unwrap();
    let path = file.path().to_str().unwrap();
    let ask = |listener: &Listener| {
        let mut stream = TcpStream::connect(&listener.address).unwrap();
        let task = json!({ "Check": address });
        let opening = json!({ "magic": "mpib doctor", "protocol": 6, "join": null, "task": task });
        stream.write_all(&frame(&opening)).unwrap();
        read_frame(&mut stream)["refused"].as_str().unwrap().to_owned()
    };
    let plain = listen(&fabric, &ports(1, 1), &BOTH);
    assert!(ask(&plain).contains("connects to no other host; start it with: mpib doctor --listen --hosts"));
    let listed = Listener::of(&mut command(
        &fabric,
        &ports(1, 1),
        &["--listen", "127.0.0.1:0", "--hosts", path],
        &BOTH,
    ));
    assert!(ask(&listed).contains("is not in the file of hosts of this listener"));
    assert_eq!(target.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it was connected to");
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
    let mut listener = listen(&fabric, &ports(2, 1), &BOTH);
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
        .write_all(&frame(
            &json!({ "magic": "mpib doctor", "protocol": 99, "join": null, "mpib": "9.9.9", "more": [1] }),
        ))
        .unwrap();
    let refused = read_frame(&mut newer);
    let mpib = env!("CARGO_PKG_VERSION");
    let text = format!(
        "the other end has mpib 9.9.9 (protocol 99), expected that of this end, {mpib} (protocol 6); use the same release of mpib at both ends"
    );
    assert_eq!(refused["refused"], text);
    // One joins an unknown run, and one closes before it has identified itself.
    let mut joins = connect();
    joins.write_all(&frame(&json!({ "magic": "mpib doctor", "protocol": 6, "join": "x" }))).unwrap();
    let mut leaves = connect();
    leaves.write_all(&frame(&json!({ "magic": "mpib doctor", "protocol": 6, "join": null }))).unwrap();
    assert_eq!(read_frame(&mut leaves)["refused"], Value::Null);
    drop(leaves);
    listener.says("closed the control connection");
    let found = Doctor::of(&mut command(&fabric, &ports(1, 1), &["--json", &listener.address], &BOTH));
    found.usable_with(&[]);
}

//= doctor.md: strangers and other versions are refused and delay nobody
#[test]
fn an_answer_that_is_no_doctors_gives_no_verdict() {
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
            frame(&json!({ "magic": "x", "protocol": 6, "refused": null, "wait": false, "token": "" })),
            "is not an \"mpib doctor --listen\"",
        ),
        (
            frame(
                &json!({ "magic": "mpib doctor", "protocol": 7, "refused": null, "wait": false, "token": "" }),
            ),
            "has an mpib of another release (protocol 7), expected that of this end, ",
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

//= doctor.md: a listener answers who waits during a run
#[test]
fn a_listener_answers_who_waits_while_it_serves_a_run() {
    let fabric = fabric();
    let listener = listen(&fabric, &ports(2, 1), &BOTH);
    // A run that goes on as long as its end waits for this one's description.
    let mut run = TcpStream::connect(&listener.address).unwrap();
    let opening =
        |task: Value| frame(&json!({ "magic": "mpib doctor", "protocol": 6, "join": null, "task": task }));
    run.write_all(&opening(Value::Null)).unwrap();
    assert_eq!(read_frame(&mut run)["wait"], false);
    let mut asks = TcpStream::connect(&listener.address).unwrap();
    asks.write_all(&opening(json!("Waits"))).unwrap();
    assert_eq!(read_frame(&mut asks)["refused"], Value::Null);
    let waits = read_frame(&mut asks);
    assert!(waits["hostname"].is_string() && waits["processes"].is_array(), "{waits}");
}
