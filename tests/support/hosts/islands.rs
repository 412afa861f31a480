//! Two islands of two hosts, a process on each, and the connections between them.

use super::watch::{Count, INFO, WARN, counts, log, since, warnings};
use super::{Hosts, Topology, exchange};
use crate::TWO_RAILS;
use crate::peer::Peer;

const MIB: usize = 1 << 20;

/// Two of island a, two of island b.
pub const NAMES: [&str; 4] = ["a1", "a2", "b1", "b2"];

pub fn one_island(a: usize, b: usize) -> bool {
    a / 2 == b / 2
}

/// All ordered pairs of two hosts.
pub fn all_pairs() -> Vec<(usize, usize)> {
    (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
}

pub fn two_islands() -> Topology {
    Topology {
        networks: vec![
            vec![
                ("a1", "sout", "10.1.1.1/24"),
                ("a2", "sout", "10.1.1.2/24"),
                ("spine", "leaf-a", "10.1.1.254/24"),
            ],
            vec![
                ("b1", "sout", "10.1.2.3/24"),
                ("b2", "sout", "10.1.2.4/24"),
                ("spine", "leaf-b", "10.1.2.254/24"),
            ],
            vec![("a1", "sup", "10.2.1.1/24"), ("a2", "sup", "10.2.1.2/24")],
            vec![("b1", "sup", "10.2.2.3/24"), ("b2", "sup", "10.2.2.4/24")],
        ],
        routes: vec![
            ("a1", "10.1.0.0/16", "10.1.1.254"),
            ("a2", "10.1.0.0/16", "10.1.1.254"),
            ("b1", "10.1.0.0/16", "10.1.2.254"),
            ("b2", "10.1.0.0/16", "10.1.2.254"),
        ],
        routers: vec!["spine"],
    }
}

/// Variables of a process.
pub type Env = Vec<(&'static str, String)>;

/// The rails of a host: soft0 has the address of its SOUT, soft1 of its SUP. What a rail reaches
/// has the first bits in common with it; for SOUT that is more than its own network, since that is
/// routed.
pub fn two_rails(hosts: &Hosts, host: usize, sup_reach: u8) -> Env {
    let (sout, _) = hosts.addr(NAMES[host], "sout");
    let (sup, _) = hosts.addr(NAMES[host], "sup");
    let mut env: Env = TWO_RAILS.map(|(name, value)| (name, value.to_owned())).to_vec();
    env.push(("SOFTVERBS_DEVICES", format!("soft0:addr={sout}/16;soft1:addr={sup}/{sup_reach}")));
    env
}

/// The four hosts with a process on each, and the connections between them.
pub struct Islands {
    pub hosts: Hosts,
    pub peers: Vec<Peer>,
    /// Connections, as indices of sender and receiver.
    pub made: Vec<(usize, usize)>,
}

/// Queue pairs and rails that a connection must have. Rails are counted from SOUT.
#[derive(Debug, Clone, Copy)]
pub struct Class {
    pub name: &'static str,
    pub qps: [u64; 2],
    pub data: usize,
    pub cts: usize,
}

pub const INTRA: Class =
    Class { name: "(intra-island, all on one rail, another one stands in)", qps: [2, 4], data: 1, cts: 1 };
pub const INTER: Class = Class { name: "(inter-island, all on one rail)", qps: [2, 0], data: 0, cts: 0 };

pub fn class(from: usize, to: usize) -> Class {
    if one_island(from, to) { INTRA } else { INTER }
}

impl Islands {
    /// With these variables for each host.
    pub fn up(topology: Topology, env: impl Fn(&Hosts, usize) -> Env) -> Self {
        let hosts = Hosts::up(topology);
        let start = |(i, name): (usize, &&str)| {
            let env = env(&hosts, i);
            hosts.peer(name, &env.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
        };
        let peers = NAMES.iter().enumerate().map(start).collect();
        Self { hosts, peers, made: Vec::new() }
    }

    /// With these variables on top of those of two rails.
    pub fn with(more: impl Fn(usize) -> Env) -> Self {
        Self::up(two_islands(), |hosts, i| [two_rails(hosts, i, 24), more(i)].concat())
    }

    /// A new connection.
    pub fn connect(&mut self, from: usize, to: usize) {
        let handle = self.peers[to].ask("listen");
        self.peers[to].say("accept");
        self.peers[from].must(&format!("connect {handle}"));
        assert_eq!(self.peers[to].answer(), "ok", "{} to {}", NAMES[from], NAMES[to]);
        self.made.push((from, to));
    }

    /// A new connection of this class, as both ends count and log it.
    pub fn connect_as(&mut self, from: usize, to: usize, class: Class) {
        let before = [from, to].map(|i| counts(&mut self.peers[i]));
        self.connect(from, to);
        for (i, before, verb, other) in
            [(from, before[0], "sending to", to), (to, before[1], "receiving from", from)]
        {
            let peer = &mut self.peers[i];
            let what = format!("{} {verb} {}", NAMES[i], NAMES[other]);
            assert_eq!(since(peer, &before).map(|c| c.qps), class.qps, "queue pairs of {what}");
            let said = log(peer);
            // The control connection keeps to SOUT.
            let (addr, _) = self.hosts.addr(NAMES[other], "sout");
            let reported = |line: &(i32, String)| {
                line.0 == INFO && line.1.contains(&format!("{verb} {addr}:")) && line.1.contains(class.name)
            };
            assert!(said.iter().any(reported), "{what} as {class:?}: {said:?}");
            assert!(said.iter().all(|line| line.0 != WARN), "{what}: {said:?}");
        }
    }

    /// One message over a connection, checked byte by byte at its end; what sender and receiver
    /// count meanwhile.
    pub fn message(&mut self, from: usize, to: usize, len: usize) -> [[Count; 2]; 2] {
        let at = self.made.iter().position(|made| *made == (from, to)).expect("a connection");
        // Each process numbers its own.
        let before = &self.made[..at];
        let send = before.iter().filter(|made| made.0 == from).count();
        let recv = before.iter().filter(|made| made.1 == to).count();
        let seed = len + 16 * from + to;
        let counted = [from, to].map(|i| counts(&mut self.peers[i]));
        self.peers[to].say(&format!("recv {len} {seed} {recv}"));
        self.peers[from].say(&format!("send {len} {seed} {send}"));
        for i in [to, from] {
            assert_eq!(self.peers[i].answer(), "ok");
        }
        [since(&mut self.peers[from], &counted[0]), since(&mut self.peers[to], &counted[1])]
    }

    /// Messages of several sizes over a connection, each on the rails of the class and nowhere
    /// else.
    pub fn messages_as(&mut self, from: usize, to: usize, class: Class) {
        for len in [1, 4096, MIB + 13] {
            let [mut sent, mut received] = [[Count::default(); 2]; 2];
            sent[class.data] = Count { signals: 1, bytes: len as u64, ..Count::default() };
            received[class.cts] = Count { writes: 1, bytes: 64, ..Count::default() };
            let counted = self.message(from, to, len);
            assert_eq!(counted, [sent, received], "{len} bytes from {} to {}", NAMES[from], NAMES[to]);
        }
    }

    /// One message over every connection, all at once; what each host counts meanwhile.
    pub fn exchange(&mut self, len: usize) -> Vec<[Count; 2]> {
        let before: Vec<_> = self.peers.iter_mut().map(counts).collect();
        exchange(&mut self.peers, &self.made, len);
        self.peers.iter_mut().zip(&before).map(|(peer, before)| since(peer, before)).collect()
    }

    /// All hosts end in good order, with nothing to complain about and nothing left.
    pub fn finish(mut self) {
        for peer in &mut self.peers {
            peer.must("close");
            assert_eq!(warnings(peer), [""; 0]);
        }
        let name = std::env::var("SOFTVERBS_FABRIC").unwrap();
        let folders = || std::fs::read_dir("/dev/shm").unwrap().flatten();
        let fabrics = || folders().filter(|folder| folder.path().join(&name).exists()).count();
        assert_eq!(fabrics(), 1);
        self.peers.into_iter().for_each(Peer::finish);
        assert_eq!(fabrics(), 0, "the fabric is left");
    }
}
