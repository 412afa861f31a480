//! Frames of a made-up host, and the keys.

use std::collections::BTreeMap;

use mpib_host_view::{Connection, Count, Host, Port, Process, Rail, Wait};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::draw::{draw, frame_as_text};
use super::text::waited;
use super::view::{Command, Sort, View};

fn port(name: &str, sent: f64) -> Port {
    let (device, port) = name.split_once(':').unwrap();
    Port {
        name: name.into(),
        device: device.into(),
        port: port.parse().unwrap(),
        state: "healthy".into(),
        connections: 2,
        scale: 1024,
        bytes_sent_per_second: Some(sent),
        ..Port::default()
    }
}

fn connection(index: usize, peer: &str, rate: f64) -> Connection {
    let rail = |name: &str, part: f64| Rail {
        name: name.into(),
        bytes: Some(Count(1)),
        bytes_per_second: Some(rate * part),
        ..Rail::default()
    };
    Connection {
        index,
        state: "open".into(),
        direction: "send".into(),
        peer: format!("192.0.2.9:4000 ({peer}, pid {index})"),
        bytes: Count(10_000 - index as u64),
        bytes_per_second: Some(rate),
        in_flight: Count(index as u64),
        rails: vec![rail("mlx5_0:1", 0.75), rail("mlx5_1:1", 0.25)],
        ..Connection::default()
    }
}

fn wait(since_ms: u64) -> Option<Wait> {
    Some(Wait { r#for: "receive".into(), what: "a receive of node5".into(), since_ms })
}

/// A host with a rail that is down, and two processes.
fn host() -> Host {
    let mut down = port("mlx5_1:1", 0.0);
    (down.state, down.cause) = ("down".into(), Some("mlx5_1:1: the link went down".into()));
    down.since_ms = 3_723_000;
    down.goodput = Some(Count(12_500_000_000));
    down.counts.episodes = BTreeMap::from([("port".into(), Count(2))]);
    down.counts.stalls.sum_ms = 5.0;
    let process = |pid, command: &str, connections| Process {
        pid,
        command: command.into(),
        user: Some("alice".into()),
        open: 2,
        connections,
        ..Process::default()
    };
    let mut lost = connection(3, "node3", 3e9);
    (lost.rails[1].given_up_at_ms, lost.rails[1].lacks) = (Some(3_723_000), Some("completion".into()));
    let first = vec![connection(0, "node7", 1e9), connection(1, "node5", 2.5e9)];
    let mut host = Host {
        hostname: "node1".into(),
        at_ms: 3_724_000,
        ports: vec![port("mlx5_0:1", 6.5e9), down],
        processes: vec![process(4711, "python3", first), process(4712, "trainer", vec![lost])],
        ..Host::default()
    };
    host.totals.send.bytes_per_second = Some(6.5e9);
    host.failover.episodes = Count(2);
    host.failover.stalled_ms = 5.0;
    host.judge();
    host
}

fn lines(host: &Host, view: &mut View, size: (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(frame, host, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    buffer.content().chunks(size.0.into()).map(|cells| line(cells).trim_end().to_owned()).collect()
}

fn press(view: &mut View, keys: &str) -> Command {
    let mut last = Command::None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '<' => KeyCode::Backspace,
            'v' => KeyCode::Down,
            key => KeyCode::Char(key),
        };
        last = view.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

//= top.md: it works in 80 columns
#[test]
fn a_frame_of_80_columns_has_rails_shares_goodput_and_stalls() {
    let mut view = View::new(Sort::Rate, "");
    let frame = lines(&host(), &mut view, (80, 15));
    assert_eq!(
        frame,
        [
            "1 of 4 connections is degraded: 1 lacks mlx5_1:1 for 1 s (completion)",
            "mpib top  node1  01:02:04 UTC  processes 2, connections 4",
            "send 6.50GB/s  recv -  episodes 2  stalls 5.0ms  sent again 0B",
            "PORT           STATE    CONNS       SENT SHARE    GOODPUT SCALE EPISODES  STALL",
            "mlx5_0:1       healthy      2   6.50GB/s  100%          -  100%        0      -",
            "mlx5_1:1       down         2      0B/s    0%   12.5GB/s  100%        2  2.5ms"
                .replace("     0B/s ", "      0B/s ")
                .as_str(),
            "  since 01:02:03: mlx5_1:1: the link went down",
            "",
            "    PID COMMAND    WAY  PEER                      RATE FLIGHT SHARES  WAITS  ERR",
            "   4712 trainer    send node3/3               3.00GB/s      3 75/x        -    0",
            "   4711 python3    send node5/1               2.50GB/s      1 75/25       -    0",
            "   4711 python3    send node7/0               1.00GB/s      0 75/25       -    0",
            "",
            "",
            "q quit  s sort: rate  r reverse  / filter: none  p pause",
        ]
    );
}

#[test]
fn bad_states_have_a_colour_and_a_word() {
    let mut host = host();
    let mut colours = |level: &str, lines: &[u16]| {
        host.verdict.level = level.into();
        let mut terminal = Terminal::new(TestBackend::new(80, 15)).unwrap();
        terminal.draw(|frame| draw(frame, &host, &mut View::new(Sort::Rate, ""))).unwrap();
        lines.iter().map(|y| terminal.backend().buffer()[(0, *y)].fg).collect::<Vec<_>>()
    };
    let rows = [Color::Red, Color::Reset, Color::Red, Color::Red, Color::Yellow, Color::Reset];
    assert_eq!(colours("bad", &[0, 4, 5, 6, 9, 10]), rows);
    assert_eq!((colours("drained", &[0]), colours("good", &[0])), (vec![Color::Yellow], vec![Color::Reset]));
}

//= top.md: a connection that waits shows for how long, and is marked after 5 s
#[test]
fn a_connection_that_waits_shows_for_how_long() {
    let mut host = host();
    let [first, second] = &mut host.processes[0].connections[..] else { unreachable!() };
    (first.wait, second.wait) = (wait(host.at_ms - 4_999), wait(host.at_ms - 72_300));
    let view = &mut View::new(Sort::Waits, "");
    let mut terminal = Terminal::new(TestBackend::new(80, 15)).unwrap();
    terminal.draw(|frame| draw(frame, &host, view)).unwrap();
    let colours = [9, 10].map(|y| terminal.backend().buffer()[(0, y)].fg);
    assert_eq!(colours, [Color::Yellow, Color::Reset]);
    let frame = lines(&host, view, (80, 15));
    for (line, peer, waits) in [(9, "node5/1", "72s"), (10, "node7/0", "4s"), (11, "node3/3", "-")] {
        let words: Vec<_> = frame[line].split_whitespace().collect();
        assert_eq!((words[3], words[7]), (peer, waits), "the longest wait first: {frame:#?}");
    }
    for (ms, text) in [(0, "-"), (999, "-"), (999_999, "999s"), (1_000_000, "16m"), (86_400_000, "24h")] {
        assert_eq!(waited(Some(ms)), text);
    }
}

#[test]
fn small_and_large_terminals_do_no_harm() {
    for size in [(1, 1), (20, 3), (80, 5), (300, 100)] {
        let frame = lines(&host(), &mut View::new(Sort::Rate, ""), size);
        assert_eq!(frame.len(), usize::from(size.1));
    }
    let empty = lines(&Host::default(), &mut View::new(Sort::Rate, ""), (80, 8));
    assert!(empty.contains(&"no process has a statistics page".to_owned()), "{empty:?}");
}

#[test]
fn connections_are_sorted_and_filtered() {
    let host = host();
    let peers = |view: &View| view.connections(&host).iter().map(|(_, c)| c.index).collect::<Vec<_>>();
    let mut view = View::new(Sort::Rate, "");
    for order in [[3, 1, 0], [0, 1, 3], [3, 1, 0], [0, 1, 3], [0, 1, 3], [0, 1, 3], [3, 1, 0]] {
        assert_eq!(peers(&view), order, "{:?}", view.sort);
        press(&mut view, "s");
    }
    assert_eq!(view.sort, Sort::Rate);
    press(&mut view, "S");
    assert_eq!(view.sort, Sort::Peer);
    press(&mut view, "sr");
    assert_eq!(peers(&view), [0, 1, 3]);
    for (filter, fitting) in [
        ("NODE5", vec![1]),
        ("4711", vec![0, 1]),
        ("alice", vec![0, 1, 3]),
        ("mlx5_1", vec![0, 1, 3]),
        ("zz", vec![]),
    ] {
        assert_eq!(peers(&View::new(Sort::Pid, filter)), fitting, "{filter}");
    }
}

/// Connections of eight rails with long names, large numbers, and a rail that is given up.
fn crowded() -> Host {
    let mut host = host();
    for n in 0..6 {
        host.ports.push(port(&format!("rocep{n}7s0f0np0:1"), 123.4e9 + f64::from(n)));
    }
    host.ports[2].cause =
        Some("rocep07s0f0np0:1: the link went down (IBV_EVENT_PORT_ERR) 12345 times".into());
    let rail = |n: u64| Rail {
        name: format!("rocep{n}7s0f0np0:1"),
        bytes: Some(Count(n)),
        bytes_per_second: Some(1e9 + n as f64 * 1e7),
        ..Rail::default()
    };
    for index in 10..14 {
        let mut many = connection(index, &format!("gpu-node-{index}.cluster.example.com"), 8.45e9);
        many.peer =
            format!("192.0.2.9:4000 (gpu-node-{index}.cluster.example.com, pid 419430{})", index % 10);
        many.in_flight = Count(12_345);
        many.wait = wait(host.at_ms - 987_654);
        many.errors = Count(4_321);
        many.rails = (0..8).map(rail).collect();
        many.rails[1].given_up_at_ms = (index % 2 == 0).then_some(1);
        host.processes[0].connections.push(many);
    }
    (host.not_permitted, host.failover.stalled_ms) = (17, 123_456.0);
    host
}

//= top.md: a number is whole or absent
#[test]
fn every_number_is_whole_at_any_width() {
    use std::collections::BTreeSet;
    let host = crowded();
    let frame = |width: u16| lines(&host, &mut View::new(Sort::Rate, ""), (width, 40));
    let words = |lines: &[String]| -> BTreeSet<String> {
        lines.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect()
    };
    let all = words(&frame(300));
    assert!(all.contains("12-13/1x") && all.contains("12-13"), "{all:?}");
    for width in 40..=200 {
        let frame = frame(width);
        for word in words(&frame) {
            let Some((before, after)) = word.split_once('…') else {
                assert!(all.contains(&word), "{word:?} in {width} columns: {frame:#?}");
                continue;
            };
            assert!(!before.ends_with(|c: char| c.is_ascii_digit()), "{word:?} in {width} columns");
            let ends_whole = all.iter().any(|whole| whole.ends_with(after));
            assert!(ends_whole && (after.is_empty() || after.starts_with([':', '/'])), "{word:?}");
        }
        let has = |word: &str| frame.iter().any(|line| line.contains(word));
        for word in
            ["PORT", "STATE", "SENT", "PEER", "RATE", "/4194302", "8.45GB/s", "connections 4", "q quit"]
        {
            assert!(has(word), "{word:?} in {width} columns: {frame:#?}");
        }
    }
    for width in [8, 20, 39] {
        assert_eq!(
            words(&frame(width)).into_iter().collect::<Vec<_>>(),
            ["40", "columns", "mpib", "needs", "top"]
        );
    }
}

//= top.md: keys, and what is left of the terminal
#[test]
fn keys_change_the_view() {
    let mut view = View::new(Sort::Rate, "");
    // While a filter is entered, all keys go to it.
    assert_eq!(press(&mut view, "/qpx<"), Command::Draw);
    assert_eq!((view.filter.as_str(), view.is_typing, view.is_paused()), ("qp", true, false));
    assert!(lines(&host(), &mut view, (80, 14))[13].starts_with("filter: qp_"));
    press(&mut view, "\n");
    assert_eq!((view.filter.as_str(), view.is_typing), ("qp", false));
    assert!(lines(&host(), &mut view, (80, 14)).contains(&"no connection fits the filter".to_owned()));
    press(&mut view, "\u{1b}/ab\u{1b}");
    assert_eq!((view.filter.as_str(), view.is_typing), ("", false));
    press(&mut view, "p");
    assert!(view.is_paused() && lines(&host(), &mut view, (80, 14))[1].ends_with("PAUSED"));
    assert_eq!((press(&mut view, "q"), press(&mut view, "?")), (Command::Quit, Command::None));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut view, "/");
    assert_eq!(view.key(control_c), Command::Quit);
}

#[test]
fn scrolling_ends_with_the_last_connection() {
    let mut view = View::new(Sort::Pid, "");
    press(&mut view, "vvvvvvvvvv");
    // Two lines for connections.
    let frame = lines(&host(), &mut view, (80, 10));
    assert_eq!(view.scrolled, 1);
    assert!(frame[7].contains("node5") && frame[8].contains("node3"), "{frame:#?}");
}

#[test]
fn a_frame_as_text_has_everything_in_80_columns() {
    let mut host = host();
    host.processes[0].connections = (0..1000).map(|i| connection(i, &format!("host-{i}"), 1.0)).collect();
    let text = frame_as_text(&host, &View::new(Sort::Pid, ""));
    assert!((0..1000).all(|i| text.contains(&format!("host-{i}/{i}"))), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains("q quit"), "{text}");
    assert!(text.contains("the link went down"));
}
