//! Processes that connect to each other at the same time, and to themselves.

use mpib_tests::code::Success;
use mpib_tests::pair::{connect, init, until};
use mpib_tests::peer::Peer;
use mpib_tests::table::{Ptr, TABLES, newest};
use mpib_tests::{here, isolated, mpib};

/// Gives each of them a command; all have answered when this returns.
fn all(peers: &mut [Peer], command: impl Fn(usize) -> String) -> Vec<String> {
    for (i, peer) in peers.iter_mut().enumerate() {
        peer.say(&command(i));
    }
    peers.iter().map(Peer::answer).collect()
}

/// Each connects to the next one, and the last to the first, before any of them accepts.
fn in_a_ring(test: &str, n: usize) {
    isolated(test, &mpib("512", &[]), || {
        let mut peers: Vec<Peer> = (0..n).map(|_| Peer::start()).collect();
        for round in 0..10 {
            let handles = all(&mut peers, |_| "listen".into());
            assert!(all(&mut peers, |i| format!("cross {}", handles[(i + 1) % n])).iter().all(|a| a == "ok"));
            let seed = |i: usize| 1 + i + n * round;
            // What it sends itself, and what it gets from the one before.
            let exchange = |i: usize| format!("exchange 70000 {} {}", seed(i), seed((i + n - 1) % n));
            assert!(all(&mut peers, exchange).iter().all(|a| a == "ok"));
            assert!(all(&mut peers, |_| "close".into()).iter().all(|a| a == "ok"));
        }
        let said = all(&mut peers, |_| "log".into());
        assert!(said.iter().flat_map(|log| log.split('\t')).all(|line| !line.starts_with("2 ")), "{said:?}");
        peers.into_iter().for_each(Peer::finish);
    });
}

//= reach.md: processes connect to each other, in circles and to themselves
#[test]
fn two_processes_connect_to_each_other_at_once() {
    in_a_ring(here!(), 2);
}

//= reach.md: processes connect to each other, in circles and to themselves
#[test]
fn three_processes_connect_in_a_circle_at_once() {
    in_a_ring(here!(), 3);
}

/// One process, one thread, twenty connections to itself of every version, all under way at once.
//= reach.md: processes connect to each other, in circles and to themselves
#[test]
fn a_process_connects_to_itself_many_times_at_once() {
    isolated(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            let mut listens = Vec::new();
            let mut handles = Vec::new();
            for _ in 0..20 {
                let mut handle = [0; 128];
                let (rc, listen) = table.listen(ctx, 0, &mut handle);
                assert_eq!(rc, Success);
                listens.push(listen);
                handles.push(handle);
            }
            let mut ends = vec![[Ptr::default(); 2]; 20];
            until("all of them", || {
                for ((ends, handle), listen) in ends.iter_mut().zip(&mut handles).zip(&listens) {
                    let [send, recv] = ends;
                    let made = |end: &mut Ptr, (rc, comm)| {
                        assert_eq!(rc, Success);
                        *end = comm;
                    };
                    if send.is_null() {
                        made(send, table.connect(ctx, 0, handle));
                    }
                    if recv.is_null() {
                        made(recv, table.accept(*listen));
                    }
                }
                ends.iter().flatten().all(|end| !end.is_null()).then_some(())
            });
            for (i, ends) in ends.into_iter().enumerate() {
                let pair = mpib_tests::pair::Pair { table, send: ends[0], recv: ends[1] };
                pair.message(3000, 3000, i as u64);
                pair.close();
            }
            listens.into_iter().for_each(|listen| assert_eq!(table.close_listen(listen), Success));
        }
        let pair = connect(newest(), init(newest()), 0);
        pair.message(1, 1, 1);
        pair.close();
    });
}
