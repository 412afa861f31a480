//! Two islands of two hosts, each host a network namespace: SOUT is routed between the islands, SUP
//! ends at its island.

use mpib_proto::Handle;
use mpib_tests::agent::{Agent, Place};
use mpib_tests::code::{InvalidUsage, RemoteError};
use mpib_tests::here;
use mpib_tests::hosts::islands::{
    Class, Env, INTER, INTRA, Islands, NAMES, all_pairs, class, one_island, two_islands, two_rails,
};
use mpib_tests::hosts::watch::{Count, counts, log, since, the_warning, warnings};
use mpib_tests::hosts::{Hosts, on_hosts};
use mpib_tests::pair::until;
use mpib_tests::peer::{Peer, handle_of};
use mpib_tests::process::Role;

const MIB: usize = 1 << 20;

fn all_as_classes(islands: &mut Islands, pairs: &[(usize, usize)]) {
    for (from, to) in pairs {
        islands.connect_as(*from, *to, class(*from, *to));
    }
    for (from, to) in pairs {
        islands.messages_as(*from, *to, class(*from, *to));
    }
}

fn vanilla(test: &str, wanted: fn(usize, usize) -> bool) {
    on_hosts(test, &[], || {
        let mut islands = Islands::with(|_| Vec::new());
        let pairs: Vec<_> = all_pairs().into_iter().filter(|(from, to)| wanted(*from, *to)).collect();
        all_as_classes(&mut islands, &pairs);
        islands.finish();
    });
}

/// What the other tests stand on: the networks are what they are said to be.
#[test]
fn sout_reaches_every_host_and_sup_those_of_its_island() {
    on_hosts(here!(), &[], || {
        let hosts = Hosts::up(two_islands());
        for (from, to) in all_pairs() {
            for (rail, reached) in [("sout", true), ("sup", one_island(from, to))] {
                let (addr, _) = hosts.addr(NAMES[to], rail);
                assert_eq!(hosts.reaches(NAMES[from], addr), reached, "{} to {addr}", NAMES[from]);
            }
        }
    });
}

//= mpib.md: vanilla, intra-island: all data on SUP
#[test]
fn within_islands_all_is_on_sup() {
    vanilla(here!(), one_island);
}

//= mpib.md: vanilla, inter-island: all data on SOUT, no queue pair on SUP
#[test]
fn between_islands_all_is_on_sout() {
    vanilla(here!(), |from, to| !one_island(from, to));
}

/// All pairs of hosts, one after the other and at once.
//= mpib.md: one process has connections of both classes
#[test]
fn hosts_with_connections_of_both_classes_keep_them_apart() {
    on_hosts(here!(), &[], || {
        let mut islands = Islands::with(|_| Vec::new());
        all_as_classes(&mut islands, &all_pairs());
        // Each host sends to one of its island and two of the other, and receives as much.
        let len = 3 * MIB;
        let part = |n: u64| Count { signals: n, writes: n, bytes: n * (len as u64 + 64), ..Count::default() };
        for _ in 0..5 {
            assert_eq!(islands.exchange(len), [[part(2), part(1)]; 4]);
        }
        islands.finish();
    });
}

/// One agent for each host.
struct Agents {
    agents: Vec<Agent>,
    /// The agents' folders, which exist as long as the agents run.
    _places: Vec<Place>,
}

impl Agents {
    fn places() -> Vec<Place> {
        NAMES.iter().map(|_| Place::create()).collect()
    }

    /// Advanced mode, and where the agent of `host` is found.
    fn env(places: &[Place], host: usize) -> Env {
        let options = &places[host].options;
        vec![
            ("MPIB_MODE", "1".into()),
            ("MPIB_AGENT_SOCKET", options.sockets[0].to_str().unwrap().into()),
            ("MPIB_HINTS", options.files[0].to_str().unwrap().into()),
        ]
    }

    fn start(hosts: &Hosts, places: Vec<Place>) -> Self {
        let start = |(name, place): (&&str, &Place)| place.agent_by(hosts.process(name, Role::Agent));
        let agents = NAMES.iter().zip(&places).map(start).collect();
        Self { agents, _places: places }
    }

    /// Each process has registered so many ends of connections with its agent.
    fn registered(&mut self, ends: usize) {
        for agent in &mut self.agents {
            (0..ends).for_each(|_| drop(agent.event("registered")));
        }
    }

    /// The share of what `from` sends to `to`.
    fn set(&mut self, from: usize, to: usize, share: u64) {
        // Addresses end in the number of the host, from 1.
        self.agents[from].tell(&format!("set {} {share}", to + 1));
    }
}

/// Bytes of a message that belong on SUP.
fn on_sup(len: usize, share: u64) -> u64 {
    len as u64 * share / 1024 / 128 * 128
}

/// 1 MiB after 1 MiB until SUP carries as much as `new` says; before that as much as `old`.
fn until_split(islands: &mut Islands, (from, to): (usize, usize), old: u64, new: u64) {
    until("the new share", || {
        let [sent, received] = islands.message(from, to, MIB);
        let part = |bytes: u64| Count { signals: u64::from(bytes > 0), bytes, ..Count::default() };
        let split = |share| [part(MIB as u64 - on_sup(MIB, share)), part(on_sup(MIB, share))];
        let what = format!("{} to {}, share {old}, then {new}", NAMES[from], NAMES[to]);
        assert!(sent == split(old) || sent == split(new), "{what}: {sent:?}");
        let cts = Count { writes: 1, bytes: 64, ..Count::default() };
        assert_eq!(received, [cts, Count::default()], "{what}");
        (sent == split(new)).then_some(())
    });
}

/// The split of each connection is that which the agent of its sender has for this pair of hosts,
/// in both classes: SUP reaches the other island here, as where something relays it.
//= mpib.md: advanced: both rails are joined, the hint splits each transfer
#[test]
fn an_agent_on_each_host_splits_what_it_sends() {
    on_hosts(here!(), &[], || {
        let places = Agents::places();
        let env = |hosts: &Hosts, i: usize| [two_rails(hosts, i, 16), Agents::env(&places, i)].concat();
        let mut islands = Islands::up(two_islands(), env);
        let mut agents = Agents::start(&islands.hosts, places);
        for (from, to) in all_pairs() {
            let name = if one_island(from, to) { "(intra-island, split)" } else { "(inter-island, split)" };
            islands.connect_as(from, to, Class { name, qps: [2, 4], data: 0, cts: 0 });
        }
        agents.registered(6);
        let shares = [0, 1, 256, 512, 768, 1023, 1024];
        let share = |round: usize, (from, to): (usize, usize)| match round {
            0 => 0,
            _ => shares[(round + 3 * from + to) % shares.len()],
        };
        for round in 1..=3 {
            for pair in all_pairs() {
                agents.set(pair.0, pair.1, share(round, pair));
            }
            for pair in all_pairs() {
                until_split(&mut islands, pair, share(round - 1, pair), share(round, pair));
            }
        }
        islands.finish();
        drop(agents);
    });
}

fn short_probes() -> Env {
    mpib_tests::SHORT.map(|(name, value)| (name, value.to_owned())).into()
}

/// If SUP does not reach the other island, an advanced connection to it uses SOUT alone, regardless
/// of its hint.
//= mpib.md: advanced: hints do not use a SUP that does not reach the peer
#[test]
fn hints_do_not_bring_sup_to_the_other_island() {
    on_hosts(here!(), &[], || {
        let places = Agents::places();
        // With failover the connections would try SUP again and again.
        let off = vec![("MPIB_FAILOVER", "0".to_owned())];
        let mut islands = Islands::with(|i| [Agents::env(&places, i), short_probes(), off.clone()].concat());
        let mut agents = Agents::start(&islands.hosts, places);
        let pairs = [(0, 1, 512), (0, 2, 0), (3, 1, 0), (3, 2, 512)];
        for (from, to, share) in pairs {
            islands.connect(from, to);
            for i in [from, to] {
                match share {
                    0 => the_warning(
                        &mut islands.peers[i],
                        &["rails that do not work to", "soft1:1", "goes on with SOUT alone"],
                    ),
                    _ => assert_eq!(warnings(&mut islands.peers[i]), [""; 0]),
                }
            }
        }
        // Without SUP there is nothing to split: such connections are not registered.
        agents.registered(1);
        agents.set(0, 1, 512);
        agents.set(3, 2, 512);
        for (from, to, share) in pairs {
            until_split(&mut islands, (from, to), 0, share);
        }
        for agent in &mut agents.agents {
            assert_eq!(agent.so_far("registered"), [""; 0]);
        }
        islands.finish();
        drop(agents);
    });
}

/// Every host may have a 172.17.0.1; also where it is the first that is tried, the right host is
/// found.
//= faults.md: 59: several hosts have one address: the connector goes on to the right listener
//= mpib.md: an address that every host has does no harm
#[test]
fn an_address_that_every_host_has_does_no_harm() {
    on_hosts(here!(), &[], || {
        let mut topology = two_islands();
        topology.networks.extend(NAMES.map(|name| vec![(name, "docker0", "172.17.0.1/16")]));
        let first = |i: usize| match i % 2 {
            0 => vec![("NCCL_SOCKET_IFNAME", "docker0,sout".to_owned())],
            _ => Vec::new(),
        };
        let mut islands = Islands::up(topology, |hosts, i| [two_rails(hosts, i, 24), first(i)].concat());
        all_as_classes(&mut islands, &all_pairs());
        islands.finish();
    });
}

/// Addresses that a listener of the process names, in order.
fn offered(peer: &mut Peer) -> (String, Vec<String>) {
    let handle = peer.ask("listen");
    let addrs =
        Handle::decode(&handle_of(&handle)).unwrap().addrs().iter().map(ToString::to_string).collect();
    (handle, addrs)
}

//= mpib.md: control connections use SOUT's network unless the settings choose another
//= configuration.md: NCCL_SOCKET_IFNAME
//= configuration.md: MPIB_OOB_IF
#[test]
fn control_connections_are_on_sout_unless_the_settings_say_otherwise() {
    on_hosts(here!(), &[], || {
        let mut islands = Islands::with(|i| match i {
            0 => Vec::new(),
            1 => vec![("NCCL_SOCKET_IFNAME", "sup".into())],
            2 => vec![
                ("NCCL_SOCKET_IFNAME", "sup".into()),
                ("MPIB_OOB_IF", "=sout".into()),
                ("MPIB_CONNECT_TIMEOUT_MS", "1000".into()),
            ],
            _ => vec![("MPIB_OOB_IF", "=sup".into())],
        });
        let down = islands.hosts.command(NAMES[3], "ip").args(["link", "set", "sup", "down"]).status();
        assert!(down.unwrap().success());
        let peers = &mut islands.peers;
        assert_eq!(offered(&mut peers[0]).1, ["10.1.1.1/24"]);
        let (handle, addrs) = offered(&mut peers[1]);
        assert_eq!(addrs, ["10.2.1.2/24"]);
        assert_eq!(offered(&mut peers[2]).1, ["10.1.2.3/24"]);
        // An interface that went down after init is named, and those that are up.
        assert_eq!(peers[3].code("listen-fails"), InvalidUsage);
        the_warning(&mut peers[3], &["MPIB_OOB_IF=\"=sup\"", "up are: ", "sout 10.1.2.4/24"]);
        // Over SUP another island is out of reach, which is said when the time is over; a host of
        // the own one is not.
        assert_eq!(peers[2].code(&format!("connect-fails {handle}")), RemoteError);
        the_warning(&mut peers[2], &["10.2.1.2:", "unreachable"]);
        peers[1].say("accept");
        peers[0].must(&format!("connect {handle}"));
        assert_eq!(peers[1].answer(), "ok");
        let said = log(&mut peers[0]);
        assert!(said.iter().any(|line| line.1.contains("sending to 10.2.1.2:")), "{said:?}");
        islands.finish();
    });
}

/// Connections within an island to and from b2, whose SUP is of no use; and the refusal where both
/// are strict.
fn without_sup(test: &str, lacking: fn(&Hosts) -> Env, qps: [u64; 2], parts: &'static [&'static str]) {
    let env = move |hosts: &Hosts, i: usize| match i {
        3 => lacking(hosts),
        _ => [two_rails(hosts, i, 24), short_probes()].concat(),
    };
    on_hosts(test, &[], || {
        let mut islands = Islands::up(two_islands(), env);
        for (from, to) in [(2, 3), (3, 2)] {
            let before = [from, to].map(|i| counts(&mut islands.peers[i]));
            islands.connect(from, to);
            for (i, before) in [from, to].into_iter().zip(before) {
                let peer = &mut islands.peers[i];
                assert_eq!(since(peer, &before).map(|c| c.qps), qps, "{}", NAMES[i]);
                // One without SUP has no SOUT either.
                let left = if i == 3 && qps[0] == 1 { "soft0:1 alone" } else { "SOUT alone" };
                the_warning(peer, &[parts, &["goes on with ", left]].concat());
            }
            islands.messages_as(from, to, INTER);
        }
        // Nobody else is harmed.
        islands.connect_as(0, 1, INTRA);
        islands.connect_as(0, 2, INTER);
        islands.messages_as(0, 1, INTRA);
        let strict = [2, 3].map(|i| {
            let env = [env(&islands.hosts, i), vec![("MPIB_STRICT", "1".into())]].concat();
            islands
                .hosts
                .peer(NAMES[i], &env.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
        });
        let [mut connector, mut acceptor] = strict;
        let handle = acceptor.ask("listen");
        acceptor.say("accept-fails");
        assert_eq!(connector.code(&format!("connect-fails {handle}")), InvalidUsage);
        assert_eq!(acceptor.answer(), "ok");
        for mut peer in [connector, acceptor] {
            the_warning(&mut peer, &[parts, &["MPIB_STRICT=1"]].concat());
            peer.finish();
        }
        islands.finish();
    });
}

/// It has no such adapter, and so no settings that name one.
//= mpib.md: a host without a working SUP is reached on SOUT unless strict
#[test]
fn a_host_without_sup_is_reached_on_sout_unless_strict() {
    let lacking = |hosts: &Hosts| {
        let (sout, _) = hosts.addr("b2", "sout");
        vec![("SOFTVERBS_DEVICES", format!("soft0:addr={sout}/16"))]
    };
    without_sup(here!(), lacking, [1, 0], &["rails without a route to", "soft1:1"]);
}

/// It is there, and on another network than it should be.
//= mpib.md: a host without a working SUP is reached on SOUT unless strict
#[test]
fn a_host_whose_sup_leads_elsewhere_is_reached_on_sout_unless_strict() {
    let lacking = |hosts: &Hosts| {
        let (sout, _) = hosts.addr("b2", "sout");
        let mut env = [two_rails(hosts, 3, 24), short_probes()].concat();
        env.push(("SOFTVERBS_DEVICES", format!("soft0:addr={sout}/16;soft1:addr=10.2.9.4/24")));
        env
    };
    let parts = &["rails that do not work to", "soft1:1", "intra-island data belongs on SUP (MPIB_MODE=0)"];
    without_sup(here!(), lacking, [2, 4], parts);
}
