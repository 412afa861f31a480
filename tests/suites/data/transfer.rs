//! Transfers through the exported tables, over software devices, within one process.

use mpib_tests::code::Success;
use mpib_tests::pair::{Pair, connect, init, pattern};
use mpib_tests::table::{TABLES, newest};
use mpib_tests::{here, mpib, with_and_without_srq};

/// Around every limit: alignment of splits, the units of the immediate, several MiB.
const SIZES: &[usize] = &[
    0,
    1,
    2,
    63,
    64,
    127,
    128,
    129,
    255,
    256,
    257,
    4095,
    4096,
    65_536,
    65_537,
    (1 << 20) + 13,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (2 << 20) + 128,
    (4 << 20) + 3,
    8 << 20,
];

fn all_sizes() {
    let pair = Pair::new(newest());
    for (i, &size) in SIZES.iter().enumerate() {
        pair.message(size, size, i as u64);
        pair.message(size, size + 4096, i as u64 + 100);
    }
    pair.close();
}

#[test]
fn all_sizes_on_one_rail() {
    with_and_without_srq(here!(), &[], all_sizes);
}

#[test]
fn all_sizes_on_sout() {
    with_and_without_srq(here!(), &mpib("0", &[]), all_sizes);
}

#[test]
fn all_sizes_on_a_quarter_of_sup() {
    with_and_without_srq(here!(), &mpib("256", &[]), all_sizes);
}

#[test]
fn all_sizes_on_both_halves() {
    with_and_without_srq(here!(), &mpib("512", &[]), all_sizes);
}

#[test]
fn all_sizes_on_sup() {
    with_and_without_srq(here!(), &mpib("1024", &[]), all_sizes);
}

#[test]
fn every_version_transfers() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            assert_eq!(table.name(), "MPIB");
            assert_eq!(table.devices(), (Success, 1));
            let pair = connect(table, ctx, 0);
            for size in [0, 1, 300, 1 << 20] {
                pair.message(size, size + 10, size as u64);
            }
            pair.close();
            assert_eq!(table.finalize(ctx), Success);
        }
    });
}

#[test]
fn a_group_is_met_by_tags_in_any_order() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        for n in 1..=8usize {
            for round in 0..20u64 {
                let rooms: Vec<usize> =
                    (0..n).map(|i| 1000 * (i + 1) + 5000 * (round as usize % 3)).collect();
                // Shorter sends, some of them empty.
                let lens: Vec<usize> = (0..n).map(|i| (rooms[i] * i) / n).collect();
                let to: Vec<_> = rooms.iter().map(|room| pair.recv_buffer(*room)).collect();
                let data: Vec<_> = (0..n).map(|i| pattern(lens[i].max(1), round * 8 + i as u64)).collect();
                let from: Vec<_> = data.iter().map(|d| pair.send_buffer(d.clone())).collect();
                let group: Vec<_> =
                    (0..n).map(|i| (to[i].addr(), rooms[i], 100 + i as i32, to[i].mr)).collect();
                let recv = pair.irecv(&group);
                let order = (0..n).map(|i| (i * 5 + round as usize) % n);
                let order: Vec<usize> = if n == 5 { (0..n).rev().collect() } else { order.collect() };
                let sends: Vec<_> = order
                    .iter()
                    .map(|&i| (i, pair.isend(from[i].addr(), lens[i], 100 + i as i32, from[i].mr)))
                    .collect();
                for (i, send) in sends {
                    assert_eq!(pair.wait(send)[0], lens[i] as i32);
                }
                let sizes = pair.wait(recv);
                for i in 0..n {
                    assert_eq!(sizes[i], lens[i] as i32, "receive {i} of {n}");
                    assert!(
                        to[i].bytes[..lens[i]] == data[i][..lens[i]],
                        "receive {i} of {n}, round {round}"
                    );
                    assert!(to[i].bytes[lens[i]..].iter().all(|b| *b == 0xEE));
                }
                to.into_iter().chain(from).for_each(|b| b.dereg());
            }
        }
        pair.close();
    });
}
