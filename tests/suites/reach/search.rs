//! Ports whose addresses do not show which reach each other, such as those of InfiniBand fabrics with
//! one subnet prefix: the pair that works is found although no silent probe ends within a test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mpib_tests::code::Success;
use mpib_tests::hosts::watch::{WARN, log};
use mpib_tests::log::{assert_warned, has_logged, take_warnings};
use mpib_tests::pair::{Buffer, init, pattern};
use mpib_tests::peer::{Peer, connected_by, handle_of, send, wait};
use mpib_tests::table::{Ptr, newest, table};
use mpib_tests::vdevices::{Rig, newest_device, rails};
use mpib_tests::{here, isolated};
use softverbs::{Direction, Fault, inject};

/// No probe ends by its time, and no queue pair by its retries.
const PATIENT: [(&str, &str); 4] = [
    ("MPIB_PROBE_TIMEOUT_MS", "300000"),
    ("MPIB_CONNECT_TIMEOUT_MS", "600000"),
    ("NCCL_IB_TIMEOUT", "22"),
    ("NCCL_IB_RETRY_CNT", "7"),
];

/// InfiniBand ports, one on each of these wires.
fn ports(first_lid: usize, wires: impl IntoIterator<Item = usize>) -> String {
    let port = |(i, wire)| format!("mlx5_{i}:link=ib,lid={},wire={wire}", first_lid + i);
    wires.into_iter().enumerate().map(port).collect::<Vec<_>>().join(";")
}

/// A message from a new connection of these devices. `ctx` is this process's.
fn connects(ctx: Ptr, peer: &mut Peer, dev: i32) {
    let mut handle = handle_of(&peer.ask("listen"));
    peer.say("accept");
    let comm = connected_by(newest(), ctx, dev, &mut handle);
    assert_eq!(peer.answer(), "ok");
    let from = Buffer::new(newest(), comm, pattern(100_000, 7));
    peer.say("recv 100000 7");
    wait(newest(), send(newest(), comm, &from, 100_000));
    assert_eq!(peer.answer(), "ok");
    from.dereg();
    assert_eq!(newest().close_send(comm), Success);
    peer.must("close");
}

//= protocol.md: a pair that is silent is not waited for while others are left
#[test]
fn ports_of_two_fabrics_with_one_prefix_find_each_other() {
    let (ours, theirs) = (ports(1, [0, 1]), ports(3, [1, 0]));
    isolated(here!(), &[&PATIENT[..], &[("SOFTVERBS_DEVICES", &ours)]].concat(), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&[("SOFTVERBS_DEVICES", &theirs)]);
        for dev in [0, 1] {
            peer.must(&format!("device {dev}"));
            connects(ctx, &mut peer, dev);
            let asked = format!("a connection of mlx5_{dev} with");
            assert_warned(&[&asked, "not as NCCL requested", "nothing answers"]);
        }
        take_warnings();
        // The pair that failed is known, and the report is not repeated.
        connects(ctx, &mut peer, 1);
        assert_eq!(take_warnings(), Vec::<String>::new());
        peer.finish();
    });
}

/// 1,024 pairs, one of them with a wire.
//= reach.md: a search tries up to 64 pairs at a time, until one works
#[test]
fn one_pair_of_thirty_two_ports_is_found() {
    let theirs = (0..32).map(|i| if i == 17 { 5 } else { 100 + i });
    let (ours, theirs) = (ports(1, 0..32), ports(101, theirs));
    isolated(here!(), &[&PATIENT[..], &[("SOFTVERBS_DEVICES", &ours)]].concat(), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&[("SOFTVERBS_DEVICES", &theirs)]);
        connects(ctx, &mut peer, 0);
        assert_warned(&["goes from mlx5_5:1 to mlx5_17:1"]);
        peer.finish();
    });
}

/// The second fabric is silent from the start, and back later.
//= protocol.md: a rail of several that is silent at connect is not waited for
#[test]
fn a_silent_rail_of_two_joins_later() {
    let devices = rails(2, 1);
    let settings = [("SOFTVERBS_DEVICES", devices.as_str()), ("MPIB_FLUSH", "0")];
    isolated(here!(), &[&PATIENT[..], &settings].concat(), || {
        let (ctx, dev) = newest_device(2);
        inject("r1", Fault::Silence(Direction::Both)).unwrap();
        let mut rig = Rig::new(table(12), ctx, dev, 4 << 20);
        assert_warned(&["rails that do not work to", "nothing answers", "until r1:1 works"]);
        softverbs::heal("r1").unwrap();
        mpib_tests::pair::until("the rail", || {
            rig.exchange(&[1 << 20]);
            has_logged("works again").then_some(())
        });
        rig.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

/// The first connection of another process with these ports to a new peer with those: its log.
fn log_of_first(ours: &str, theirs: &str, file: &Path) -> Vec<(i32, String)> {
    let file = file.to_str().unwrap();
    let mut to = Peer::start_with(&[("SOFTVERBS_DEVICES", theirs), ("MPIB_REACH_FILE", file)]);
    let mut from = Peer::start_with(&[("SOFTVERBS_DEVICES", ours), ("MPIB_REACH_FILE", file)]);
    let handle = to.ask("listen");
    to.say("accept");
    from.must(&format!("connect {handle}"));
    assert_eq!(to.answer(), "ok");
    for peer in [&mut from, &mut to] {
        peer.must("close");
    }
    let lines = log(&mut from);
    from.finish();
    to.finish();
    lines
}

fn has(lines: &[(i32, String)], level: i32, part: &str) -> bool {
    lines.iter().any(|line| line.0 == level && line.1.contains(part))
}

//= reach.md: processes of a host share which pairs have failed
//= configuration.md: MPIB_REACH_FILE
#[test]
fn what_one_process_has_found_the_next_one_knows() {
    let (ours, theirs) = (ports(1, [0, 1]), ports(3, [1, 0]));
    isolated(here!(), &PATIENT, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reach");
        let known = |lines: &[(i32, String)]| has(lines, WARN, "not tried, since it failed");
        assert!(!known(&log_of_first(&ours, &theirs, &file)));
        assert!(known(&log_of_first(&ours, &theirs, &file)));
        fs::remove_file(&file).unwrap();
        assert!(!known(&log_of_first(&ours, &theirs, &file)));
        // Lines of the future, lines of others, and one that is being written.
        let text = fs::read_to_string(&file).unwrap();
        let future = text.lines().map(|line| format!("9{line}\n")).collect::<String>();
        let begun = text.lines().next().unwrap();
        fs::write(&file, format!("{future}\nno line\n\t\t\t\t\t\t\n{begun}")).unwrap();
        assert!(!known(&log_of_first(&ours, &theirs, &file)));
    });
}

//= reach.md: a file of learnt routes that is not to be trusted is not used
#[test]
fn a_strangers_file_is_not_used() {
    let (ours, theirs) = (ports(1, [0, 1]), ports(3, [1, 0]));
    isolated(here!(), &PATIENT, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reach");
        log_of_first(&ours, &theirs, &file);
        let text = fs::read(&file).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let lines = log_of_first(&ours, &theirs, &file);
        assert!(!has(&lines, WARN, "not tried, since it failed"));
        assert_eq!(fs::read(&file).unwrap(), text);
        // A folder in its place.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        log_of_first(&ours, &theirs, &file);
    });
}
