//! How messages reach the adapter: one doorbell for each chain of work requests, inline CTS
//! entries, whole cache lines.

use mpib_proto::CACHE_LINE;
use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{take_warning, take_warnings};
use mpib_tests::pair::{Pair, connect, init, pattern};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{here, misbehaving_peer, mpib, with_and_without_srq};
use softverbs::Counters;

/// Work that both ends posted on a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Asked {
    doorbells: u64,
    writes: u64,
    with_imm: u64,
    inline: u64,
}

fn counted() -> Vec<Counters> {
    softverbs::counters().into_iter().map(|device| device.total).collect()
}

/// Moves a group of `n` messages of `len` bytes. Returns the work posted on each rail.
fn group(pair: &Pair, n: usize, len: usize) -> Vec<Asked> {
    let (from, to) = (pair.send_buffer(pattern(len.max(1), 1)), pair.recv_buffer(n * len + 1));
    let before = counted();
    let receives: Vec<_> = (0..n).map(|i| (to.addr() + i * len, len, i as i32, to.mr)).collect();
    let request = pair.irecv(&receives);
    let sends: Vec<Ptr> = (0..n).map(|i| pair.isend(from.addr(), len, i as i32, from.mr)).collect();
    sends.into_iter().chain([request]).for_each(|r| {
        pair.wait(r);
    });
    assert!((0..n).all(|i| to.bytes[i * len..(i + 1) * len] == from.bytes[..len]));
    let asked = |(now, before): (Counters, &Counters)| {
        let c = now.since(before);
        Asked { doorbells: c.doorbells, writes: c.writes, with_imm: c.writes_with_imm, inline: c.inlines }
    };
    let grown = counted().into_iter().zip(&before).map(asked).collect();
    from.dereg();
    to.dereg();
    grown
}

/// Returns the expected work of both rails. Rail 0 also carries the receiver's CTS write.
fn expect(parts: [u64; 2], imms: [u64; 2], inline: u64) -> Vec<Asked> {
    let rail = |i: usize| {
        let cts = u64::from(i == 0);
        Asked {
            doorbells: cts + imms[i],
            writes: cts + parts[i],
            with_imm: imms[i],
            inline: if i == 0 { inline } else { 0 },
        }
    };
    vec![rail(0), rail(1)]
}

#[test]
fn messages_on_one_rail_take_a_doorbell_at_each_end() {
    with_and_without_srq(here!(), &mpib("0", &[]), || {
        let pair = Pair::new(newest());
        for len in [0, 8, 100_000] {
            assert_eq!(group(&pair, 1, len), expect([0, 0], [1, 0], 1), "{len} bytes");
        }
        for n in 2..=8 {
            // A write for each, and one with the immediate and the record.
            assert_eq!(group(&pair, n, 1000), expect([n as u64, 0], [1, 0], 0), "groups of {n}");
        }
        // A size that the immediate of two rails cannot encode.
        let large = (2 << 20) + 1;
        assert_eq!(group(&pair, 1, large), expect([1, 0], [1, 0], 1), "{large} bytes");
        pair.close();
    });
}

#[test]
fn messages_on_two_rails_take_a_doorbell_on_each() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        assert_eq!(group(&pair, 1, 8192), expect([0, 0], [1, 1], 1));
        assert_eq!(group(&pair, 8, 8192), expect([8, 8], [1, 1], 0));
        assert_eq!(group(&pair, 1, (2 << 20) + 1), expect([1, 1], [1, 1], 1));
        pair.close();
    });
}

/// Data of more than 8 KiB and its immediate are two work requests in one chain.
#[test]
fn data_and_a_separate_immediate_take_one_doorbell() {
    with_and_without_srq(here!(), &mpib("512", &[("NCCL_IB_ADAPTIVE_ROUTING", "1")]), || {
        let pair = Pair::new(newest());
        assert_eq!(group(&pair, 1, 100_000), expect([1, 1], [1, 1], 1));
        pair.close();
    });
}

const NO_ROOM: &str = "soft0:addr=192.168.200.1/24,inline=0;soft1:addr=192.168.201.1/24,inline=63";

/// Moves messages with these settings. Checks the number of inline CTS writes and of warnings.
fn with(test: &str, env: &[(&str, &str)], inline: u64, expected_lines: usize) {
    with_and_without_srq(test, &mpib("512", env), || {
        let table = newest();
        let ctx = init(table);
        for _ in 0..2 {
            let pair = connect(table, ctx, 0);
            assert_eq!(group(&pair, 1, 8192), expect([0, 0], [1, 1], inline));
            assert_eq!(group(&pair, 3, 8192), expect([3, 3], [1, 1], 0));
            pair.close();
        }
        let lines = take_warnings();
        assert_eq!(lines.len(), expected_lines, "{lines:?}");
        let says = |line: &String| {
            line.contains(
                "max_inline_data is 0, expected 64; CTS writes are not inline although NCCL_IB_USE_INLINE=1",
            )
        };
        assert!(lines.iter().all(says), "{lines:?}");
    });
}

//= configuration.md: NCCL_IB_USE_INLINE
#[test]
fn cts_writes_are_inline_as_the_settings_say() {
    // With the setting. The tests above have the default.
    with(here!(), &[("NCCL_IB_USE_INLINE", "1")], 1, 0);
}

#[test]
fn cts_writes_are_read_from_memory_where_the_settings_say_so() {
    with(here!(), &[("NCCL_IB_USE_INLINE", "0")], 0, 0);
}

#[test]
fn adapters_without_inline_room_read_cts_writes_from_memory() {
    with(here!(), &[("SOFTVERBS_DEVICES", NO_ROOM)], 0, 0);
}

/// The warning is logged once, although there are two rails and two connections.
#[test]
fn adapters_without_inline_room_are_reported_if_inline_is_configured() {
    with(here!(), &[("SOFTVERBS_DEVICES", NO_ROOM), ("NCCL_IB_USE_INLINE", "1")], 0, 1);
}

#[test]
fn adapters_without_inline_room_are_refused_with_strict() {
    let env = [("SOFTVERBS_DEVICES", NO_ROOM), ("NCCL_IB_USE_INLINE", "1"), ("MPIB_STRICT", "1")];
    with_and_without_srq(here!(), &mpib("512", &env), || {
        assert_eq!(newest().init().0, InvalidUsage);
        take_warning(&["init: soft0:1: max_inline_data is 0", "(MPIB_STRICT=1)"]);
    });
}

/// The memory that a peer writes begins a cache line. Entries and records have the size of a line,
/// so none of them crosses two lines.
//= protocol.md: CTS entry and record: each in its own cache line
#[test]
fn what_peers_write_begins_a_cache_line() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        for _ in 0..5 {
            let (recv, its_sender) = misbehaving_peer::receiver(ctx);
            let (send, its_receiver) = misbehaving_peer::sender(ctx);
            for liar in [its_sender, its_receiver] {
                assert_eq!(liar.memory().addr % CACHE_LINE as u64, 0, "{:?}", liar.memory());
            }
            assert_eq!((table.close_send(send), table.close_recv(recv)), (Success, Success));
        }
    });
}
