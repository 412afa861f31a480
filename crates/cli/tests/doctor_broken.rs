//! Set-ups that are broken in a common way: the first five lines of `mpib doctor` have the cause and
//! what to do.

use std::{
    net::{TcpListener, ToSocketAddrs as _},
    process::Output,
};

use crate::built::artifact;
use crate::doctor_util::{Listener, TWO, fabric, mpib};

/// One broken set-up, and words of its first lines.
struct Case<'a> {
    code: i32,
    words: &'a [&'a str],
}

impl Case<'_> {
    /// Returns what exit code or first lines lack. Findings of this machine's limits may stand between
    /// them.
    fn lacks(&self, output: &Output) -> Option<String> {
        let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
        let is_limit = |line: &str| line.starts_with("warn  memlock") || line.starts_with("warn  files");
        let mut lines: Vec<&str> = text.lines().collect();
        while let Some(at) = lines.iter().position(|line| is_limit(line)) {
            // With its remedy.
            lines.drain(at..=at + 1);
        }
        let first = lines.iter().take(5).copied().collect::<Vec<_>>().join("\n");
        let code = output.status.code();
        let lacks = self.words.iter().find(|words| !first.contains(**words));
        let why = match lacks {
            Some(words) => format!("{words:?} is not in the first lines"),
            None if code == Some(self.code) => return None,
            None => format!("exit code {code:?}"),
        };
        Some(format!("{why}:\n{text}"))
    }
}

#[track_caller]
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{}", faults.join("\n----\n"));
}

fn doctor(fabric: &str, devices: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = mpib(fabric, devices);
    command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    command.envs(env.iter().copied()).output().unwrap()
}

//= doctor.md: the first lines of a broken host have the cause and what to do
#[test]
fn a_broken_host_has_cause_and_remedy_in_the_first_lines() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), "NCCL_IB_HCA: sout\nexport MPIB_MODE=0\n# MPIB_MODE\n").unwrap();
    let conf = conf.path().to_str().unwrap();
    // A folder that the linker searches, with a libibverbs that is none.
    let libraries = tempfile::tempdir().unwrap();
    std::fs::write(libraries.path().join("libibverbs.so.1"), "").unwrap();
    let build = artifact("libnccl-net-mpib.so").parent().unwrap().to_owned();
    let libraries = format!("{}:{}", libraries.path().display(), build.display());
    type Host<'a> = (&'a str, &'a [(&'a str, &'a str)], Case<'a>);
    let cases: [Host<'_>; 11] = [
        (
            TWO,
            &[("LD_LIBRARY_PATH", &libraries)],
            Case {
                code: 2,
                words: &[
                    "libibverbs cannot be used: ",
                    "libibverbs.so.1: file too short. Install libibverbs1 and ibverbs-providers",
                    "[MPIB-229]",
                ],
            },
        ),
        ("", &[], Case { code: 2, words: &["no RDMA device found", "-> load the adapter's driver"] }),
        (
            TWO,
            &[("MPIB_HCA_SOUT", "s0ut"), ("MPIB_HCA_SUP", "sup")],
            Case { code: 2, words: &["MPIB_HCA_SOUT=\"s0ut\"", "is sout meant?", "-> correct the name"] },
        ),
        (
            TWO,
            &[("NCCL_IB_HCA", "sout,spu")],
            Case {
                code: 1,
                words: &["names what this host does not have: spu", "sup", "-> correct NCCL_IB_HCA"],
            },
        ),
        (
            TWO,
            &[("NCCL_IB_GID_INDEX", "9")],
            Case {
                code: 2,
                words: &["NCCL_IB_GID_INDEX names GID index 9, which is empty", "-> unset NCCL_IB_GID_INDEX"],
            },
        ),
        (
            TWO,
            &[("NCCL_IB_ADDR_RANGE", "10.77.0.0/16")],
            Case { code: 2, words: &["fits NCCL_IB_ADDR_RANGE=10.77.0.0/16", "-> unset these settings"] },
        ),
        (TWO, &[("NCCL_NET", "IB")], Case { code: 2, words: &["NCCL_NET=IB", "-> "] }),
        (
            TWO,
            &[("NCCL_SOCKET_IFNAME", "=nosuch")],
            Case {
                code: 2,
                words: &["=nosuch", "up are: lo", "that the other hosts reach with NCCL_SOCKET_IFNAME"],
            },
        ),
        (
            TWO,
            &[("NCCL_CONF_FILE", conf)],
            Case {
                code: 1,
                words: &[
                    "\"NCCL_IB_HCA: sout\", sets nothing: NCCL skips lines without an equals sign",
                    "-> write NAME=VALUE",
                    "the variable \"export MPIB_MODE\"",
                ],
            },
        ),
        (
            TWO,
            &[("NCCL_IB_HCA", "sout,sup"), ("SOFTVERBS_FAULTS", "sup:link=down")],
            Case { code: 1, words: &["sup:1 (the port is not active", "-> check the cable"] },
        ),
        (
            TWO,
            &[("NCCL_NET_PLUGIN", "none")],
            Case {
                code: 2,
                words: &["NCCL_NET_PLUGIN=\"none\" means no plugin to NCCL", "-> set NCCL_NET_PLUGIN=mpib"],
            },
        ),
    ];
    let lacks = |(devices, env, case): &Host<'_>| case.lacks(&doctor(&fabric(), devices, &[], env));
    none(cases.iter().filter_map(lacks).collect());
}

//= doctor.md: the first lines of a broken pair have the cause and what to do at both hosts
#[test]
fn a_broken_pair_has_cause_and_remedy_in_the_first_lines() {
    type Pair<'a> = ([&'a str; 2], [&'a [(&'a str, &'a str)]; 2], Case<'a>);
    let one = ["a:addr=10.9.0.1/24", "a:addr=10.9.0.2/24"];
    let host = mpib_host_view::hostname();
    let (of_host, on_both) = (format!("a:1 of {host}"), format!("on {host} and {host}: "));
    let cases: [Pair<'_>; 6] = [
        (
            one,
            [&[("NCCL_IB_ROCE_VERSION_NUM", "1")], &[("NCCL_IB_ROCE_VERSION_NUM", "2")]],
            Case {
                code: 2,
                words: &[&of_host, "RoCE v1", "RoCE v2", &on_both, "the same NCCL_IB_ROCE_VERSION_NUM"],
            },
        ),
        (
            ["a:addr=10.9.0.1/24", "a:addr=fd00:9::2/64"],
            [&[("NCCL_IB_ADDR_FAMILY", "AF_INET")], &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]],
            Case { code: 2, words: &[&of_host, "10.9.0.1", "fd00:9::2: not of one family", &on_both] },
        ),
        (
            ["a:addr=10.9.0.1/24,path_mtu=1024", one[1]],
            [&[], &[]],
            Case { code: 2, words: &["a smaller MTU on the way", &on_both, "MTU of switches"] },
        ),
        (
            [one[0], "a:addr=10.9.0.2/24,mtu=1024"],
            [&[], &[]],
            Case {
                code: 1,
                words: &["the MTU is 4096 here and 1024 there", "ip link set mtu 9000 gives 4096"],
            },
        ),
        (
            ["a:addr=10.9.0.1/24;b:addr=10.9.1.1/24", "a:addr=10.9.0.2/24;b:addr=10.9.7.2/24"],
            [
                &[("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")],
                &[("MPIB_HCA_SOUT", "a"), ("MPIB_HCA_SUP", "b")],
            ],
            Case { code: 1, words: &["b:1 to b:1 does not work", &on_both] },
        ),
        (
            one,
            [&[("MPIB_ROUTE", "subnet")], &[]],
            Case {
                code: 2,
                words: &["MPIB_ROUTE is subnet here", "any there", "set it to the same value on both"],
            },
        ),
    ];
    let lacks = |([here, there], [ours, theirs], case): &Pair<'_>| {
        let fabric = fabric();
        let mut listener = mpib(&fabric, there);
        listener.args(["doctor", "--listen", "127.0.0.1:0", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
        let listener = Listener::of(listener.envs(theirs.iter().copied()));
        case.lacks(&doctor(&fabric, here, &[&listener.address], ours))
    };
    none(cases.iter().filter_map(lacks).collect());
}

//= doctor.md: a peer that cannot be reached is named with the likely cause
#[test]
fn a_peer_that_does_not_answer_is_named_with_the_likely_cause() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused =
        Case { code: 3, words: &["Connection refused", "is \"mpib doctor --listen\" running there?"] };
    none(refused.lacks(&doctor(&fabric(), TWO, &[&free], &[])).into_iter().collect());
    // A name that no resolver has (RFC 6761).
    let name = "nosuch.invalid";
    assert!((name, 1).to_socket_addrs().is_err());
    let unknown =
        Case { code: 3, words: &["cannot find the address of nosuch.invalid", "is the name right"] };
    none(unknown.lacks(&doctor(&fabric(), TWO, &[name], &[])).into_iter().collect());
}
