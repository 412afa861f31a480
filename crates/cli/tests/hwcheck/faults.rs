//! Faults that `mpib hwcheck` has to find.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use super::{Pair, outage, ports, programs::FAST};
use crate::fake::fake;
use crate::two_hosts::TwoHosts;

/// A fault, and the step that has to find it.
struct Seed {
    fault: &'static str,
    step: &'static str,
    /// What the failure says: one of several texts between bars.
    says: &'static str,
    /// Changes the pair, and returns options.
    seed: fn(&mut Pair) -> String,
}

impl Seed {
    fn needs_hosts(&self) -> bool {
        self.step == "network"
    }
}

fn of_fake(pair: &mut Pair, fault: &str) {
    pair.plugin = fake().to_owned();
    for env in &mut pair.env {
        env.push(("FAKE_FAULT".into(), fault.into()));
    }
}

fn faults(pair: &mut Pair, end: usize, script: &str) -> String {
    pair.env[end].push(("SOFTVERBS_FAULTS".into(), script.into()));
    String::new()
}

/// A rail that does not come back is waited for.
const NEVER_BACK: &str = " --budget 12";

const SEEDS: [Seed; 34] = [
    Seed {
        fault: "a wrong byte",
        step: "data",
        says: "expected 0x",
        seed: |pair| {
            of_fake(pair, "corrupt");
            String::new()
        },
    },
    Seed {
        fault: "a missing byte",
        step: "data",
        says: "nothing was written",
        seed: |pair| {
            of_fake(pair, "truncate");
            String::new()
        },
    },
    Seed {
        fault: "the data of an earlier message",
        step: "data",
        says: "it is message",
        seed: |pair| {
            of_fake(pair, "stale");
            String::new()
        },
    },
    Seed {
        fault: "a byte behind the end",
        step: "data",
        says: "behind",
        seed: |pair| {
            of_fake(pair, "overrun");
            String::new()
        },
    },
    Seed {
        fault: "a wrong size",
        step: "data",
        says: "size",
        seed: |pair| {
            of_fake(pair, "size");
            String::new()
        },
    },
    Seed {
        fault: "a completion that never comes",
        step: "data",
        says: "did not end in 3 s",
        seed: |pair| {
            of_fake(pair, "stall");
            "--budget 3".into()
        },
    },
    Seed {
        fault: "a crash",
        step: "data",
        says: "died of signal 6",
        seed: |pair| {
            of_fake(pair, "crash");
            String::new()
        },
    },
    Seed {
        fault: "stale memory of a GPU",
        step: "gpu",
        says: "it is message",
        seed: |pair| {
            of_fake(pair, "stale");
            pair.has_gpus();
            for env in &mut pair.env {
                env.push(("FAKE_GPU".into(), "1".into()));
            }
            String::new()
        },
    },
    Seed {
        fault: "a rail at half its speed",
        step: "data",
        says: "expected 90 % of 8",
        seed: |pair| {
            pair.devices[1] = pair.devices[1].replace("10.9.1.2/24", "10.9.1.2/24,rate=500MB");
            "--speed 8".into()
        },
    },
    Seed {
        fault: "a completion with an error",
        step: "data",
        says: "the connection has no rail sup:1 here",
        seed: |pair| faults(pair, 0, "sup:status=11,at=40,only=imm"),
    },
    Seed {
        fault: "a smaller MTU there",
        step: "host",
        says: "the MTU is 4096 here and 1024 there",
        seed: |pair| {
            pair.devices[1] = ports(2, ",mtu=1024");
            String::new()
        },
    },
    Seed {
        fault: "a smaller MTU in the network",
        step: "host",
        says: "sup:1 to sup:1",
        seed: |pair| {
            pair.devices = pair.devices.clone().map(|all| all.replace("sup:", "sup:path_mtu=1024,"));
            String::new()
        },
    },
    Seed {
        fault: "a rail that is down there",
        step: "host",
        says: "sup:1",
        seed: |pair| faults(pair, 1, "sup:link=down"),
    },
    Seed {
        fault: "a rail that carries one direction only",
        step: "host",
        says: "nothing came through",
        seed: |pair| faults(pair, 1, "sup:silence=in"),
    },
    Seed {
        fault: "settings that differ",
        step: "host",
        says: "MPIB_SOUT_QP is 3 here and 1 there",
        seed: |pair| {
            pair.env[0].push(("MPIB_SOUT_QP".into(), "3".into()));
            String::new()
        },
    },
    Seed {
        fault: "a link that does not come back",
        step: "link",
        says: "carries no data",
        seed: |pair| outage(pair, "link", "link sup@10.9.1.1 down", "true") + NEVER_BACK,
    },
    Seed {
        fault: "an outage of another rail",
        step: "link",
        says: "while it was out of service",
        seed: |pair| outage(pair, "link", "true", "true"),
    },
    Seed {
        fault: "an outage of the only rail that has no effect",
        step: "link",
        says: "the longest stall is",
        seed: |pair| {
            pair.devices = [1, 2].map(|host| format!("sup:addr=10.9.1.{host}/24"));
            outage(pair, "link", "true", "true") + " --time 2"
        },
    },
    Seed {
        fault: "a command without the right to act",
        step: "link",
        says: "\"exit 2\" exited with status 2",
        seed: |pair| outage(pair, "link", "exit 2", "true"),
    },
    Seed {
        fault: "a silent loss that is noticed late",
        step: "link",
        says: "no message completed for",
        seed: |pair| {
            pair.env.iter_mut().for_each(|env| env.push(("MPIB_STALL_MS".into(), "2500".into())));
            let options = outage(pair, "link", "fault sup@10.9.1.1 silence=both", "heal sup@10.9.1.1");
            options + " --limit 1"
        },
    },
    Seed {
        fault: "an adapter that cannot be opened again",
        step: "driver",
        says: "carries no data",
        seed: |pair| outage(pair, "driver", "fault sup@10.9.1.1 fatal", "true") + NEVER_BACK,
    },
    Seed {
        fault: "a dead peer that nobody reports",
        step: "death",
        says: "a process of",
        seed: |pair| {
            of_fake(pair, "stall");
            "--budget 6".into()
        },
    },
    Seed {
        fault: "slow ibv_destroy_qp",
        step: "control",
        says: "destroy 1.2",
        seed: |pair| {
            pair.devices[1] = ports(2, ",verb_time=destroy_qp:1200ms");
            "--limit 1".into()
        },
    },
    Seed {
        fault: "a close that takes long in all",
        step: "control",
        says: "16 connections closed there in ",
        seed: |pair| {
            // The verb itself, and one connection, are within the limit.
            pair.devices[1] = ports(2, ",verb_time=destroy_qp:120ms");
            "--limit 1 --connections 16".into()
        },
    },
    Seed {
        fault: "slow ibv_modify_qp",
        step: "control",
        says: "modify to RTS 1.2",
        seed: |pair| {
            pair.devices[1] = ports(2, ",verb_time=modify_qp:400ms");
            "--limit 1".into()
        },
    },
    Seed {
        fault: "a connection that ends when its control connection is silent",
        step: "network",
        says: "was lost with",
        seed: |pair| {
            // Neither end dials again if one has no failover.
            pair.env[1].push(("MPIB_FAILOVER".into(), "0".into()));
            "--outages --network-time 4".into()
        },
    },
    Seed {
        fault: "a silence of the network that has no effect",
        step: "network",
        says: "still answers after \"true\"",
        seed: |_| "--network-down true --network-up true --network-time 2".into(),
    },
    Seed {
        fault: "a data path that waits for the network",
        step: "network",
        says: "expected at most 1s",
        seed: |pair| {
            pair.devices = [1, 2].map(|host| format!("sup:addr=10.9.1.{host}/24"));
            let [silent, heard] =
                ["fault sup@10.9.1.1 silence=both", "heal sup@10.9.1.1"].map(|ctl| pair.ctl(ctl));
            let route = "ip route add blackhole 192.0.2.2/32";
            format!(
                "--network-down '{route}; {silent}; sleep 2; {heard}' --network-up 'ip route del blackhole \
                 192.0.2.2/32' --network-time 2 --limit 1"
            )
        },
    },
    Seed {
        fault: "a lost acknowledgement",
        step: "steady",
        says: "the connection has no rail sup:1 here|a rail failed and came back here",
        seed: |pair| faults(pair, 0, "sup:lost_ack,at=10,only=imm,then=alive"),
    },
    Seed {
        fault: "a rail that the plugin cannot fill",
        step: "data",
        says: "the rate of ib_write_bw",
        seed: |pair| {
            // The plugin has less in flight than such a long way needs.
            pair.devices = [1, 2].map(|host| format!("sup:addr=10.9.1.{host}/24,rate=400MB,lat=10ms"));
            "--least-of-perftest 95 --sizes 8 --time 1 --budget 60".into()
        },
    },
    Seed {
        fault: "an ib_write_bw that is faster",
        step: "data",
        says: "expected 95 % of 9999.000, the rate of ib_write_bw",
        seed: |pair| {
            pair.replace(0, "ib_write_bw", FAST);
            "--least-of-perftest 95 --sizes 8 --budget 60".into()
        },
    },
    Seed {
        fault: "wrong values in a collective",
        step: "nccl",
        says: "over the plugin: 3 results have wrong values",
        seed: |pair| pair.has_nccl_tests("over IB 45.02 '0 OK'; over MPIB 45.02 '3 FAILED'"),
    },
    Seed {
        fault: "collectives that are slower over the plugin",
        step: "nccl",
        says: "expected 97 % of 45.020",
        seed: |pair| pair.has_nccl_tests("over IB 45.02 '0 OK'; over MPIB 43.02 '0 OK'"),
    },
    Seed {
        fault: "collectives that end over the plugin only",
        step: "nccl",
        says: "exited with status 3",
        seed: |pair| pair.has_nccl_tests("over IB 45.02 '0 OK'; [ $NCCL_NET = IB ] || exit 3"),
    },
];

/// Runs the seeds of these numbers, some at a time, and returns what was not found.
fn missed(numbers: &[usize]) -> Vec<String> {
    let (next, missed) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)) {
                    let seed = &SEEDS[*number];
                    let mut pair = Pair::new("");
                    if seed.needs_hosts() {
                        pair.hosts = TwoHosts::up();
                    }
                    let options = (seed.seed)(&mut pair);
                    let found = pair.run(&format!("--step {} {options}", seed.step));
                    let texts = found.texts(seed.step, "fail");
                    let is_found = found.code == 1
                        && texts.iter().any(|text| seed.says.split('|').any(|says| text.contains(says)));
                    if !is_found {
                        missed.lock().unwrap().push(format!("{}: {texts:#?}", seed.fault));
                    }
                }
            });
        }
    });
    missed.into_inner().unwrap()
}

//= hwcheck.md: each seeded fault is found by the step for it
#[test]
fn every_seeded_fault_is_found_by_its_step() {
    // make hwcheck-faults runs all.
    let is_all = std::env::var_os("HWCHECK_FAULTS").is_some_and(|value| value == "all");
    let mut numbers: Vec<usize> = (0..SEEDS.len()).filter(|n| is_all || n % 3 == 1).collect();
    if TwoHosts::up().is_none() {
        numbers.retain(|n| !SEEDS[*n].needs_hosts());
    }
    let missed = missed(&numbers);
    println!("{} of {} seeded faults", numbers.len() - missed.len(), numbers.len());
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}
