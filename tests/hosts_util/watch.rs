//! What a process on a host has counted and logged.

use crate::common::peer::Peer;

/// Log levels of NCCL's.
pub const WARN: i32 = 2;
pub const INFO: i32 = 3;

/// Of one rail of one process: queue pairs ever made, writes that tell the receiver, other writes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    pub qps: u64,
    pub signals: u64,
    pub writes: u64,
    pub bytes: u64,
}

pub fn counts(peer: &mut Peer) -> [Count; 2] {
    let answer = peer.ask("counters");
    let device = |text: &str| {
        let numbers: Vec<u64> = text.split(' ').skip(1).map(|n| n.parse().unwrap()).collect();
        Count { qps: numbers[0], signals: numbers[1], writes: numbers[2], bytes: numbers[3] }
    };
    // A host may have SOUT alone.
    let mut devices = answer.split(',').map(device);
    [devices.next().unwrap(), devices.next().unwrap_or_default()]
}

/// What has been counted since `before`.
pub fn since(peer: &mut Peer, before: &[Count; 2]) -> [Count; 2] {
    let now = counts(peer);
    [0, 1].map(|i| Count {
        qps: now[i].qps - before[i].qps,
        signals: now[i].signals - before[i].signals,
        writes: now[i].writes - before[i].writes,
        bytes: now[i].bytes - before[i].bytes,
    })
}

/// What the process has logged since it was asked last.
pub fn log(peer: &mut Peer) -> Vec<(i32, String)> {
    let answer = peer.ask("log");
    let line =
        |line: &str| line.split_once(' ').map(|(level, text)| (level.parse().unwrap(), text.to_owned()));
    answer.split('\t').filter_map(line).collect()
}

pub fn warnings(peer: &mut Peer) -> Vec<String> {
    log(peer).into_iter().filter(|(level, _)| *level == WARN).map(|(_, text)| text).collect()
}

/// The one warning of a process, which has all of these parts.
pub fn the_warning(peer: &mut Peer, parts: &[&str]) {
    let said = warnings(peer);
    assert_eq!(said.len(), 1, "{said:?}");
    for part in parts {
        assert!(said[0].contains(part), "{part:?} is not in {said:?}");
    }
}
