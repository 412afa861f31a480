//! What a process on a host has counted and logged.

use crate::peer::Peer;

/// Log levels of NCCL's.
pub const WARN: i32 = 2;
pub const INFO: i32 = 3;

/// Of one rail of one process: queue pairs ever made, writes with an immediate, other writes,
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    pub qps: u64,
    pub signals: u64,
    pub writes: u64,
    pub bytes: u64,
}

impl Count {
    pub fn since(self, before: Self) -> Self {
        Self {
            qps: self.qps - before.qps,
            signals: self.signals - before.signals,
            writes: self.writes - before.writes,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// Of each adapter of a process, with its name, in order.
pub fn adapters(peer: &mut Peer) -> Vec<(String, Count)> {
    let answer = peer.ask("counters");
    let adapter = |text: &str| {
        let (name, numbers) = text.split_once(' ')?;
        let n: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        Some((name.to_owned(), Count { qps: n[0], signals: n[1], writes: n[2], bytes: n[3] }))
    };
    answer.split(',').filter_map(adapter).collect()
}

/// Of SOUT and SUP. A host may have SOUT alone.
pub fn counts(peer: &mut Peer) -> [Count; 2] {
    let mut all = adapters(peer).into_iter().map(|(_, count)| count);
    [all.next().unwrap(), all.next().unwrap_or_default()]
}

/// What has been counted since `before`.
pub fn since(peer: &mut Peer, before: &[Count; 2]) -> [Count; 2] {
    let now = counts(peer);
    [0, 1].map(|i| now[i].since(before[i]))
}

/// What the process has logged since the last call.
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
