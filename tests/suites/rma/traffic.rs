//! Every byte of puts and gets, of every size and kind of memory, by every table.

use mpib_tests::log::take_warnings;
use mpib_tests::pair::pattern;
use mpib_tests::rma::{CUDA, Group, HOST, NOWHERE, OF_SIGNALS, rma_tables};
use mpib_tests::{here, isolated, mpib, two_adapters};

/// Two rails, GPU memory whose data lands after its completion.
pub(crate) const LATE: (&str, &str) = (
    "SOFTVERBS_DEVICES",
    "soft0:addr=10.1.0.1/16,dmabuf=on,posted=3ms;soft1:addr=10.2.0.1/16,dmabuf=on,posted=3ms",
);

/// Around each limit: inside of a command, behind it, over the data link.
const SIZES: [usize; 7] = [1, 8, 959, 960, 961, 100_003, 3 << 20];

/// Every rank puts to every rank, itself included, and gets what the others have.
fn every_byte_arrives(test: &str, kind: i32, devices: (&str, &str)) {
    isolated(test, &mpib("512", &[devices]), || {
        for table in rma_tables() {
            const RANKS: usize = 3;
            let group = Group::new(table, RANKS, 2);
            let room: usize = SIZES.iter().map(|size| size + 16).sum();
            let words = room.div_ceil(8);
            // What each rank sends, what it receives of each rank, and signals.
            let sources = group.window(kind, words, 0);
            let targets = group.window(kind, RANKS * words, 0);
            let signals = group.window(kind, RANKS, OF_SIGNALS);
            for rank in 0..RANKS {
                sources.write(rank, 0, &pattern(8 * words, rank as u64 + 1));
            }
            let mut requests = Vec::new();
            for from in 0..RANKS {
                for to in 0..RANKS {
                    let mut at = 0;
                    for size in SIZES {
                        let (src, dst) = (sources.at(from, at), targets.at(from, from * 8 * words + at));
                        let signal = (signals.at(from, 8 * from), 1);
                        requests.push(group.put_signal((from, (at % 2) as i32), src, size, dst, to, signal));
                        at += size + 16;
                    }
                    requests.push(group.put_signal(
                        (from, 0),
                        NOWHERE,
                        0,
                        NOWHERE,
                        to,
                        (signals.at(from, 8 * from), 1 << 32),
                    ));
                }
            }
            let all = SIZES.len() as u64 | 1 << 32;
            group.until("signals", || {
                let arrived = |rank| (0..RANKS).all(|from| signals.word(rank, 8 * from) == all);
                (0..RANKS).all(arrived).then_some(())
            });
            for to in 0..RANKS {
                for from in 0..RANKS {
                    let (sent, mut at) = (pattern(8 * words, from as u64 + 1), 0);
                    let came = targets.read(to, from * 8 * words, 8 * words);
                    let mut expected = vec![0; 8 * words];
                    for size in SIZES {
                        expected[at..at + size].copy_from_slice(&sent[at..at + size]);
                        at += size + 16;
                    }
                    assert!(came == expected, "v{}: rank {from} to rank {to}", table.version());
                }
            }
            group.wait(requests);
            let mut requests = Vec::new();
            for rank in 0..RANKS {
                let (from, mut at) = ((rank + 1) % RANKS, 0);
                for size in SIZES {
                    let (remote, local) = (sources.at(rank, at), targets.at(rank, at));
                    requests.push(group.get(rank, from, remote, size, local));
                    at += size + 16;
                }
                requests.push(group.get(rank, from, sources.at(rank, 0), 0, targets.at(rank, 0)));
                requests.push(group.get(rank, rank, sources.at(rank, 8), 64, targets.at(rank, 8 * words)));
            }
            group.wait(requests);
            for rank in 0..RANKS {
                let (sent, mut at) = (pattern(8 * words, ((rank + 1) % RANKS) as u64 + 1), 0);
                for size in SIZES {
                    assert!(targets.read(rank, at, size) == sent[at..at + size], "{size} bytes of a get");
                    at += size + 16;
                }
                let own = pattern(8 * words, rank as u64 + 1);
                assert!(targets.read(rank, 8 * words, 64) == own[8..72], "a get of the rank's own memory");
            }
            [sources, targets, signals].into_iter().for_each(|window| group.deregister(window));
            group.close();
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn every_byte_arrives_in_host_memory() {
    every_byte_arrives(here!(), HOST, LATE);
}

#[test]
fn every_byte_arrives_in_gpu_memory() {
    every_byte_arrives(here!(), CUDA, LATE);
}

/// The largest message of these ports is below 1 MiB: larger puts and gets go in several.
#[test]
fn every_byte_arrives_in_several_messages() {
    let devices = two_adapters("dmabuf=on,posted=1ms,max_msg=65536");
    every_byte_arrives(here!(), CUDA, ("SOFTVERBS_DEVICES", &devices));
}
