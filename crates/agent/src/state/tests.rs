//! Decisions, seen through the memory files that plugins read.

use std::net::Ipv4Addr;
use std::time::Duration;

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::PortScale;
use nccl_net_mpib_agent_iface::agent::memory::Memory;

use super::*;
use crate::observe::Observation;

fn agent(config: &str) -> Agent {
    Agent::new(Config::parse(config).unwrap(), None, Kept::default())
}

fn connection(conn_id: u32, last: u8) -> Register {
    let ip = |net, last| Ipv4Addr::new(10, net, 0, last);
    Register { conn_id, sout_src: ip(0, 1), sout_dst: ip(0, last), sup_src: ip(1, 1), sup_dst: ip(1, last) }
}

fn user(uid: u32) -> Peer {
    Peer { pid: 4711, uid, owner: Owner::User(uid) }
}

/// A process with one connection to each of these hosts, and its memory file.
fn process(agent: &mut Agent, hosts: &[u8]) -> (ProcessId, Memory) {
    let id = agent.connect(user(0)).unwrap();
    for (conn_id, host) in hosts.iter().enumerate() {
        agent.register(id, &connection(conn_id as u32, *host), true).unwrap();
    }
    (id, Memory::open(agent.descriptor(id).unwrap()).unwrap())
}

/// What a plugin finds in a slot: the other host and the share.
fn entry(memory: &Memory, slot: u8) -> (u8, u16) {
    let hint = memory.flow(slot).read().unwrap();
    (hint.dst.octets()[3], hint.share())
}

fn ports() -> Observation {
    Observation { ports: Some(["a:1".into(), "b:1".into()]), ..Observation::default() }
}

fn seen(share: Option<u16>, sout: u64, sup: u64) -> Observation {
    Observation { share, goodput: [Some(sout), Some(sup)], ..ports() }
}

const STEP: Duration = Duration::from_millis(50);

//= agent.md: the policy static: the first rule that fits gives the share
#[test]
fn static_shares_are_those_of_the_rules_and_change_with_them() {
    let mut agent =
        agent("policy = \"static\"\ndefault_share = 7\n[[shares]]\ndestination = \"10.0.0.2\"\nshare = 341");
    let (id, memory) = process(&mut agent, &[2, 3]);
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 341), (3, 7)));
    agent.reload(Config::parse("policy = \"static\"\ndefault_share = 9").unwrap());
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 9), (3, 9)));
    assert!(
        agent.set_share([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 5).unwrap_err().contains("\"static\"")
    );
    agent.disconnect(id);
    assert_eq!(agent.snapshot().processes, []);
}

//= agent.md: the policy external: shares are set by another program
#[test]
fn external_shares_are_set_one_by_one_and_outlive_a_restart() {
    let mut agent = agent("policy = \"external\"\ndefault_share = 100");
    let (_, memory) = process(&mut agent, &[2, 3]);
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    assert_eq!(agent.set_share(src, dst, 700), Ok(1));
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 700), (3, 100)));
    assert_eq!(agent.set_share(src, [10, 0, 0, 9].into(), 5), Ok(0), "before the flow exists");
    assert!(agent.set_share(src, dst, 1025).is_err());

    let mut next = Agent::new(agent.config().clone(), None, agent.kept());
    let (_, memory) = process(&mut next, &[9, 2]);
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((9, 5), (2, 700)));
}

//= agent.md: a drained port has no share, and its scale is 0 in every process
#[test]
fn a_drained_port_has_no_share_until_it_is_given_back() {
    let mut agent = agent("default_share = 341");
    let (id, memory) = process(&mut agent, &[2]);
    let (other, unknown) = process(&mut agent, &[2]);
    agent.observe(id, &ports(), STEP);
    assert!(agent.ports_changed().is_empty());

    agent.drain("b:1", true, Order::by("root")).unwrap();
    assert_eq!(entry(&memory, 0), (2, 0), "SUP");
    assert_eq!(entry(&unknown, 0), (2, 341), "a process whose ports are not known has only the scale");
    let scale = |name: &str| PortScale { name: name.into(), scale: 0 };
    assert_eq!((memory.ports(), unknown.ports()), (Some(vec![scale("b:1")]), Some(vec![scale("b:1")])));
    assert_eq!(agent.ports_changed(), [id, other]);
    assert!(agent.ports_changed().is_empty(), "once");

    agent.drain("a:1", true, Order::by("root")).unwrap();
    assert_eq!(entry(&memory, 0), (2, 341), "both: as usual");
    agent.drain("b:1", false, Order::by("root")).unwrap();
    assert_eq!(entry(&memory, 0), (2, 1024), "SOUT");
    agent.drain("a:1", false, Order::by("root")).unwrap();
    assert_eq!((entry(&memory, 0), memory.ports()), ((2, 341), Some(vec![])));
    assert!(agent.drain("nonsense", true, Order::by("root")).is_err());
    let events: Vec<_> = agent.log_lines();
    assert_eq!(events[0], "port b:1 is out of use, by root");
    assert_eq!(events.len(), 4);
    assert_eq!(agent.log_lines(), [""; 0], "each is logged once");
}

//= agent.md: drain is a policy of all flows, of a rule's flows, and of a port
#[test]
fn drained_flows_have_no_share_and_drained_ports_no_scale() {
    let config = |policy: &str| {
        let rules = "[[shares]]\ndestination = \"10.0.0.3\"\npolicy = \"drain\"\n[[ports]]\nport = \"c:1\"\npolicy = \"drain\"";
        Config::parse(&format!("policy = {policy:?}\ndefault_share = 341\n{rules}")).unwrap()
    };
    let mut agent = Agent::new(config("static"), None, Kept::default());
    let (id, memory) = process(&mut agent, &[2, 3]);
    agent.observe(id, &ports(), STEP);
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 341), (3, 0)));
    assert_eq!(memory.ports(), Some(vec![PortScale { name: "c:1".into(), scale: 0 }]));
    agent.drain("a:1", true, Order::by("root")).unwrap();
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 1024), (3, 1024)), "SOUT is out of use");
    agent.drain("a:1", false, Order::by("root")).unwrap();
    let external = agent.set_share([10, 0, 0, 1].into(), [10, 0, 0, 3].into(), 5).unwrap_err();
    assert!(external.contains("the policy \"drain\" decides this share"), "{external}");
    agent.reload(config("drain"));
    assert_eq!((entry(&memory, 0), entry(&memory, 1)), ((2, 0), (3, 0)));
    agent.reload(config("measured"));
    assert_eq!((entry(&memory, 0).1 > 0, entry(&memory, 1).1), (true, 0));
    agent.drain("c:1", false, Order::by("root")).unwrap();
    assert_eq!(memory.ports(), Some(vec![]), "an operator's word counts more than the configuration");
}

//= agent.md: drains outlive a restart of the agent
#[test]
fn drains_are_those_of_the_configuration_and_what_was_done_since() {
    let mut first = agent("drain = [\"a:1\", \"c:1\"]");
    first.drain("a:1", false, Order::by("root")).unwrap();
    first.drain("b:1", true, Order::by("root")).unwrap();
    assert_eq!(first.snapshot().drained, ["b:1", "c:1"]);
    let mut next = Agent::new(first.config().clone(), None, first.kept());
    assert_eq!(next.snapshot().drained, ["b:1", "c:1"]);
    // What the file says in the end is not kept twice.
    next.reload(Config::parse("drain = [\"b:1\"]").unwrap());
    assert_eq!((next.snapshot().drained, next.kept()), (vec!["b:1".into()], Kept::default()));
    next.reload(Config::parse("").unwrap());
    assert_eq!(next.snapshot().drained, [""; 0]);
}

//= agent.md: the policy measured continues with the share that a process has
#[test]
fn a_measured_share_continues_where_it_was_and_follows_the_rails() {
    let mut agent = agent("policy = \"measured\"");
    let id = agent.connect(user(0)).unwrap();
    // What an earlier agent has left in the process.
    agent.observe(id, &Observation { share: Some(700), ..ports() }, STEP);
    agent.register(id, &connection(1, 2), true).unwrap();
    let memory = Memory::open(agent.descriptor(id).unwrap()).unwrap();
    assert_eq!(entry(&memory, 0), (2, 700));
    for _ in 0..4 {
        agent.observe(id, &seen(Some(700), 4 << 30, 2 << 30), STEP);
    }
    let share = entry(&memory, 0).1;
    assert!(share.abs_diff(341) <= 10, "{share}");
    agent.drain("b:1", true, Order::by("root")).unwrap();
    agent.observe(id, &Observation { goodput: [Some(4 << 30), None], ..ports() }, STEP);
    assert_eq!(entry(&memory, 0).1, 0);
    agent.drain("b:1", false, Order::by("root")).unwrap();
    assert_eq!(entry(&memory, 0).1, share, "as before");
}

//= agent.md: a process sees its own flows only
#[test]
fn each_process_has_its_own_file_and_its_own_slots() {
    let mut agent = agent("default_share = 5");
    let (_, one) = process(&mut agent, &[2]);
    let (_, other) = process(&mut agent, &[3, 4]);
    assert_eq!((entry(&one, 0), entry(&one, 1)), ((2, 5), (0, 0)));
    assert_eq!((entry(&other, 0), entry(&other, 1)), ((3, 5), (4, 5)));
}

//= agent.md: limits per user and per process
#[test]
fn a_user_and_a_process_have_limits() {
    let mut agent =
        agent("[limits]\nprocesses_per_user = 2\nconnections_per_process = 3\nconnections_per_user = 4");
    let ids: Vec<_> = (0..2).map(|_| agent.connect(user(7)).unwrap()).collect();
    assert!(agent.connect(user(7)).unwrap_err().to_string().contains("user 7 has 2 processes"));
    assert!(agent.connect(user(8)).is_ok(), "another user");
    agent.disconnect(ids[0]);
    let id = agent.connect(user(7)).unwrap();
    for conn_id in 0..3 {
        assert_eq!(agent.register(id, &connection(conn_id, 2), true), Ok(0), "one slot for a pair of hosts");
    }
    assert_eq!(agent.register(id, &connection(3, 2), true), Err(Status::NO_FREE_SLOT));
    assert_eq!(agent.register(id, &connection(0, 2), true), Err(Status::INVALID_REQUEST), "twice");
    assert_eq!(agent.deregister(id, 0), Status::SUCCESS);
    assert_eq!(agent.deregister(id, 0), Status::INVALID_REQUEST);
    assert_eq!(agent.register(id, &connection(0, 2), true), Ok(0));
    assert_eq!(agent.register(99, &connection(0, 2), true), Err(Status::INVALID_REQUEST));
    assert_eq!(agent.register(ids[1], &connection(4, 2), true), Ok(0));
    assert_eq!(
        agent.register(ids[1], &connection(5, 2), true),
        Err(Status::NO_FREE_SLOT),
        "the user's fifth"
    );
    let stranger = agent.connect(user(9)).unwrap();
    assert_eq!(agent.register(stranger, &connection(0, 2), true), Ok(0));
}

//= agent.md: somebody who comes last has as much as the others
#[test]
fn a_full_host_has_room_for_a_newcomer_at_the_cost_of_who_has_the_most() {
    let mut agent = agent("[limits]\nprocesses = 10\nconnections = 100\nprocesses_per_user = 8");
    let few = agent.connect(user(1)).unwrap();
    assert_eq!(agent.register(few, &connection(0, 2), true), Ok(0));
    let most: Vec<_> = (0..8).map(|_| agent.connect(user(2)).unwrap()).collect();
    agent.connect(user(3)).unwrap();
    for conn_id in 0..99 {
        let id = most[usize::from(conn_id > 90)];
        assert_eq!(agent.register(id, &connection(conn_id, 2), true), Ok(0));
    }
    assert!(agent.take_displaced().is_empty(), "there was room");

    let newcomer = agent.connect(user(4)).unwrap();
    assert_eq!(agent.take_displaced(), [(most[7], Owner::User(2))], "the newest of who has the most");
    let pair = |n: u32| Register { sout_dst: n.into(), ..connection(1000 + n, 0) };
    assert_eq!(agent.register(newcomer, &connection(0, 2), true), Ok(0));
    assert_eq!(agent.take_displaced(), [(most[0], Owner::User(2))], "the one with the most connections");
    assert_eq!(agent.register(most[0], &connection(0, 2), true), Err(Status::INVALID_REQUEST));
    assert_eq!(agent.register(most[1], &connection(0, 2), true), Ok(0));
    for n in 0..300 {
        // So much was left.
        let expected = if n < 89 { Ok(()) } else { Err(Status::NO_FREE_SLOT) };
        assert_eq!(agent.register(newcomer, &pair(n), true).map(drop), expected, "{n}");
    }
    assert!(agent.take_displaced().is_empty());
    // Equal shares: nobody gives way.
    for _ in 0..2 {
        agent.connect(user(3)).unwrap();
    }
    assert_eq!(agent.take_displaced().len(), 1);
    let mut refused = None;
    while refused.is_none() {
        refused = agent.connect(user(4)).err();
    }
    let text = refused.unwrap().to_string();
    assert_eq!(text, "this agent has 10 processes, and nobody has many more than user 4 (limits.processes)");
    assert!(agent.take_displaced().iter().all(|(id, owner)| *id != few && *owner != Owner::User(4)));
}

#[test]
fn the_257th_pair_of_a_process_has_no_slot() {
    let mut agent = agent("");
    let id = agent.connect(user(0)).unwrap();
    let pair = |n: u32| Register { sout_dst: n.into(), ..connection(n, 0) };
    for n in 0..256 {
        assert_eq!(agent.register(id, &pair(n), true), Ok(n as u8));
    }
    assert_eq!(agent.register(id, &pair(256), true), Err(Status::NO_FREE_SLOT));
    // Documents stay small however many processes there are.
    let shown = |agent: &Agent| {
        let process = agent.snapshot().processes.remove(0);
        (process.flows.len(), process.flows_not_shown)
    };
    assert_eq!(shown(&agent), (256, 0));
    for _ in 0..63 {
        agent.connect(user(0)).unwrap();
    }
    assert_eq!(shown(&agent), (128, 128));
    agent.deregister(id, 100);
    assert_eq!(agent.register(id, &pair(256), true), Ok(100));
}

//= agent-interface.md: plugins without a memory file have slots in the hint file
#[test]
fn plugins_of_earlier_releases_have_the_hint_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hints");
    let share = |slot: u8| {
        let at = nccl_net_mpib_agent_iface::agent::entry_offset(slot);
        let bytes = std::fs::read(&path).unwrap();
        nccl_net_mpib_agent_iface::agent::Hint::decode(bytes[at..at + 16].try_into().unwrap())
    };
    let hints = HintsWriter::create(&path).unwrap();
    let config = Config::parse("default_share = 341").unwrap();
    let mut agent = Agent::new(config, Some(hints), Kept::default());
    let ids: Vec<_> = (0..2).map(|_| agent.connect(user(0)).unwrap()).collect();
    for id in &ids {
        assert_eq!(agent.register(*id, &connection(1, 2), false), Ok(0), "one slot for all processes");
    }
    assert_eq!((share(0).share(), share(0).dst), (341, [10, 0, 0, 2].into()));
    agent.observe(ids[0], &ports(), STEP);
    agent.drain("b:1", true, Order::by("root")).unwrap();
    assert_eq!(share(0).share(), 0);
    agent.disconnect(ids[0]);
    assert_eq!(share(0).dst, Ipv4Addr::new(10, 0, 0, 2), "the other process has it still");
    agent.disconnect(ids[1]);
    assert_eq!(share(0).dst, Ipv4Addr::UNSPECIFIED);
}
