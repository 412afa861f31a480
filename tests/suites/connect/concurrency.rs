//! Many connections between two processes, many receives, and registrations, all at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mpib_tests::code::{InvalidUsage, RemoteError, Success};
use mpib_tests::log::warnings;
use mpib_tests::pair::{Buffer, HOST, Pair, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer, recv, send, to_peer, wait};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{here, isolated, mpib};

/// One connection in each direction: the peer returns each message on the other one.
struct Lane {
    there: Ptr,
    here: Ptr,
    from: Buffer,
    to: Buffer,
    back: Ptr,
    sent: Option<Ptr>,
    /// Messages that have come back.
    round: usize,
}

const ROUNDS: usize = 20;

impl Lane {
    fn new(table: &'static Table, (there, here): (Ptr, Ptr), seed: usize, len: usize) -> Self {
        let from = Buffer::new(table, there, pattern(len, seed as u64));
        let to = Buffer::new(table, here, vec![0; len]);
        let back = recv(table, here, &to, len);
        Self { there, here, from, to, back, sent: None, round: 0 }
    }

    /// Does the next step that is possible now.
    fn advance(&mut self, table: &Table) {
        let len = self.from.bytes.len();
        let Some(sent) = self.sent else {
            let (rc, request) = table.isend(self.there, self.from.addr(), len, 1, self.from.mr);
            assert_eq!(rc, Success, "isend");
            self.sent = Some(request).filter(|request| !request.is_null());
            return;
        };
        let (rc, done, sizes) = table.test(self.back);
        assert_eq!(rc, Success, "test of a receive");
        if !done {
            return;
        }
        assert_eq!(sizes[0] as usize, len);
        assert!(self.to.bytes == self.from.bytes, "message {} differs", self.round);
        wait(table, sent);
        (self.sent, self.round) = (None, self.round + 1);
        if self.round < ROUNDS {
            // Bytes that differ from those of the last round: old data cannot pass as new.
            self.from.bytes.rotate_left(1);
            self.to.bytes.fill(0);
            self.back = recv(table, self.here, &self.to, len);
        }
    }

    fn close(self, table: &Table) {
        self.from.dereg();
        self.to.dereg();
        assert_eq!((table.close_send(self.there), table.close_recv(self.here)), (Success, Success));
    }
}

#[test]
fn sixty_four_connections_to_a_process_move_data_at_once() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let len = 10_000;
        let comms: Vec<_> =
            (0..32).map(|_| (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer))).collect();
        peer.say(&format!("echo {ROUNDS} {len}"));
        let mut lanes: Vec<_> =
            comms.into_iter().enumerate().map(|(i, comms)| Lane::new(table, comms, i, len)).collect();
        until("all messages to come back", || {
            lanes.iter_mut().filter(|lane| lane.round < ROUNDS).for_each(|lane| lane.advance(table));
            lanes.iter().all(|lane| lane.round == ROUNDS).then_some(())
        });
        assert_eq!(peer.answer(), "ok");
        peer.must("close");
        peer.finish();
        lanes.into_iter().for_each(|lane| lane.close(table));
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

#[test]
fn two_threads_drive_their_comms_while_a_third_registers_on_them() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let pairs = [Pair::new(table), Pair::new(table)];
        // Registration goes on as long as data moves, and data as long as there are too few
        // registrations.
        let (over, registered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (i, pair) in pairs.iter().enumerate() {
                let (over, registered, failed) = (&over, &registered, &failed);
                scope.spawn(move || {
                    let _on_panic = FailureOnPanic(failed);
                    let (from, to) = (pair.send_buffer(pattern(30_000, i as u64)), pair.recv_buffer(30_000));
                    let mut rounds = 0;
                    while rounds < 2000 || registered.load(Ordering::Relaxed) < 1000 {
                        let len = 1 + rounds * 97 % 30_000;
                        let request = pair.irecv(&[(to.addr(), len, 1, to.mr)]);
                        pair.wait(send(table, pair.send, &from, len));
                        assert_eq!(pair.wait(request)[0] as usize, len);
                        assert!(to.bytes[..len] == from.bytes[..len], "round {rounds} of {i}");
                        rounds += 1;
                        assert!(!failed.load(Ordering::Relaxed));
                    }
                    from.dereg();
                    to.dereg();
                    over.fetch_add(1, Ordering::Relaxed);
                });
            }
            let _on_panic = FailureOnPanic(&failed);
            let memory = vec![0u8; 1 << 20];
            while over.load(Ordering::Relaxed) < pairs.len() && !failed.load(Ordering::Relaxed) {
                for comm in pairs.iter().flat_map(Pair::comms) {
                    let n = registered.fetch_add(1, Ordering::Relaxed);
                    let (rc, mr) = table.reg_mr(comm, memory.as_ptr().addr() + n % 4096, 1 << 19, HOST);
                    assert_eq!((rc, mr.is_null()), (Success, false), "regMr");
                    assert_eq!(table.dereg_mr(comm, mr), Success, "deregMr");
                }
            }
        });
        pairs.into_iter().for_each(Pair::close);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// Signals a panic to the other threads, which would otherwise wait for this thread.
struct FailureOnPanic<'a>(&'a AtomicBool);

impl Drop for FailureOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// NCCL's maximum: 32 groups of eight receives, whose sends have another order.
#[test]
fn thirty_two_groups_of_eight_are_under_way() {
    isolated(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let (groups, n, room) = (32, 8, 300);
        let to = pair.recv_buffer(groups * n * room);
        let from = pair.send_buffer(pattern(groups * n * room, 5));
        let at = |group: usize, i: usize| (group * n + i) * room;
        for round in 0..10 {
            let receives: Vec<_> = (0..groups)
                .map(|g| {
                    let group: Vec<_> =
                        (0..n).map(|i| (to.addr() + at(g, i), room, i as i32, to.mr)).collect();
                    pair.irecv(&group)
                })
                .collect();
            // Sizes vary from 0 to the size of the receive. Sends have the reverse order of
            // receives.
            let size = |g: usize, i: usize| (g * 31 + i * 41 + round) % (room + 1);
            for g in 0..groups {
                let sends: Vec<_> = (0..n)
                    .rev()
                    .map(|i| pair.isend(from.addr() + at(g, i), size(g, i), i as i32, from.mr))
                    .collect();
                for (send, i) in sends.into_iter().zip((0..n).rev()) {
                    assert_eq!(pair.wait(send)[0] as usize, size(g, i));
                }
            }
            for (g, request) in receives.into_iter().enumerate() {
                let sizes = pair.wait(request);
                for (i, received) in sizes.iter().enumerate().take(n) {
                    let (start, len) = (at(g, i), size(g, i));
                    assert_eq!(*received as usize, len, "group {g}, receive {i}");
                    assert!(to.bytes[start..start + len] == from.bytes[start..start + len]);
                }
            }
        }
        to.dereg();
        from.dereg();
        pair.close();
    });
}

/// Between processes: a message one byte larger than its receive fails both ends and writes
/// nothing.
#[test]
fn a_message_that_is_too_large_for_the_other_process() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        for room in [1, 127, 128, 4096, 1 << 20] {
            let mut peer = Peer::start();
            let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
            // A message of exactly the size of its receive arrives, and writes nothing behind it.
            let to = Buffer::new(table, here, vec![0xEE; room + 4096]);
            let request = recv(table, here, &to, room);
            peer.must(&format!("send {room} 1"));
            assert_eq!(wait(table, request), room);
            assert!(to.bytes[..room] == pattern(room, 1) && to.bytes[room..].iter().all(|b| *b == 0xEE));
            let request = recv(table, here, &to, room);
            assert_eq!(peer.code(&format!("fail {}", room + 1)), InvalidUsage);
            let code = until("a failure", || Some(table.test(request).0).filter(|rc| *rc != Success));
            assert_eq!(code, RemoteError);
            let last = warnings().pop().unwrap();
            for part in [&peer.name(), &format!("{} bytes", room + 1), &format!("a receive of {room} bytes")]
            {
                assert!(last.contains(part), "{part:?} is not in {last:?}");
            }
            assert!(to.bytes[..room] == pattern(room, 1) && to.bytes[room..].iter().all(|b| *b == 0xEE));
            // The other comm still works.
            let from = Buffer::new(table, there, pattern(1000, 2));
            peer.say("recv 1000 2");
            assert_eq!(wait(table, send(table, there, &from, 1000)), 1000);
            assert_eq!(peer.answer(), "ok");
            from.dereg();
            to.dereg();
            peer.must("close");
            peer.finish();
            assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
        }
    });
}
