//! The plugin with the agent of this project: memory files instead of a hint file.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread::JoinHandle;

use mpib_agent::{Config, Handle, Order, Server, Snapshot};
use mpib_tests::code::Success;
use mpib_tests::log::{has_logged, take_warnings};
use mpib_tests::pair::{Pair, connect, init, until};
use mpib_tests::peer::{Peer, to_peer};
use mpib_tests::table::newest;
use mpib_tests::{TWO_RAILS, here, isolated, set};

const MIB: usize = 1 << 20;

/// An agent in a thread of this process.
struct Agent {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Agent {
    fn start(folder: &Path, config: &str) -> Self {
        let server = Server::bind(folder, Config::parse(config).unwrap(), None).unwrap();
        let handle = server.handle();
        Self { handle, thread: std::thread::spawn(move || server.run().unwrap()) }
    }

    /// Ends the agent as if it was killed: nothing is said to the plugins.
    fn kill(self) {
        self.handle.stop();
        self.thread.join().unwrap();
    }

    fn snapshot(&self) -> Snapshot {
        self.handle.read(mpib_agent::Agent::snapshot)
    }

    /// Waits until so many connections are registered.
    fn registered(&self, connections: usize) -> Snapshot {
        until("registrations", || {
            let seen = self.snapshot();
            (seen.processes.iter().map(|p| p.connections).sum::<usize>() == connections).then_some(seen)
        })
    }

    /// The source and the destination of the only flow.
    fn only_flow(&self) -> (Ipv4Addr, Ipv4Addr) {
        let seen = self.snapshot();
        let [flow] = &*seen.processes[0].flows else { panic!("{seen:?}") };
        (flow.source, flow.destination)
    }

    fn set_share(&self, share: u16) {
        let (source, destination) = self.only_flow();
        let flows = self.handle.change(|agent| agent.set_share(source, destination, share));
        assert_eq!(flows, Ok(1));
    }
}

/// Bytes that this process has sent on SUP.
fn sup_bytes() -> u64 {
    let counters = softverbs::counters();
    counters.iter().find(|d| d.name == "soft1").unwrap().total.bytes
}

/// What SUP carries of one message of 1 MiB.
fn carried(pair: &Pair) -> u64 {
    let before = sup_bytes();
    pair.message(MIB, MIB, 3);
    sup_bytes() - before
}

/// Bytes of SUP of 1 MiB with this share.
fn part(share: u16) -> u64 {
    MIB as u64 / 1024 * u64::from(share)
}

/// Waits until the sender has its slot: until then its messages have the share `old`.
fn until_carried(pair: &Pair, old: u16, new: u16) {
    until("the slot of the sender", || {
        let carried = carried(pair);
        assert!(carried == part(old) || carried == part(new), "{carried}, neither {old} nor {new}");
        (carried == part(new)).then_some(())
    });
}

/// A test whose process has `more` in its environment and an agent's folder.
fn with_folder(test: &str, more: &[(&str, &str)], body: impl FnOnce(&Path)) {
    isolated(test, &[&TWO_RAILS[..], more].concat(), || {
        let dir = tempfile::tempdir().unwrap();
        set("MPIB_AGENT_SOCKET", Some(dir.path().join("agent.sock")));
        body(dir.path());
    });
}

const ADVANCED: [(&str, &str); 1] = [("MPIB_MODE", "1")];
const EXTERNAL: &str = "policy = \"external\"";

/// How often the client's thread has waited.
fn waits() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = tasks.map(|task| fs::read_to_string(task.path().join("status")).unwrap_or_default());
    let hints = status.filter(|status| status.starts_with("Name:\tmpib-hints\n"));
    hints.map(|s| s.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()).collect()
}

//= agent-interface.md: a hint of a memory file takes effect at the next isend, and no thread wakes for it
//= mpib.md: each message uses the hint of its time
#[test]
fn a_share_counts_for_exactly_the_next_message() {
    with_folder(here!(), &ADVANCED, |folder| {
        let agent = Agent::start(folder, EXTERNAL);
        let pair = Pair::new(newest());
        agent.registered(2);
        until("the memory file", || has_logged("has passed a memory file").then_some(()));
        agent.set_share(1);
        until_carried(&pair, 0, 1);
        let before = until("the end of registrations", || {
            let before = waits();
            (0..20).for_each(|_| assert_eq!(carried(&pair), part(1)));
            (waits() == before).then_some(before)
        });
        assert_eq!(before.len(), 1);
        for share in [256, 1024, 512, 0, 768, 1, 1023].into_iter().cycle().take(70) {
            agent.set_share(share);
            assert_eq!(carried(&pair), part(share), "share {share}");
        }
        assert_eq!(waits(), before, "the client's thread has slept");
        assert!(!has_logged("hint file"), "nobody reads the hint file");
        pair.close();
        agent.registered(0);
        assert_eq!(take_warnings(), [""; 0]);
        agent.kill();
    });
}

/// With `share` nothing but a hint moves data to SUP: the agent begins with half.
//= agent.md: the policy measured follows the goodput of both rails
#[test]
fn a_share_follows_the_rails_although_the_plugin_does_not_split_by_them() {
    let devices = "soft0:addr=10.1.0.1/16,rate=80MB;soft1:addr=10.2.0.1/16,rate=20MB";
    let env = [ADVANCED[0], ("MPIB_SPLIT", "share"), ("SOFTVERBS_DEVICES", devices)];
    with_folder(here!(), &env, |folder| {
        let agent = Agent::start(folder, "policy = \"measured\"");
        let pair = Pair::new(newest());
        agent.registered(2);
        until("a fifth on SUP", || {
            let carried = carried(&pair);
            (part(180)..part(240)).contains(&carried).then_some(())
        });
        pair.close();
        agent.kill();
    });
}

//= agent.md: connections keep their shares while the agent restarts, and register again
#[test]
fn shares_stand_still_while_the_agent_restarts() {
    with_folder(here!(), &ADVANCED, |folder| {
        let agent = Agent::start(folder, EXTERNAL);
        let pair = Pair::new(newest());
        agent.registered(2);
        agent.set_share(256);
        until_carried(&pair, 0, 256);
        agent.kill();
        until("a warning", || take_warnings().iter().any(|w| w.contains("agent.sock")).then_some(()));
        assert_eq!(carried(&pair), part(256), "without an agent");
        let agent = Agent::start(folder, EXTERNAL);
        until("registrations", || {
            assert_eq!(carried(&pair), part(256), "meanwhile");
            let seen = agent.snapshot();
            (seen.processes.first()?.connections == 2).then_some(())
        });
        assert_eq!(carried(&pair), part(256), "with the new one");
        agent.set_share(768);
        until_carried(&pair, 256, 768);
        agent.set_share(0);
        assert_eq!(carried(&pair), 0);
        pair.close();
        agent.kill();
    });
}

//= agent.md: a drained port has no share, and its scale is 0 in every process
#[test]
fn a_drained_port_carries_nothing_until_it_is_given_back() {
    with_folder(here!(), &ADVANCED, |folder| {
        let agent = Agent::start(folder, "policy = \"static\"\ndefault_share = 512");
        let pair = Pair::new(newest());
        agent.registered(2);
        until_carried(&pair, 0, 512);
        until("the ports", || agent.snapshot().processes[0].ports.clone());
        let drain =
            |port: &str, on| agent.handle.change(|agent| agent.drain(port, on, Order::by("root"))).unwrap();
        drain("soft1:1", true);
        assert_eq!(carried(&pair), 0, "SUP is out of use for the next message");
        until("a line", || {
            has_logged("port soft1:1 is out of use: scale 0 of 1024, before 1024").then_some(())
        });
        drain("soft1:1", false);
        drain("soft0:1", true);
        // SUP carries data again once the thread of the hints has looked.
        until_carried(&pair, 0, 1024);
        // A change that is taken back before the thread of the hints looks has no line.
        until("a line", || {
            has_logged("port soft0:1 is out of use: scale 0 of 1024, before 1024").then_some(())
        });
        drain("soft0:1", false);
        until_carried(&pair, 1024, 512);
        until("a line", || has_logged("port soft0:1 is in full use again: scale 1024").then_some(()));
        pair.close();
        assert_eq!(take_warnings(), [""; 0]);
        agent.kill();
    });
}

//= agent.md: a process without hints attaches to an agent for the scales of ports
#[test]
fn a_process_without_hints_attaches_for_the_scales_of_ports() {
    with_folder(here!(), &[], |folder| {
        let agent = Agent::start(folder, "drain = [\"soft1:1\"]");
        let pair = connect(newest(), init(newest()), 0);
        until("a line", || has_logged("port soft1:1 is out of use").then_some(()));
        let seen = agent.snapshot();
        assert_eq!(seen.processes.len(), 1, "{seen:?}");
        assert_eq!(seen.processes[0].connections, 0, "{seen:?}");
        pair.message(MIB, MIB, 1);
        pair.close();
        agent.kill();
    });
}

//= agent.md: a process without hints needs no agent
#[test]
fn a_process_without_hints_misses_no_agent() {
    with_folder(here!(), &[], |folder| {
        let pair = connect(newest(), init(newest()), 0);
        pair.message(MIB, MIB, 1);
        pair.close();
        // The socket of an agent that has ended.
        drop(std::os::unix::net::UnixListener::bind(folder.join("agent.sock")).unwrap());
        let pair = connect(newest(), init(newest()), 0);
        pair.message(MIB, MIB, 1);
        pair.close();
        assert_eq!(take_warnings(), [""; 0]);
    });
}

/// Waits until the only process that the agent knows has passed its page.
fn until_page(agent: &Agent) {
    until("the page", || {
        let seen = agent.snapshot();
        matches!(&*seen.processes, [process] if process.page).then_some(())
    });
}

//= agent-interface.md: the page comes to each agent, whenever it starts
#[test]
fn the_page_comes_to_each_agent_without_a_connection() {
    with_folder(here!(), &[], |folder| {
        // Before there is an agent.
        let ctx = init(newest());
        for _ in 0..3 {
            let agent = Agent::start(folder, "");
            until_page(&agent);
            agent.kill();
        }
        let agent = Agent::start(folder, "");
        until_page(&agent);
        let pair = connect(newest(), ctx, 0);
        pair.message(MIB, MIB, 1);
        pair.close();
        assert_eq!(take_warnings(), [""; 0]);
        agent.kill();
    });
}

//= agent-interface.md: the page comes with the first REGISTER
#[test]
fn the_page_comes_with_the_first_registration() {
    with_folder(here!(), &ADVANCED, |folder| {
        let agent = Agent::start(folder, EXTERNAL);
        let pair = Pair::new(newest());
        agent.registered(2);
        until_page(&agent);
        agent.kill();
        let agent = Agent::start(folder, EXTERNAL);
        agent.registered(2);
        until_page(&agent);
        pair.close();
        agent.kill();
    });
}

//= agent-interface.md: a process without statistics passes no page
#[test]
fn a_process_without_statistics_is_served_without_a_page() {
    with_folder(here!(), &[ADVANCED[0], ("MPIB_STATS", "0")], |folder| {
        let agent = Agent::start(folder, EXTERNAL);
        let pair = Pair::new(newest());
        assert!(agent.registered(2).processes.iter().all(|process| !process.page));
        agent.set_share(256);
        until_carried(&pair, 0, 256);
        pair.close();
        agent.kill();
    });
}

//= agent.md: a process sees its own flows only
#[test]
fn two_processes_have_a_file_each() {
    let here = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16");
    let env = [ADVANCED[0], here, ("NCCL_IB_GID_INDEX", "3")];
    with_folder(here!(), &env, |folder| {
        let agent = Agent::start(folder, EXTERNAL);
        let (table, ctx) = (newest(), init(newest()));
        let other = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16");
        let mut peer = Peer::start_with(&[other]);
        let comm = to_peer(table, ctx, &mut peer);
        let seen = agent.registered(2);
        let [one, two] = &*seen.processes else { panic!("{seen:?}") };
        assert_ne!(one.pid, two.pid);
        let flow = |process: &mpib_agent::state::ProcessView| {
            let [flow] = &*process.flows else { panic!("{process:?}") };
            (flow.source, flow.destination)
        };
        let (here, there) = (flow(one), flow(two));
        assert_eq!(here, (there.1, there.0), "each has its own end as the source");
        // Each file has one flow, that of its process.
        for pid in [one.pid, two.pid] {
            // The agent, too, is in this process.
            let expected = if pid == std::process::id() { 3 } else { 1 };
            until("the answer to a registration", || {
                let mapped = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
                let files = mapped.lines().filter(|line| line.contains("mpib-agent")).count();
                assert!(files <= expected, "{mapped}");
                (files == expected).then_some(())
            });
        }
        assert_eq!(table.close_send(comm), Success);
        peer.must("close");
        peer.finish();
        agent.kill();
    });
}
