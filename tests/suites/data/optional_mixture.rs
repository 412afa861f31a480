//! Optional receives, others and groups in any order.

use std::collections::VecDeque;
use std::time::Instant;

use mpib_tests::code::Success;
use mpib_tests::log::warnings;
use mpib_tests::pair::{LIMIT, Pair, pattern, until};
use mpib_tests::rng::Rng;
use mpib_tests::table::{Ptr, TABLES};
use mpib_tests::{here, mpib, with_and_without_srq};

use super::optional_util::{OPTIONAL, SLOTS, here, shown};

/// A receive of the property test: where its data goes, what it should receive, and its request.
struct Posted {
    request: Option<Ptr>,
    hinted: bool,
    /// Of each message its place, room and bytes.
    parts: Vec<(usize, usize, Vec<u8>)>,
}

/// Optional ones, others and groups in any order, asked for in any order or late, and a sender that
/// comes when it comes.
//= receives.md: any mixture of optional and other receives loses nothing
#[test]
fn any_mixture_loses_nothing() {
    with_and_without_srq(here!(), &mpib("341", &[]), || {
        let (seed, mut rng) = Rng::from_env();
        for table in TABLES.iter().filter(|t| t.version() >= 9) {
            let pair = Pair::new(table);
            mixture(&pair, &mut rng, 1500);
            let now = shown();
            assert_eq!((now.in_flight(), now.totals.errors), (0, 0), "seed {seed}");
            pair.close();
        }
        assert!(warnings().is_empty(), "seed {seed}: {:?}", warnings());
    });
}

fn mixture(pair: &Pair, rng: &mut Rng, groups: usize) {
    const ROOM: usize = 6000;
    let table = pair.table;
    // Places of eight messages each, one for each slot that may be in use, and one more.
    let places = SLOTS + 1;
    let (mut from, to) = (pair.send_buffer(vec![0; 8 * ROOM]), pair.recv_buffer(places * 8 * ROOM));
    let mut free: VecDeque<usize> = (0..places).collect();
    let mut posted: VecDeque<(usize, Posted)> = VecDeque::new();
    // Posted, and not sent yet; those that are sent wait for their data to be seen, and for NCCL to
    // ask.
    let (mut begun, mut sent) = (0, Vec::<(usize, Posted)>::new());
    let (mut over, mut bias) = (0, 1);
    let begin = Instant::now();
    while over < groups {
        assert!(begin.elapsed() < LIMIT, "{over} of {groups} groups within {LIMIT:?}");
        // Who is faster changes now and then.
        if rng.below(50) == 0 {
            bias = 1 + rng.below(8);
        }
        match rng.below(10) {
            0..=4 if begun < groups => {
                let Some(place) = free.pop_front() else { continue };
                let hinted = rng.below(3) > 0;
                let n = if rng.below(4) == 0 { 1 + rng.below(8) } else { 1 };
                let part = |i: usize, rng: &mut Rng| {
                    let len = rng.pick(&[0, 1, 8, 511, 512, 4096, 5999]);
                    (place * 8 * ROOM + i * ROOM, ROOM, pattern(len, rng.draw()))
                };
                let parts: Vec<_> = (0..n).map(|i| part(i, rng)).collect();
                let group: Vec<_> =
                    parts.iter().enumerate().map(|(i, p)| (to.addr() + p.0, p.1, i as i32, to.mr)).collect();
                let (rc, request) = table.irecv_as(pair.recv, &group, if hinted { OPTIONAL } else { 0 });
                assert_eq!(rc, Success);
                if request.is_null() {
                    free.push_front(place);
                } else {
                    posted.push_back((
                        place,
                        Posted { request: Some(request), hinted: hinted && n == 1, parts },
                    ));
                    begun += 1;
                }
            }
            5 if rng.below(bias) == 0 => {
                let Some((place, receive)) = posted.pop_front() else { continue };
                // The whole group is sent with its last.
                let isend = |(tag, (_, _, data)): (usize, &(usize, usize, Vec<u8>))| {
                    let at = tag * ROOM;
                    from.bytes[at..at + data.len()].copy_from_slice(data);
                    pair.isend(from.addr() + at, data.len(), tag as i32, from.mr)
                };
                let sends: Vec<_> = receive.parts.iter().enumerate().map(isend).collect();
                sends.into_iter().for_each(|send| {
                    pair.wait(send);
                });
                sent.push((place, receive));
            }
            _ => {
                // Any request that is under way, sent or not.
                let all = posted.len() + sent.len();
                if all == 0 {
                    continue;
                }
                let pick = rng.below(all);
                let was_sent = pick >= posted.len();
                let (_, receive) = if was_sent { &mut sent[pick - posted.len()] } else { &mut posted[pick] };
                if let Some(request) = receive.request {
                    let (rc, done, sizes) = table.test(request);
                    assert_eq!(rc, Success);
                    if done {
                        let has_size =
                            |(i, p): (usize, &(usize, usize, Vec<u8>))| sizes[i] as usize == p.2.len();
                        let exact = receive.parts.iter().enumerate().all(has_size);
                        assert!(exact || receive.hinted && sizes[0] == 0, "sizes {sizes:?}");
                        assert!(was_sent || receive.hinted, "done before it was sent");
                        receive.request = None;
                    } else {
                        assert!(!receive.hinted, "an optional receive waits");
                    }
                }
                if was_sent && receive.request.is_none() {
                    let seen = receive.parts.iter().all(|(at, _, data)| here(&to, *at, data).is_some());
                    assert!(seen || receive.hinted, "done without its data");
                    if seen {
                        let (place, _) = sent.swap_remove(pick - posted.len());
                        free.push_back(place);
                        over += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
    until("the last arrivals", || (shown().in_flight() == 0).then_some(()));
    from.dereg();
    to.dereg();
}
