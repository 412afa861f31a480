//! A reading of more pages than it keeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use nccl_net_mpib_agent_iface::stats::{Data, Direction, Islands, NewConnection, StatsWriter, Traffic};

use super::*;
use crate::budget::Room;

const CHILD: &str = "HOST_VIEW_CHILD";

/// Has a page with three connections until the test ends.
fn child() {
    let writer = StatsWriter::for_this_process("1.2.3").unwrap();
    let rails = [(0, "mlx5_0:1")];
    let (direction, islands, data) = (Direction::Send, Islands::Two, Data::Split);
    let new = NewConnection {
        direction,
        islands,
        data,
        traffic: Traffic::Messages,
        peer: "node7",
        rails: &rails,
        substituted: false,
    };
    let _connections = [(); 3].map(|()| writer.add(&new));
    // Not by println: libtest keeps that.
    std::io::stdout().write_all(b"\nready\n").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn start() -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "gather::tests::a_reading_keeps_its_budget"]).env(CHILD, "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "ready"));
    child
}

#[test]
fn a_reading_keeps_its_budget() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut children = [(); 3].map(|()| start());
    let pids = children.each_ref().map(Child::id);
    let mut source = Source::default();
    let of_user = Room { pages: 2, ports: 1, connections: 4 };
    let host = source.read(&pids, Budget::new(of_user, Room { pages: 1000, ports: 1000, connections: 1000 }));
    let shown = |p: &Process| (p.pid, p.open, p.connections.len(), p.not_shown);
    let kept: Vec<_> = host.processes.iter().map(shown).collect();
    assert_eq!((kept, host.not_inspected), (vec![(pids[0], 3, 3, 0), (pids[1], 3, 1, 2)], 1));
    // What is left out takes no memory.
    for process in &host.processes {
        let Process { ports, connections, .. } = process;
        assert_eq!((ports.capacity(), connections.capacity()), (ports.len(), connections.len()));
    }
    assert_eq!(host.processes[1].ports.len(), 0);
    let all = source.host().unwrap();
    assert!(pids.iter().all(|pid| all.processes.iter().any(|process| process.pid == *pid)));
    for child in &mut children {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

//= agent-interface.md: of many connections the document has first those that people look for
#[test]
fn connections_that_people_look_for_stay() {
    let state = |index| if index % 3 == 2 { "failed" } else { "open" };
    let connection = |index| Connection { index, state: state(index).into(), ..Connection::default() };
    let kept = |n| {
        let mut connections: Vec<_> = (0..9).map(connection).collect();
        keep(&mut connections, n, 0);
        connections.into_iter().map(|connection| connection.index).collect::<Vec<_>>()
    };
    assert_eq!((kept(2), kept(5)), (vec![2, 5], vec![0, 1, 2, 5, 8]));
    assert_eq!(kept(9), (0..9).collect::<Vec<_>>());
}
