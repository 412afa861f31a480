use super::super::announcement::tests::{end, host};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Two hosts, and which of their ends hear each other.
struct World {
    hosts: [Meeting; 2],
    wires: Vec<(usize, usize)>,
}

impl World {
    fn new(ours: Vec<End>, theirs: Vec<End>, wires: &[(usize, usize)]) -> Self {
        let hosts = [Meeting::new(host("node1", 1), ours), Meeting::new(host("node2", 2), theirs)];
        Self { hosts, wires: wires.to_vec() }
    }

    /// Both announce at all ends. `lost`: those of the second host do not arrive.
    fn round(&mut self, now: Duration, lost: bool) {
        for (a, b) in self.wires.clone() {
            let (from_a, from_b) = (self.hosts[0].announcement(a), self.hosts[1].announcement(b));
            self.hosts[1].hear(now, b, from_a);
            if !lost {
                self.hosts[0].hear(now, a, from_b);
            }
        }
        self.hosts.iter_mut().for_each(|host| host.settle(now));
    }

    /// Returns the names of the cables that each host has after some seconds.
    fn after(&mut self, seconds: u32) -> [Option<Vec<[Mac; 2]>>; 2] {
        for n in 0..=seconds {
            self.round(n * SECOND, false);
        }
        let now = seconds * SECOND;
        let names = |host: &Meeting| Some(host.agreed(now)?.iter().map(Cable::name).collect());
        [names(&self.hosts[0]), names(&self.hosts[1])]
    }
}

fn name(a: u8, b: u8) -> [Mac; 2] {
    [end(a, None).mac, end(b, None).mac]
}

//= direct-cables.md: both ends find the same cables
#[test]
fn both_hosts_find_the_same_cables() {
    // The third end of the first host has no cable.
    let ours = vec![end(1, None), end(2, None), end(3, None)];
    let mut world = World::new(ours, vec![end(11, None), end(12, None)], &[(0, 1), (1, 0)]);
    let cables = Some(vec![name(1, 12), name(2, 11)]);
    assert_eq!(world.after(8), [cables.clone(), cables]);
}

#[test]
fn the_functions_of_one_wire_have_partners() {
    // All functions of a port hear all of the other one.
    let ours = vec![end(2, Some(4)), end(1, Some(4))];
    let theirs = vec![end(11, Some(0)), end(12, Some(0)), end(13, Some(0))];
    let all: Vec<(usize, usize)> = (0..2).flat_map(|a| (0..3).map(move |b| (a, b))).collect();
    let cables = Some(vec![name(1, 11), name(2, 12)]);
    assert_eq!(World::new(ours, theirs, &all).after(8), [cables.clone(), cables]);
}

//= direct-cables.md: a switch between the hosts is named
#[test]
fn a_switch_is_no_cable() {
    let ours = vec![end(1, Some(0)), end(2, Some(1))];
    let all: Vec<(usize, usize)> = (0..2).flat_map(|a| (0..2).map(move |b| (a, b))).collect();
    let mut world = World::new(ours, vec![end(11, Some(0)), end(12, None)], &all);
    assert_eq!(world.after(8), [None, None]);
    let why = world.hosts[0].cables().unwrap_err().to_string();
    assert!(
        why.starts_with("eth1, eth2 hear eth11, eth12 of node2, so a switch or bridge joins them"),
        "{why}"
    );
}

#[test]
fn a_loop_and_a_third_host_are_named() {
    let mut world = World::new(vec![end(1, None), end(2, None)], vec![end(11, None)], &[(0, 0)]);
    let own = world.hosts[0].announcement(1);
    world.hosts[0].hear(SECOND, 0, own);
    assert_eq!(world.hosts[0].cables(), Err(Confusion::Loop("eth1".into(), "eth2".into())));
    world.after(10);
    let third = Meeting::new(host("node3", 3), vec![end(21, None)]).announcement(0);
    world.hosts[0].hear(10 * SECOND, 1, third);
    let why = world.hosts[0].cables().unwrap_err().to_string();
    assert!(why.contains("also runs on node2, node3"), "{why}");
}

#[test]
fn an_end_that_hears_nothing_back_is_no_cable() {
    let mut world = World::new(vec![end(1, None)], vec![end(11, None)], &[(0, 0)]);
    for n in 0..10 {
        world.round(n * SECOND, true);
    }
    assert_eq!(world.hosts.each_ref().map(|host| host.cables()), [Ok(Vec::new()), Ok(Vec::new())]);
    assert_eq!(world.hosts[1].one_way(), ["eth11 hears eth1 of node1, which does not hear it"]);
}

#[test]
fn an_end_that_falls_silent_ends_its_cable() {
    let mut world = World::new(vec![end(1, None)], vec![end(11, None)], &[(0, 0)]);
    assert!(world.after(8)[0].is_some());
    world.hosts[0].settle(12 * SECOND);
    assert_eq!(world.hosts[0].agreed(20 * SECOND), None);
}

#[test]
fn invented_ends_do_not_fill_the_memory() {
    let mut world = World::new(vec![end(1, None)], vec![end(11, None)], &[(0, 0)]);
    let it = world.hosts[1].announcement(0);
    for n in 0..2 * MOST as u32 {
        let [_, _, a, b] = n.to_be_bytes();
        let mut it = it.clone();
        it.end.mac = Mac([2, 1, 0, 0, a, b]);
        world.hosts[0].hear(SECOND, 0, it);
    }
    assert_eq!(world.hosts[0].heard.len(), MOST);
    // Once they are silent there is room again.
    world.hosts[0].settle(10 * SECOND);
    assert_eq!(world.hosts[0].heard.len(), 0);
}
