//! The statistics page: what a second process reads of this one, compared with what was sent and
//! what softverbs counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use mpib_tests::agent::Place;
use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{take_warning, take_warnings};
use mpib_tests::pair::{Pair, connect, init, until};
use mpib_tests::peer::{Peer, from_peer, recv, to_peer};
use mpib_tests::rng::Rng;
use mpib_tests::stats::{Fields, Reader};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{TWO_RAILS, here, isolated, mpib, set};
use nccl_net_mpib_agent_iface::stats::{STATS_ENTRIES, pages_of};

/// What softverbs has counted on a device: of queue pairs that send data, and of those that send
/// CTS entries only.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Wire {
    data_writes: u64,
    data_bytes: u64,
    cts_writes: u64,
}

/// Since `before`, which is where each queue pair stood. Only data goes with immediates.
fn wire(device: &str, before: &[softverbs::DeviceCounters]) -> Wire {
    let of = |all: &[softverbs::DeviceCounters]| all.iter().find(|d| d.name == device).unwrap().qps.clone();
    let (old, mut wire) = (of(before), Wire::default());
    for qp in of(&softverbs::counters()) {
        let old = old.iter().find(|o| o.qpn == qp.qpn).map_or_else(Default::default, |o| o.counters);
        let with_imm = qp.counters.writes_with_imm - old.writes_with_imm;
        let writes = qp.counters.writes - old.writes;
        if with_imm > 0 {
            wire.data_writes += writes + with_imm;
            wire.data_bytes += qp.counters.bytes - old.bytes;
        } else {
            wire.cts_writes += writes;
        }
    }
    wire
}

/// One group of messages of these sizes; returns when both ends are done with it.
fn group(pair: &Pair, sizes: &[usize]) {
    let (from, to) = (pair.send_buffer(vec![7; 1 << 20]), pair.recv_buffer(8 << 20));
    let receives: Vec<_> =
        (0..sizes.len()).map(|i| (to.addr() + (i << 20), 1 << 20, i as i32, to.mr)).collect();
    let request = pair.irecv(&receives);
    let sends: Vec<Ptr> =
        sizes.iter().enumerate().map(|(i, size)| pair.isend(from.addr(), *size, i as i32, from.mr)).collect();
    sends.into_iter().chain([request]).for_each(|r| {
        pair.wait(r);
    });
    from.dereg();
    to.dereg();
}

/// Bytes of the record that goes with each group.
const RECORD: u64 = 64;

#[test]
fn counters_are_those_of_what_was_sent_and_of_what_the_devices_did() {
    isolated(here!(), &mpib("341", &[]), || {
        let (mut random, mut reader) = (Rng::from_env().1, Reader::start());
        let pair = Pair::new(newest());
        let before = softverbs::counters();
        let fresh = [reader.one("send"), reader.one("recv")];
        for c in &fresh {
            let zero = c.numbers(["requests", "done", "messages", "bytes", "0.posted", "1.posted"]);
            assert_eq!(zero, [0; 6], "probes do not count");
            assert_eq!((c.text("share"), c.text("state")), ("none", "open"));
            assert_eq!((c.text("islands"), c.text("data")), ("intra", "split"));
            assert!(c.text("peer").contains(&format!("pid {}", std::process::id())), "{c:?}");
            assert_eq!((c.text("0.name"), c.text("1.name")), ("soft0:1", "soft1:1"));
            assert_eq!(c.numbers(["0.role", "1.role"]), [0, 1]);
        }
        let (mut messages, mut groups, mut records, mut bytes, mut on) = (0, 0, 0, 0u64, [0u64; 2]);
        let mut parts = [0u64; 2];
        for _ in 0..300 {
            let n = 1 + random.below(8);
            // Often small, sometimes empty.
            let sizes: Vec<usize> = (0..n)
                .map(|_| {
                    let bits = random.below(20);
                    random.below(1 << bits)
                })
                .collect();
            group(&pair, &sizes);
            (groups, messages) = (groups + 1, messages + n as u64);
            records += u64::from(n > 1);
            for size in &sizes {
                let sup = size * 341 / 1024 / 128 * 128;
                bytes += *size as u64;
                on[0] += (size - sup) as u64;
                on[1] += sup as u64;
                // An empty message has a separate write only if it is alone.
                parts[0] += u64::from(size - sup > 0 || n == 1);
                parts[1] += u64::from(sup > 0);
            }
        }
        let (send, recv) = (reader.one("send"), reader.one("recv"));
        assert_eq!(send.numbers(["requests", "done", "messages"]), [messages; 3]);
        assert_eq!(recv.numbers(["requests", "done", "messages"]), [groups, groups, messages]);
        assert_eq!((send.number("bytes"), recv.number("bytes")), (bytes, bytes));
        assert_eq!(send.numbers(["0.bytes", "1.bytes"]), on);
        assert_eq!(send.numbers(["0.parts", "1.parts"]), parts);
        assert_eq!((recv.text("0.bytes"), recv.text("1.bytes")), ("none", "none"));
        assert_eq!((send.text("share"), recv.text("share")), ("341", "none"));
        let wires = ["soft0", "soft1"].map(|device| wire(device, &before));
        for (i, wire) in wires.iter().enumerate() {
            let posted = format!("{i}.posted");
            assert_eq!(send.number(&posted), wire.data_writes, "rail {i}");
            assert_eq!(send.number(&format!("{i}.done")), wire.data_writes, "all are done on rail {i}");
            assert_eq!(recv.number(&posted), wire.cts_writes, "rail {i}");
            assert!(recv.number(&format!("{i}.done")) <= wire.cts_writes);
        }
        let carried = wires[0].data_bytes + wires[1].data_bytes;
        assert_eq!(carried, bytes + records * RECORD);
        // One immediate for each rail of each group.
        assert_eq!(recv.rails("posted"), groups);
        let arrivals: u64 = recv.rails("parts");
        assert!(arrivals >= groups && arrivals <= 2 * groups, "{arrivals}");
        for c in [&send, &recv] {
            assert_eq!((c.number("errors"), c.rails("errors"), c.text("state")), (0, 0, "open"));
        }
        pair.close();
        assert_eq!(reader.here().connections.len(), 0);
    });
}

#[test]
fn requests_in_flight_and_refused_calls_show() {
    isolated(here!(), &mpib("1024", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let pair = Pair::new(table);
        let (from, to) = (pair.send_buffer(vec![1; 512]), pair.recv_buffer(512));
        for n in 1..=3 {
            let (rc, request) = table.isend(pair.send, from.addr(), 512, 1, from.mr);
            assert_eq!((rc, request.is_null()), (Success, true));
            assert_eq!(reader.one("send").numbers(["requests", "waits_peer", "waits_queue"]), [0, n, 0]);
        }
        let offer = [(to.addr(), 512, 1, to.mr)];
        let mut receives: Vec<Ptr> = (0..64).map(|_| pair.irecv(&offer)).collect();
        for n in 1..=2 {
            let (rc, request) = table.irecv(pair.recv, &offer);
            assert_eq!((rc, request.is_null()), (Success, true), "64 are under way");
            let seen = reader.one("recv");
            assert_eq!(seen.numbers(["requests", "done", "messages", "waits_queue"]), [64, 0, 0, n]);
        }
        // Another tag than that of the receive that is next.
        let (rc, request) = table.isend(pair.send, from.addr(), 512, 2, from.mr);
        assert_eq!((rc, request.is_null()), (Success, true));
        assert!(reader.one("send").number("waits_peer") >= 4);
        let mut sends: Vec<Ptr> = (0..64).map(|_| pair.isend(from.addr(), 512, 1, from.mr)).collect();
        let send = reader.one("send");
        assert_eq!(send.numbers(["requests", "done", "bytes", "1.bytes"]), [64, 0, 0, 64 * 512]);
        assert!(send.number("1.posted") - send.number("1.done") <= 64);
        for n in 1..=2 {
            let (rc, request) = table.isend(pair.send, from.addr(), 512, 1, from.mr);
            assert_eq!((rc, request.is_null()), (Success, true));
            let send = reader.one("send");
            assert_eq!(send.number("waits_peer") + send.number("waits_queue"), 4 + n, "{send:?}");
        }
        pair.wait(sends.remove(0));
        pair.wait(receives.remove(0));
        // A look at the queues may have found more of them done.
        for way in ["send", "recv"] {
            let [requests, done, messages, bytes] =
                reader.one(way).numbers(["requests", "done", "messages", "bytes"]);
            assert_eq!((requests, messages, bytes), (64, done, 512 * done), "{way}");
            assert!(done >= 1, "{way}");
        }
        sends.into_iter().chain(receives).for_each(|r| {
            pair.wait(r);
        });
        assert_eq!(reader.one("send").numbers(["done", "1.bytes", "0.bytes"]), [64, 64 * 512, 0]);
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// Sends that nobody receives, and receives to which nobody sends, until the other end does.
//= stats.md: a connection shows for what it waits, and since when
#[test]
fn a_wait_shows_until_it_is_over() {
    isolated(here!(), &mpib("1024", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let pair = Pair::new(table);
        let (from, to) = (pair.send_buffer(vec![1; 512]), pair.recv_buffer(512));
        assert_eq!((reader.one("send").text("wait"), reader.one("recv").text("wait")), ("none", "none"));
        let begun = now_ms();
        let send = || table.isend(pair.send, from.addr(), 512, 1, from.mr);
        let since = until("a wait for a receive", || {
            assert_eq!(send(), (Success, Ptr::default()));
            let seen = reader.one("send");
            (seen.text("wait") == "receive").then(|| seen.number("since"))
        });
        assert!((begun..=now_ms()).contains(&since), "{begun} {since}");
        until("a longer wait", || {
            assert_eq!(send(), (Success, Ptr::default()));
            (now_ms() >= since + 1_000).then_some(())
        });
        let seen = reader.one("send");
        assert_eq!((seen.text("wait"), seen.number("since")), ("receive", since), "it goes on");
        assert_eq!(reader.one("recv").text("wait"), "none", "nothing is asked of the receiver");
        let receive = pair.irecv(&[(to.addr(), 512, 1, to.mr)]);
        let sent = pair.isend(from.addr(), 512, 1, from.mr);
        pair.wait(sent);
        pair.wait(receive);
        until("its end", || (reader.one("send").text("wait") == "none").then_some(()));

        let receive = pair.irecv(&[(to.addr(), 512, 1, to.mr)]);
        until("a wait for data", || (reader.one("recv").text("wait") == "data").then_some(()));
        assert_eq!(reader.one("send").text("wait"), "none", "NCCL leaves the sender alone");
        let sent = pair.isend(from.addr(), 512, 1, from.mr);
        pair.wait(sent);
        pair.wait(receive);
        until("its end", || (reader.one("recv").text("wait") == "none").then_some(()));
        from.dereg();
        to.dereg();
        pair.close();
    });
}

/// ms since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

#[test]
fn the_share_is_the_one_that_the_last_message_went_by() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::create();
        set("MPIB_AGENT_SOCKET", Some(place.socket()));
        set("MPIB_HINTS", Some(place.file()));
        let mut agent = place.agent();
        let mut reader = Reader::start();
        let pair = Pair::new(newest());
        for _ in 0..2 {
            agent.event("registered");
        }
        assert_eq!(reader.one("send").text("share"), "none", "no message went by a share yet");
        for share in [256, 1024, 0, 777] {
            agent.tell(&format!("set 1 {share}"));
            until("the share", || {
                pair.message(100, 100, 1);
                (reader.one("send").text("share") == share.to_string()).then_some(())
            });
            let before = reader.one("send");
            group(&pair, &[1 << 20]);
            let after = reader.one("send");
            let sup = (1 << 20) * share / 1024 / 128 * 128;
            assert_eq!(after.number("1.bytes") - before.number("1.bytes"), sup, "share {share}");
        }
        pair.close();
    });
}

/// Only SOUT has carried data, so a flush is one read there.
#[test]
fn flushes_are_requests_without_messages() {
    isolated(here!(), &mpib("0", &[("MPIB_FLUSH", "1")]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let pair = Pair::new(table);
        pair.message(1000, 1000, 1);
        let to = pair.recv_buffer(1000);
        let names = ["requests", "done", "messages", "0.posted", "1.posted"];
        assert_eq!(reader.one("recv").numbers(names), [1, 1, 1, 1, 0]);
        let (rc, request) = table.iflush(pair.recv, &[(to.addr(), 1000, to.mr)]);
        assert_eq!((rc, request.is_null()), (Success, false));
        assert_eq!(reader.one("recv").numbers(names), [2, 1, 1, 2, 0]);
        pair.wait(request);
        let after = reader.one("recv");
        assert_eq!(after.numbers(names), [2, 2, 1, 2, 0]);
        // The CTS write asked for no completion.
        assert_eq!(after.number("0.done"), 1);
        to.dereg();
        pair.close();
    });
}

#[test]
fn one_rail_for_all_data_shows_no_share() {
    isolated(here!(), &TWO_RAILS, || {
        let mut reader = Reader::start();
        let pair = Pair::new(newest());
        pair.message(1000, 1000, 1);
        let send = reader.one("send");
        assert_eq!(
            (send.text("islands"), send.text("data"), send.text("share")),
            ("intra", "one rail", "none")
        );
        // SOUT stands in while SUP is given up.
        assert_eq!(send.numbers(["0.bytes", "1.bytes"]), [0, 1000]);
        pair.close();
    });
}

#[test]
fn a_connection_whose_peer_died_shows_failed_and_why_until_it_is_closed() {
    let env = mpib("512", &[("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "1")]);
    isolated(here!(), &env, || {
        let table = newest();
        let ctx = init(table);
        let (mut reader, mut peer) = (Reader::start(), Peer::start());
        let (there, here) = (to_peer(table, ctx, &mut peer), from_peer(table, ctx, &mut peer));
        // The peer counts too, and each process shows its own.
        let theirs = reader.ask(peer.pid()).unwrap();
        assert_eq!(theirs.process.number("pid"), u64::from(peer.pid()));
        assert_eq!(theirs.connections.len(), 2);
        let room = mpib_tests::pair::Buffer::new(table, here, vec![0; 4096]);
        let request = recv(table, here, &room, 4096);
        peer.kill();
        assert!(reader.ask(peer.pid()).is_err(), "nothing is left of a process that ended");
        let code = until("a failure", || Some(table.test(request).0).filter(|rc| *rc != Success));
        assert_ne!(code, Success);
        let said = take_warnings().pop().unwrap();
        let failed = reader.one("recv");
        assert_eq!((failed.text("state"), failed.number("errors")), ("failed", 1));
        let reason = failed.text("reason");
        assert!(reason.contains("was lost") && said.contains(reason), "{reason:?}, {said:?}");
        assert_eq!((failed.number("requests"), failed.number("done")), (1, 0));
        assert_eq!(reader.one("send").text("state"), "open", "the other one was not used since");
        room.dereg();
        assert_eq!((table.close_send(there), table.close_recv(here)), (Success, Success));
        assert_eq!(reader.here().connections.len(), 0);
    });
}

/// A data write that the device refuses: the error is counted where it happened.
#[test]
fn a_failed_completion_is_counted_on_its_rail() {
    isolated(here!(), &mpib("1024", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let pair = Pair::new(table);
        let (from, to) = (pair.send_buffer(vec![1; 4096]), pair.recv_buffer(4096));
        let _recv = pair.irecv(&[(to.addr(), 4096, 1, to.mr)]);
        // What the sender was offered is taken away.
        to.dereg();
        let send = pair.isend(from.addr(), 4096, 1, from.mr);
        until("a failure", || (table.test(send).0 != Success).then_some(()));
        let failed = reader.one("send");
        assert_eq!((failed.text("state"), failed.number("errors")), ("failed", 1));
        assert_eq!(failed.numbers(["0.errors", "1.errors"]), [0, 1]);
        assert!(failed.text("reason").contains("on rail 1 (soft1:1)"), "{failed:?}");
        from.dereg();
        pair.close();
    });
}

#[test]
fn a_closed_connection_gives_its_entry_to_the_next() {
    isolated(here!(), &mpib("512", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let ctx = init(table);
        let mut before: Option<[Fields; 2]> = None;
        for round in 1..=3 {
            let pair = connect(table, ctx, 0);
            pair.message(round * 1000, round * 1000, 1);
            let ends = [reader.one("send"), reader.one("recv")];
            assert_eq!(reader.here().process.numbers(["opened", "open", "hidden"]), [2 * round as u64, 2, 0]);
            for end in &ends {
                assert_eq!(end.numbers(["messages", "bytes"]), [1, round as u64 * 1000]);
            }
            if let Some(before) = before {
                let places = |ends: &[Fields; 2]| {
                    let mut all = ends.each_ref().map(|c| c.numbers(["index", "generation"]));
                    all.sort_unstable();
                    all
                };
                let next = places(&before).map(|[index, generation]| [index, generation + 2]);
                assert_eq!(places(&ends), next);
            }
            before = Some(ends);
            pair.close();
            assert_eq!(reader.here().connections.len(), 0);
            // The page belongs to the process: it exists even after `finalize`.
            assert_eq!(table.finalize(init(table)), Success);
        }
        assert_eq!(table.finalize(ctx), Success);
        assert_eq!(reader.here().process.numbers(["opened", "open", "pages"]), [6, 0, 1]);
    });
}

//= stats.md: totals have closed connections and those that are not shown
#[test]
fn connections_beyond_the_last_entry_work_and_are_counted() {
    isolated(here!(), &[("NCCL_IB_HCA", "soft0")], || {
        let (mut reader, table) = (Reader::start(), newest());
        let ctx = init(table);
        let half = STATS_ENTRIES / 2;
        let mut pairs: Vec<Pair> = (0..half + 2).map(|_| connect(table, ctx, 0)).collect();
        let all = |reader: &mut Reader| {
            let seen = reader.here();
            let [open, hidden] = seen.process.numbers(["open", "hidden"]);
            (open as usize, hidden, seen.connections.len())
        };
        assert_eq!(all(&mut reader), (STATS_ENTRIES + 4, 4, STATS_ENTRIES));
        let last = pairs.pop().unwrap();
        last.message(5000, 5000, 1);
        // The last pair has no entries, and its counters are in no page.
        let sums = || {
            let read = pages_of(std::process::id()).unwrap()[0].read();
            let on_port = read.ports[0].totals;
            (read.totals.map(|sum| (sum.messages, sum.bytes)), (on_port.bytes, on_port.parts_received))
        };
        until("the totals to have its message", || (sums() == ([(1, 5000); 2], (5000, 1))).then_some(()));
        last.message(1000, 1000, 1);
        last.close();
        assert_eq!(sums(), ([(2, 6000); 2], (6000, 2)), "at the end of the connection");
        assert_eq!(all(&mut reader), (STATS_ENTRIES + 2, 2, STATS_ENTRIES));
        pairs.swap_remove(0).close();
        assert_eq!(all(&mut reader), (STATS_ENTRIES, 2, STATS_ENTRIES - 2));
        pairs.push(connect(table, ctx, 0));
        assert_eq!(all(&mut reader), (STATS_ENTRIES + 2, 2, STATS_ENTRIES));
        pairs.into_iter().for_each(Pair::close);
        assert_eq!(all(&mut reader), (0, 0, 0));
        assert_eq!(take_warnings(), [""; 0]);
    });
}

/// Two threads, with one pair of comms each, and a reader that reads all the time.
#[test]
fn counters_of_two_threads_only_ever_rise_and_end_exact() {
    const MESSAGES: u64 = 3000;
    isolated(here!(), &mpib("512", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let ctx = init(table);
        let pairs = [connect(table, ctx, 0), connect(table, ctx, 0)];
        let running = [AtomicBool::new(true), AtomicBool::new(true)];
        std::thread::scope(|scope| {
            for (i, (pair, running)) in pairs.iter().zip(&running).enumerate() {
                scope.spawn(move || {
                    let size = 300 * (i + 1);
                    let (from, to) = (pair.send_buffer(vec![1; size]), pair.recv_buffer(size));
                    for _ in 0..MESSAGES {
                        let recv = pair.irecv(&[(to.addr(), size, 1, to.mr)]);
                        let send = pair.isend(from.addr(), size, 1, from.mr);
                        pair.wait(send);
                        pair.wait(recv);
                    }
                    from.dereg();
                    to.dereg();
                    running.store(false, Ordering::Relaxed);
                });
            }
            let names =
                ["requests", "done", "messages", "bytes", "0.posted", "0.done", "1.posted", "1.parts"];
            let mut last = vec![[0; 8]; 4];
            while running.iter().any(|r| r.load(Ordering::Relaxed)) {
                let seen = reader.here().connections;
                assert_eq!(seen.len(), 4);
                for (c, last) in seen.iter().zip(&mut last) {
                    let now = c.numbers(names);
                    assert!(now.iter().zip(&*last).all(|(now, last)| now >= last), "{now:?} after {last:?}");
                    assert!(now[1] <= now[0] && now[5] <= now[4], "{now:?}");
                    *last = now;
                }
            }
        });
        let mut bytes: Vec<_> =
            reader.here().connections.iter().map(|c| c.numbers(["done", "bytes"])).collect();
        bytes.sort_unstable();
        let of = |size: u64| [MESSAGES, MESSAGES * size];
        assert_eq!(bytes, [of(300), of(300), of(600), of(600)]);
        pairs.into_iter().for_each(Pair::close);
    });
}

//= faults.md: 63
#[test]
fn a_forked_process_that_goes_on_with_a_comm_does_not_count_in_its_parents_page() {
    isolated(here!(), &mpib("512", &[]), || {
        let (mut reader, table) = (Reader::start(), newest());
        let pair = Pair::new(table);
        let from = pair.send_buffer(vec![1; 100]);
        let try_to_send = || table.isend(pair.send, from.addr(), 100, 1, from.mr);
        assert_eq!(try_to_send().0, Success);
        // SAFETY: the child calls isend, which is refused there, with the allocator that glibc
        // keeps whole, and then stands still.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused =
                (0..50).all(|_| matches!(try_to_send(), (InvalidUsage, request) if request.is_null()));
            // SAFETY: as above.
            unsafe {
                if !refused {
                    libc::_exit(1);
                }
                libc::raise(libc::SIGSTOP);
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a writable int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
        let shown = reader.ask(child as u32);
        // SAFETY: a child of ours, waited for at once.
        let ended =
            unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
        assert_eq!(ended, (0, child));
        assert!(libc::WIFSTOPPED(status), "the child's sends were not refused: {status:#x}");
        assert!(shown.unwrap_err().contains("no statistics page"));
        assert_eq!(reader.one("send").number("waits_peer"), 1);
        pair.message(100, 100, 1);
        assert_eq!(reader.one("send").number("done"), 1);
        from.dereg();
        pair.close();
    });
}

/// The page has this job.
fn has_job(test: &str, env: &[(&str, &str)], job: &str) {
    isolated(test, &mpib("512", env), || {
        let pair = Pair::new(newest());
        assert_eq!(Reader::start().here().process.text("job"), job);
        pair.close();
    });
}

//= stats.md: the job of a process is that of its scheduler
#[test]
fn the_page_has_the_job_of_the_scheduler() {
    has_job(here!(), &[("SLURM_JOB_ID", "4711")], "4711");
}

//= configuration.md: MPIB_JOB
#[test]
fn the_page_has_the_job_of_the_setting() {
    has_job(here!(), &[("SLURM_JOB_ID", "4711"), ("MPIB_JOB", "llama-run-3")], "llama-run-3");
}

//= configuration.md: MPIB_STATS
#[test]
fn no_page_if_disabled() {
    isolated(here!(), &mpib("512", &[("MPIB_STATS", "0")]), || {
        let mut reader = Reader::start();
        let pair = Pair::new(newest());
        pair.message(5000, 5000, 1);
        let why = reader.ask(std::process::id()).unwrap_err();
        assert!(why.contains("MPIB_STATS=0"), "{why}");
        // A later communicator may count; the first does not.
        set("MPIB_STATS", Some("1"));
        let counted = Pair::new(newest());
        assert_eq!(reader.here().connections.len(), 2);
        counted.message(5000, 5000, 1);
        pair.message(5000, 5000, 1);
        assert_eq!(reader.one("send").number("messages"), 1);
        counted.close();
        pair.close();
    });
}

/// Lowers the limit on the size of files: no page can be made.
fn no_room_for_a_page(table: &Table) {
    set("MPIB_STATS", Some("0"));
    // The devices' own files are made before.
    init(table);
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a readable limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    set("MPIB_STATS", None::<&str>);
    take_warnings();
}

//= faults.md: 43: the statistics page cannot be made: one warning; an error with MPIB_STRICT=1
#[test]
fn a_page_that_cannot_be_made_is_one_warning() {
    isolated(here!(), &mpib("512", &[]), || {
        no_room_for_a_page(newest());
        (0..3).for_each(|_| {
            init(newest());
        });
        let lines = take_warnings();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for part in ["no statistics page", "MPIB_STATS=0", "ulimit -f", "4096"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    });
}

//= faults.md: 43
#[test]
fn a_page_that_cannot_be_made_fails_a_strict_init() {
    isolated(here!(), &mpib("512", &[("MPIB_STRICT", "1")]), || {
        no_room_for_a_page(newest());
        assert_eq!(newest().init().0, InvalidUsage);
        take_warning(&["(MPIB_STRICT=1)"]);
    });
}
