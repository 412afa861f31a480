//! Hosts with an adapter behind each interface, a process on each, and what the connections between
//! them go by.
//!
//! The topology says both what the kernel sees and what the adapters are plugged into: an interface
//! whose name begins with `mlx` has an adapter of that name, with the interface's addresses, on a
//! wire that is the network's. Adapters are numbered in the order of their names. Other interfaces
//! carry control connections alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mpib_tests::NO_WAIT;
use mpib_tests::code::{Code, RemoteError};
use mpib_tests::hosts::watch::{Count, INFO, WARN, adapters, log};
use mpib_tests::hosts::{Hosts, Topology, exchange};
use mpib_tests::peer::Peer;

/// What a test starts from.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) topology: Topology,
    /// Variables of all processes.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// Variables of one host's.
    pub(crate) env_of: Vec<(&'static str, &'static str, &'static str)>,
    /// Host, adapter, and what else is to be said of it to softverbs: `,mtu=1024`.
    pub(crate) adapters: Vec<(&'static str, &'static str, &'static str)>,
    /// Adapters on one network reach each other, whichever their subnets.
    pub(crate) flat: bool,
}

/// The wire of all networks that a router is on.
const ROUTED: usize = 1000;

/// An address with a prefix that contains all of a test's: softverbs has no routers, so adapters
/// that reach each other through one are on one wire and in one subnet.
fn covered(addr: &str) -> String {
    let (ip, _) = addr.split_once('/').unwrap();
    format!("{ip}/{}", if ip.contains(':') { 32 } else { 8 })
}

/// Hosts, and a process on each.
pub(crate) struct Reach {
    pub(crate) hosts: Hosts,
    pub(crate) names: Vec<&'static str>,
    pub(crate) peers: Vec<Peer>,
    /// Connections, as indices of sender and receiver.
    made: Vec<(usize, usize)>,
}

/// The adapters of a host, as softverbs reads them.
fn devices(setup: &Setup, host: &str) -> String {
    let mut adapters: Vec<(&str, usize, Vec<String>)> = Vec::new();
    for (n, network) in setup.topology.networks.iter().enumerate() {
        let routed = network.iter().any(|end| setup.topology.routers.contains(&end.0));
        let wire = if routed { ROUTED } else { n + 1 };
        for (_, interface, addr) in network.iter().filter(|end| end.0 == host && end.1.starts_with("mlx")) {
            let addr = if routed || setup.flat { covered(addr) } else { (*addr).to_owned() };
            match adapters.iter_mut().find(|a| a.0 == *interface) {
                Some(adapter) => adapter.2.push(addr),
                None => adapters.push((interface, wire, vec![addr])),
            }
        }
    }
    adapters.sort_by_key(|a| (a.0.len(), a.0));
    let mut text = String::new();
    for (name, wire, addrs) in adapters {
        let more = setup.adapters.iter().find(|a| (a.0, a.1) == (host, name)).map_or("", |a| a.2);
        write!(text, "{name}:addr={},wire={wire}{more};", addrs.join("+")).unwrap();
    }
    text
}

impl Reach {
    pub(crate) fn up(setup: Setup) -> Self {
        let mut names: Vec<&'static str> = Vec::new();
        for (host, ..) in setup.topology.networks.iter().flatten() {
            if !names.contains(host) && !setup.topology.routers.contains(host) {
                names.push(host);
            }
        }
        let devices: Vec<String> = names.iter().map(|host| devices(&setup, host)).collect();
        let hosts = Hosts::up(setup.topology);
        let start = |(host, devices): (&&str, &String)| {
            let own = setup.env_of.iter().filter(|of| of.0 == *host).map(|of| (of.1, of.2));
            let env: Vec<_> = setup
                .env
                .iter()
                .copied()
                .chain(own)
                .chain([("SOFTVERBS_DEVICES", devices.as_str()), NO_WAIT])
                .collect();
            hosts.peer(host, &env)
        };
        let peers = names.iter().zip(&devices).map(start).collect();
        Self { hosts, names, peers, made: Vec::new() }
    }

    pub(crate) fn index(&self, host: &str) -> usize {
        self.names.iter().position(|name| *name == host).unwrap_or_else(|| panic!("no host {host}"))
    }

    /// A listener of a host's, on this device.
    pub(crate) fn listen(&mut self, host: &str, dev: usize) -> String {
        let at = self.index(host);
        self.peers[at].must(&format!("device {dev}"));
        self.peers[at].ask("listen")
    }

    /// A new connection, for which NCCL asks for these devices: what both ends say of it at INFO.
    pub(crate) fn connect(
        &mut self,
        (from, ours): (&str, usize),
        (to, theirs): (&str, usize),
    ) -> [Vec<(i32, String)>; 2] {
        let handle = self.listen(to, theirs);
        self.join(&handle, (from, ours), to)
    }

    /// As [`connect`](Self::connect), to a listener that is there already.
    pub(crate) fn join(
        &mut self,
        handle: &str,
        (from, ours): (&str, usize),
        to: &str,
    ) -> [Vec<(i32, String)>; 2] {
        let (from, to) = (self.index(from), self.index(to));
        self.peers[to].say("accept");
        self.peers[from].must(&format!("device {ours}"));
        self.peers[from].must(&format!("connect {handle}"));
        assert_eq!(self.peers[to].answer(), "ok", "{} to {}", self.names[from], self.names[to]);
        self.made.push((from, to));
        [from, to].map(|i| log(&mut self.peers[i]))
    }

    /// A connection that is refused; both ends say why, in words that have all of these parts, but
    /// one that the other cannot even be reached from.
    pub(crate) fn refused(&mut self, from: (&str, usize), to: (&str, usize), code: Code, parts: &[&str]) {
        let handle = self.listen(to.0, to.1);
        self.refused_at(&handle, from, to.0, code, parts);
    }

    pub(crate) fn refused_at(
        &mut self,
        handle: &str,
        from: (&str, usize),
        to: &str,
        code: Code,
        parts: &[&str],
    ) {
        let (at, to) = (self.index(from.0), self.index(to));
        self.peers[to].say("accept-fails");
        self.peers[at].must(&format!("device {}", from.1));
        assert_eq!(self.peers[at].code(&format!("connect-fails {handle}")), code, "{parts:?}");
        assert_eq!(self.peers[to].answer(), "ok");
        for i in [at, to] {
            has_all(&warnings(&mut self.peers[i]), parts);
        }
    }

    /// A connection that does not come about because there is no way at all for control
    /// connections.
    pub(crate) fn unreachable(&mut self, from: &str, to: &str, parts: &[&str]) {
        let handle = self.listen(to, 0);
        let from = self.index(from);
        self.peers[from].must("device 0");
        assert_eq!(self.peers[from].code(&format!("connect-fails {handle}")), RemoteError);
        has_all(&warnings(&mut self.peers[from]), parts);
    }

    /// What each adapter of a host has counted.
    pub(crate) fn counts(&mut self, host: usize) -> BTreeMap<String, Count> {
        adapters(&mut self.peers[host]).into_iter().collect()
    }

    /// What has been counted since, of those that have counted anything.
    fn since(&mut self, host: usize, before: &BTreeMap<String, Count>) -> BTreeMap<String, Count> {
        let now = self.counts(host);
        let less = |(name, now): (String, Count)| {
            let before = before.get(&name).copied().unwrap_or_default();
            let since = now.since(before);
            (since != Count::default()).then_some((name, since))
        };
        now.into_iter().filter_map(less).collect()
    }

    /// One message over the latest connection between the two, checked byte by byte at its end;
    /// what the adapters of both count.
    pub(crate) fn message(&mut self, from: &str, to: &str, len: usize) -> [BTreeMap<String, Count>; 2] {
        let (from, to) = (self.index(from), self.index(to));
        let at = self.made.iter().rposition(|made| *made == (from, to)).expect("a connection");
        // Each process numbers its own.
        let before = &self.made[..at];
        let send = before.iter().filter(|made| made.0 == from).count();
        let recv = before.iter().filter(|made| made.1 == to).count();
        let seed = len + 16 * from + to;
        let counted = [from, to].map(|i| self.counts(i));
        self.peers[to].say(&format!("recv {len} {seed} {recv}"));
        self.peers[from].say(&format!("send {len} {seed} {send}"));
        for i in [to, from] {
            assert_eq!(self.peers[i].answer(), "ok");
        }
        [self.since(from, &counted[0]), self.since(to, &counted[1])]
    }

    /// Messages of several sizes, each from one adapter to one, and no byte on any other.
    pub(crate) fn moves_on(&mut self, (from, ours): (&str, &str), (to, theirs): (&str, &str)) {
        for len in [1, 4096, (1 << 20) + 13] {
            let sent = Count { signals: 1, bytes: len as u64, ..Count::default() };
            let received = Count { writes: 1, bytes: 64, ..Count::default() };
            let expected = [(ours, sent), (theirs, received)]
                .map(|(name, count)| BTreeMap::from([(name.to_owned(), count)]));
            assert_eq!(self.message(from, to, len), expected, "{len} bytes from {from} to {to}");
        }
    }

    /// A new connection for which NCCL asks for the first device of both goes from this adapter and
    /// address to that, as both ends say, and data too.
    pub(crate) fn goes(
        &mut self,
        (from, ours, by): (&str, &str, &str),
        (to, theirs, at): (&str, &str, &str),
    ) {
        self.goes_asked((from, ours, by, 0), (to, theirs, at, 0));
    }

    pub(crate) fn goes_asked(
        &mut self,
        (from, ours, by, ask): (&str, &str, &str, usize),
        (to, theirs, at, asked): (&str, &str, &str, usize),
    ) {
        let said = self.connect((from, ask), (to, asked));
        self.said_route(&said, (from, ours, by), (to, theirs, at));
        self.moves_on((from, ours), (to, theirs));
    }

    /// Both ends say which way a connection goes, and warn of nothing.
    pub(crate) fn said_route(
        &self,
        said: &[Vec<(i32, String)>; 2],
        (from, ours, by): (&str, &str, &str),
        (to, theirs, at): (&str, &str, &str),
    ) {
        let ends = [("sending to", ours, by, at), ("receiving from", theirs, at, by)];
        for (said, (verb, rail, here, there)) in said.iter().zip(ends) {
            let part = format!("rails {rail}:1 from {here} to {there} (RoCE v2)");
            let reported = |l: &&(i32, String)| l.0 == INFO && l.1.contains(verb) && l.1.ends_with(&part);
            assert!(said.iter().any(|l| reported(&l)), "{from} to {to}: {part}: {said:?}");
        }
        quiet(said);
    }

    /// One message over every connection, all at once.
    pub(crate) fn exchange(&mut self, len: usize) {
        exchange(&mut self.peers, &self.made, len);
    }

    /// Ends all connections.
    pub(crate) fn close(&mut self) {
        for peer in &mut self.peers {
            peer.must("close");
        }
        self.made.clear();
    }

    /// All hosts end in good order, with nothing to complain about.
    pub(crate) fn finish(mut self) {
        self.close();
        for (peer, name) in self.peers.iter_mut().zip(&self.names) {
            assert_eq!(warnings(peer), [""; 0], "{name}");
        }
        self.peers.into_iter().for_each(Peer::finish);
    }
}

/// Checks that the warnings contain all `parts`. A long warning has several lines, joined by marks
/// at their ends and beginnings.
pub(crate) fn has_all(warnings: &[String], parts: &[&str]) {
    let all = warnings.join(" ").replace(" … NET/MPIB : … ", " ");
    for part in parts {
        assert!(all.contains(part), "{part:?} is not in {warnings:?}");
    }
}

pub(crate) fn warnings(peer: &mut Peer) -> Vec<String> {
    let warnings = log(peer).into_iter().filter(|(level, _)| *level == WARN).map(|(_, text)| text);
    // The last line of a long warning repeats the first one.
    warnings.filter(|text| !text.starts_with("NET/MPIB : in short: ")).collect()
}

/// Nobody warned of anything.
pub(crate) fn quiet(said: &[Vec<(i32, String)>; 2]) {
    assert!(said.iter().flatten().all(|l| l.0 != WARN), "{said:?}");
}

/// All ordered pairs of two.
pub(crate) fn pairs<'a>(hosts: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let to = |from: &'a str| hosts.iter().filter(move |to| **to != from).map(move |to| (from, *to));
    hosts.iter().flat_map(|from| to(from)).collect()
}
