//! `mpib doctor` for many simulated hosts: those of its command line, and those of a job's ranks.

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
};

use crate::built::artifact;
use crate::doctor_util::{Listener, fabric, mpib};
use serde_json::Value;

/// Returns a host's two ports, the second one with this rate.
fn ports(host: usize, second: &str) -> String {
    let host = host + 1;
    format!("a:addr=10.9.0.{host}/24,rate=500Mb;b:addr=10.9.1.{host}/24,rate={second}")
}

fn doctor(fabric: &str, devices: &str) -> Command {
    let mut command = mpib(fabric, devices);
    command.args(["doctor", "--color", "never", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    command
}

/// Returns an address of this host with a port that nobody has at any address.
fn free() -> String {
    let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
    format!("127.0.0.1:{}", listener.local_addr().unwrap().port())
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// The names of the bad hosts of a file.
fn names(file: &str) -> Vec<&str> {
    file.lines().map(|line| line.split('#').next().unwrap().trim()).collect()
}

/// One host has a slow port, and one does not answer.
//= fleet.md: hosts of the command line are checked, and the bad ones named in a file
#[test]
fn of_hosts_on_the_command_line_the_bad_ones_are_named() {
    let fabric = fabric();
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("hosts");
    fs::write(&list, "").unwrap();
    let host = |number: usize| {
        let rate = if number == 3 { "50Mb" } else { "500Mb" };
        let mut command = doctor(&fabric, &ports(number, rate));
        Listener::of(command.args(["--listen", "127.0.0.1:0", "--hosts"]).arg(&list))
    };
    let hosts: Vec<Listener> = (0..4).map(host).collect();
    // Connections are refused there.
    let dead = free();
    let mut addresses: Vec<String> = hosts.iter().map(|host| host.address.clone()).collect();
    addresses.push(dead);
    fs::write(&list, addresses.join("\n")).unwrap();
    let (bad, report) = (dir.path().join("bad-hosts.txt"), dir.path().join("report.html"));
    let mut command = mpib(&fabric, "");
    command.args(["doctor", "--json", "--pairs", "all", "--bad-hosts"]).arg(&bad);
    let output = command.arg("--report").arg(&report).args(&addresses).output().unwrap();
    let (document, lines) = said(&output);
    assert_eq!(output.status.code(), Some(2), "{document} {lines}");
    assert!(lines.contains("mpib: 5 hosts, 10 pairs (--pairs all)\n"), "{lines}");
    let file = fs::read_to_string(&bad).unwrap();
    assert_eq!(names(&file), [&addresses[3], &addresses[4]], "{file} {document}");
    let slow = file.lines().next().unwrap();
    assert!(slow.contains("  # b:1 with 3 hosts: ") && slow.ends_with("[MPIB-609]"), "{slow}");
    assert!(file.lines().nth(1).unwrap().contains("  # cannot connect to"), "{file}");
    let page = fs::read_to_string(&report).unwrap();
    assert!(
        page.contains("<h1 class=\"fail\">unusable: 5 hosts, 10 pairs (all), 2 bad hosts</h1>"),
        "{page}"
    );
    assert!(page.contains(&addresses[3]) && page.contains("2 of 2"), "{page}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let measured = document["pairs"].as_array().unwrap().iter().filter(|pair| pair["ports"].is_object());
    assert_eq!(measured.count(), 6, "{document:#}");
}

//= fleet.md: options for many hosts need many hosts
#[test]
fn an_option_that_does_not_fit_is_named() {
    for (args, words) in [
        (&["--pairs", "ring", "a"][..], "--pairs: expected several HOSTs"),
        (&["--report", "x"], "--report: expected several HOSTs"),
        (&["--all", "a", "b"], "--all: expected one HOST at most"),
        (&["a", "a"], "a is in the list twice"),
        (&["--pairs", "some", "a", "b"], "expected ring, random:N"),
        (&["--all-ranks"], "start it with srun or mpirun"),
        (&["--root", "a"], "--all-ranks"),
    ] {
        let output = doctor(&fabric(), "").args(args).output().unwrap();
        let (_, lines) = said(&output);
        assert!(lines.contains(words), "{args:?}: {lines}");
        assert!(matches!(output.status.code(), Some(2 | 3)), "{args:?}: {:?}", output.status);
    }
}

/// How many descriptors rank 0 may have at first. It needs more.
const FEW: &str = "14";

/// A rank of a job of Slurm, on a host that has the number of its rank. The first one begins with few descriptors.
fn rank(fabric: &str, number: usize, size: usize, root: &str, args: &[&str]) -> Child {
    let of_doctor = doctor(fabric, &ports(number, "500Mb"));
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("[ {number} != 0 ] || ulimit -Sn {FEW}; exec \"$@\""), "sh"])
        .arg(of_doctor.get_program());
    command.args(of_doctor.get_args()).stdin(Stdio::null());
    command.envs(of_doctor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["--all-ranks", "--root", root]).args(args);
    command.env("SLURM_PROCID", number.to_string()).env("SLURM_NTASKS", size.to_string());
    command.env("SLURM_JOB_ID", "77").env("SLURM_JOB_NODELIST", format!("node[0-{}]", size - 1));
    command.env("SLURMD_NODENAME", format!("node{number}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

//= fleet.md: --all-ranks checks the hosts of a job, and rank 0 prints the result
#[test]
fn the_ranks_of_a_job_check_their_hosts_and_end_alike() {
    let fabric = fabric();
    let root = free();
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad-hosts.txt");
    let bad_hosts = ["--bad-hosts", bad.to_str().unwrap()];
    // Rank 0 comes last.
    let ranks: Vec<Child> =
        [3, 2, 1, 0].iter().map(|number| rank(&fabric, *number, 4, &root, &bad_hosts)).collect();
    let ended: Vec<Output> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let (result, lines) = said(&ended[3]);
    assert!(result.contains(": 4 hosts, 6 pairs (all)") && result.contains("node3"), "{result} {lines}");
    assert_eq!(names(&fs::read_to_string(&bad).unwrap()), [""; 0], "{result}");
    assert!(ended[3].status.code().unwrap() < 2, "{result} {lines}");
    for other in &ended[..3] {
        assert_eq!(said(other), (String::new(), String::new()));
        assert_eq!(other.status.code(), ended[3].status.code());
    }
}

//= fleet.md: a rank that does not come is named after the time of --wait
#[test]
fn a_rank_that_does_not_come_is_named_and_holds_nobody_up() {
    let fabric = fabric();
    let root = free();
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad-hosts.txt");
    let args = ["--wait", "5", "--bad-hosts", bad.to_str().unwrap()];
    let ranks: Vec<Child> = [0, 2].iter().map(|number| rank(&fabric, *number, 3, &root, &args)).collect();
    let ended: Vec<Output> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let (result, lines) = said(&ended[0]);
    assert!(
        result.starts_with("unusable: 2 hosts, 1 pair (all), 1 bad host\nfail  node1: no rank of it came"),
        "{result} {lines}"
    );
    assert!(lines.contains("1 of 3 ranks did not come within 5s (--wait): 1\n"), "{lines}");
    assert_eq!(names(&fs::read_to_string(&bad).unwrap()), ["node1"]);
    assert_eq!(ended.iter().map(|end| end.status.code()).collect::<Vec<_>>(), [Some(2), Some(2)]);
    // Without rank 0 no other one has a result.
    let alone = rank(&fabric, 1, 2, &root, &["--wait", "1"]).wait_with_output().unwrap();
    let (_, lines) = said(&alone);
    assert_eq!(alone.status.code(), Some(3), "{lines}");
    assert!(
        lines.contains("rank 1 on node1: no rank 0 within 1s (--wait): cannot connect to 127.0.0.1"),
        "{lines}"
    );
}
