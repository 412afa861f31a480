//! The cache of registrations, with registrations that only count themselves.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::cache::{Cache, Held, Span};

const PAGE: usize = 4096;
/// Only a test that fails waits so long.
const LIMIT: Duration = Duration::from_secs(60);

/// Counts itself while it is there.
#[derive(Debug)]
struct Counted<'a>(&'a AtomicUsize, Range<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize, pages: Range<usize>) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count, pages)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn span(addr: usize, len: usize) -> Span {
    Span::new(addr, len, PAGE).unwrap()
}

/// A share that can be had.
fn get<'a>(
    cache: &Cache<u8, Counted<'a>>,
    count: &'a AtomicUsize,
    key: u8,
    requested: &Span,
) -> (Held<u8, Counted<'a>>, Range<usize>) {
    let make = || Ok::<_, ()>(Counted::new(count, requested.pages()));
    cache.get(key, requested.clone(), make, |made| made.1.clone()).unwrap()
}

#[test]
fn a_span_is_whole_pages_of_any_size() {
    for (addr, len, page, pages) in [
        (0x1000, 1, 0x1000, 0x1000..0x2000),
        (0x1fff, 1, 0x1000, 0x1000..0x2000),
        (0x1fff, 2, 0x1000, 0x1000..0x3000),
        (0x1000, 0x1000, 0x1000, 0x1000..0x2000),
        (0x1fff, 2, 0x1_0000, 0..0x1_0000),
        (0xffff, 2, 0x1_0000, 0..0x2_0000),
        (usize::MAX - 0x1fff, 0x1000, 0x1000, usize::MAX - 0x1fff..usize::MAX - 0xfff),
    ] {
        let span = Span::new(addr, len, page).unwrap();
        assert_eq!((span.pages(), span.bytes()), (pages, addr..addr + len));
    }
    // Nothing ends behind the last address, nor in its page, whose end is no address any more.
    for (addr, len) in [(usize::MAX, 1), (usize::MAX - 4096, 4097), (usize::MAX - 10, 1), (4096, usize::MAX)]
    {
        assert_eq!(Span::new(addr, len, PAGE), None);
    }
}

#[test]
fn parts_and_the_same_pages_are_served_and_neighbours_are_not() {
    let made = span(0x10_0800, 0x3000);
    for (addr, len, served) in [
        (0x10_0800, 0x3000, true),
        (0x10_0800, 1, true),
        (0x10_37ff, 1, true),
        (0x10_1000, 0x1000, true),
        // The same four pages.
        (0x10_0000, 0x4000, true),
        (0x10_0001, 0x3fff, true),
        // Before and behind, in its pages.
        (0x10_07ff, 2, false),
        (0x10_0000, 0x10, false),
        (0x10_3800, 1, false),
        (0x10_0800, 0x3801, false),
        (0x0f_ffff, 0x4000, false),
    ] {
        let count = AtomicUsize::new(0);
        let cache = Cache::new();
        let first = get(&cache, &count, 1, &made);
        let second = get(&cache, &count, 1, &span(addr, len));
        assert_eq!(count.load(SeqCst), if served { 1 } else { 2 }, "{len:#x} bytes at {addr:#x}");
        drop((first, second));
        assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
    }
}

#[test]
fn another_key_is_another_registration() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let held: Vec<_> = [1, 2, 1, 2].map(|key| get(&cache, &count, key, &span(0x5000, 100))).into();
    assert_eq!(count.load(SeqCst), 2);
    drop(held);
    assert_eq!(count.load(SeqCst), 0);
}

/// Or else addresses that were freed and given out again would be served with the old pages.
#[test]
fn a_neighbour_in_the_last_page_keeps_nothing_of_a_buffer_alive() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let large = get(&cache, &count, 1, &span(0x10_0000, 0x2800));
    let neighbour = get(&cache, &count, 1, &span(0x10_2800, 0x100));
    drop(large);
    assert_eq!((count.load(SeqCst), neighbour.1), (1, 0x10_2000..0x10_3000));
    let (_again, pages) = get(&cache, &count, 1, &span(0x10_0000, 0x2800));
    assert_eq!((count.load(SeqCst), pages), (2, 0x10_0000..0x10_3000));
}

/// However many registrations there are, and however large one of them is.
#[test]
fn a_search_looks_at_few_registrations() {
    const REGIONS: usize = 4000;
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let at = |region: usize| 0x1000_0000 + region * 2 * PAGE;
    let small: Vec<_> = (0..REGIONS)
        .map(|region| get(&cache, &count, 1, &span(at(region), PAGE + region % 2 * 100)))
        .collect();
    let large = get(&cache, &count, 2, &span(at(0), 2 * PAGE * REGIONS));
    for addr in [at(0), at(1), at(REGIONS / 2) + 5, at(REGIONS - 1) + PAGE, at(2 * REGIONS)] {
        assert!(cache.looked_at(addr) <= 5, "{} at {addr:#x}", cache.looked_at(addr));
    }
    let covering = |bytes: Range<usize>| cache.covering(&bytes, |made| made.1.clone());
    let middle = at(REGIONS / 2);
    assert_eq!(covering(middle..middle + 1), Some(middle..middle + PAGE));
    assert_eq!(covering(middle..middle + 3 * PAGE), Some(large.1.clone()));
    assert_eq!(count.load(SeqCst), REGIONS + 1);
    drop((small, large));
    assert_eq!(cache.looked_at(middle), 0);
}

#[test]
fn a_failure_and_a_panic_leave_nothing_behind() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let requested = span(0x5000, 100);
    let failed = cache.get(1, requested.clone(), || Err::<Counted<'_>, _>("no"), |_| ());
    assert_eq!((failed.map(|_| ()), cache.len()), (Err("no"), 0));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.get(1, requested.clone(), || -> Result<Counted<'_>, ()> { panic!("on purpose") }, |_| ())
    }));
    assert_eq!((panicked.is_err(), cache.len()), (true, 0));
    let _held = get(&cache, &count, 1, &requested);
    assert_eq!((count.load(SeqCst), cache.len()), (1, 1));
}

/// An adapter takes seconds for some memory; others are not to wait for that, nor for its failure.
#[test]
fn nobody_waits_while_other_memory_is_registered() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let (begun, has_begun) = channel();
    let (go, may_go) = channel::<()>();
    let (done, is_done) = channel();
    thread::scope(|scope| {
        let (cache, count) = (&cache, &count);
        scope.spawn(move || {
            let make = || {
                begun.send(()).unwrap();
                may_go.recv().map_err(drop).and(Err::<Counted<'_>, ()>(()))
            };
            assert!(cache.get(1, span(0x5000, 0x3000), make, |_| ()).is_err());
        });
        has_begun.recv().unwrap();
        scope.spawn(move || {
            let others = [(1, span(0x9000, 100)), (1, span(0x4fff, 2)), (2, span(0x5000, 100))];
            let held: Vec<_> = others.iter().map(|(key, span)| get(cache, count, *key, span)).collect();
            done.send(held.len()).unwrap();
        });
        let found = is_done.recv_timeout(LIMIT);
        // The threads end in any case.
        drop(go);
        assert_eq!(found, Ok(3));
    });
    assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
}

#[test]
fn a_renewal_replaces_every_registration_or_none() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let (first, _) = get(&cache, &count, 1, &span(0x5000, 100));
    let (second, _) = get(&cache, &count, 2, &span(0x9000, 0x3000));
    let pages = |held: &Held<u8, Counted<'_>>| held.read(|made| made.1.clone()).unwrap();
    let before = (pages(&first), pages(&second));
    // What is made is recognised by its key in place of its pages.
    let again = |key: &u8, _: &Span, _: &Counted<'_>| match key {
        1 => Ok(Counted::new(&count, 1..1)),
        _ => Err("no"),
    };
    let failed = cache.renew(again, || panic!("not all are made"), |_| panic!("the earlier ones stay"));
    assert_eq!((failed, count.load(SeqCst)), (Err("no"), 2));
    assert_eq!((pages(&first), pages(&second)), before);
    let again = |_: &u8, _: &Span, _: &Counted<'_>| Ok(Counted::new(&count, 1..1));
    let failed = cache.renew(again, || Err("another port"), |_| panic!("the earlier ones stay"));
    assert_eq!((failed, count.load(SeqCst)), (Err("another port"), 2));
    assert_eq!((pages(&first), pages(&second)), before);
    let (committed, mut retired) = (Cell::new(false), Vec::new());
    let again = |key: &u8, made_for: &Span, _: &Counted<'_>| {
        assert_eq!(made_for.pages(), if *key == 1 { before.0.clone() } else { before.1.clone() });
        Ok::<_, ()>(Counted::new(&count, usize::from(*key)..9))
    };
    let commit = || {
        committed.set(true);
        Ok(())
    };
    cache.renew(again, commit, |old| retired.push(old.1.clone())).unwrap();
    assert!(committed.get());
    assert_eq!(retired, [before.0, before.1]);
    assert_eq!((pages(&first), pages(&second)), (1..9, 2..9));
    let covering = |bytes: Range<usize>| cache.covering(&bytes, |made| made.1.clone());
    assert_eq!(covering(0x9fff..0xb000), Some(2..9));
    assert_eq!(
        (covering(0x9fff..0xc001), covering(0x8fff..0x9001), covering(0x6000..0x6001)),
        (None, None, None)
    );
    drop((first, second));
    assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
}

/// NCCL frees memory when its deregistration returns.
#[test]
fn registrations_and_ends_of_registrations_wait_for_a_renewal() {
    let (count, cache) = (AtomicUsize::new(0), Cache::new());
    let (held, _) = get(&cache, &count, 1, &span(0x5000, 100));
    let (begun, has_begun) = channel();
    let (go, may_go) = channel::<()>();
    let renewed = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (cache, count, renewed) = (&cache, &count, &renewed);
        scope.spawn(move || {
            let again = |_: &u8, _: &Span, _: &Counted<'_>| {
                begun.send(()).unwrap();
                // The test ends in any case.
                may_go.recv().unwrap_or(());
                Ok::<_, ()>(Counted::new(count, 0..1))
            };
            let commit = || {
                renewed.store(1, SeqCst);
                Ok(())
            };
            cache.renew(again, commit, drop).unwrap();
        });
        has_begun.recv().unwrap();
        let ends = scope.spawn(move || {
            drop(held);
            assert_eq!(renewed.load(SeqCst), 1, "it ends after the renewal");
        });
        let begins = scope.spawn(move || {
            let other = get(cache, count, 2, &span(0x5000, 100));
            assert_eq!(renewed.load(SeqCst), 1);
            other
        });
        assert!(!ends.is_finished() && !begins.is_finished());
        go.send(()).unwrap();
        drop(begins.join());
        ends.join().unwrap();
    });
    assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
}

/// Real threads, few addresses: what is there always covers what was requested, is there while
/// anybody has a share, and never twice.
#[test]
fn threads_that_register_and_deregister_at_random() {
    let count = AtomicUsize::new(0);
    let cache: Cache<u8, Counted<'_>> = Cache::new();
    let rounds = if cfg!(miri) { 60 } else { 4000 };
    thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let (cache, count) = (&cache, &count);
            scope.spawn(move || {
                let (mut state, mut held) = (seed, Vec::new());
                let mut next = |n: u64| {
                    // xorshift
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state % n) as usize
                };
                for _ in 0..rounds {
                    if held.len() == 6 || (next(3) == 0 && !held.is_empty()) {
                        held.swap_remove(next(held.len() as u64));
                        continue;
                    }
                    let requested = span(0x10_0000 + 0x800 * next(8), 1 + 0x400 * next(12));
                    let fails = next(8) == 0;
                    let mine = Cell::new(false);
                    let make = || {
                        mine.set(true);
                        if fails { Err(()) } else { Ok(Counted::new(count, requested.pages())) }
                    };
                    match cache.get(next(2) as u8, requested.clone(), make, |made| made.1.clone()) {
                        Ok((share, pages)) => {
                            assert!(
                                pages.start <= requested.bytes().start && requested.bytes().end <= pages.end
                            );
                            held.push(share);
                        }
                        Err(()) => assert!(mine.get() && fails),
                    }
                    assert!(count.load(SeqCst) > 0 || held.is_empty());
                }
            });
        }
    });
    assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
}

proptest! {
    /// Against a list that is looked through from its beginning: the same number of registrations
    /// after each step.
    #[test]
    fn any_sequence_leaves_what_a_plain_list_leaves(
        steps in prop::collection::vec((any::<bool>(), 0_usize..8, 1_usize..24, 0_u8..2), 1..60)
    ) {
        let (count, cache) = (AtomicUsize::new(0), Cache::new());
        // Of each registration its key, span and users; of each share its registration.
        let mut list: Vec<(u8, Span, usize)> = Vec::new();
        let mut shares = Vec::new();
        for (take, at, len, key) in steps {
            if take || shares.is_empty() {
                let requested = span(0x10_0000 + at * 0x600, len * 0x200);
                let (share, pages) = get(&cache, &count, key, &requested);
                // Of several that serve, any may be taken: the one whose pages these are.
                let found = list.iter().position(|(k, s, users)| {
                    *k == key && *users > 0 && s.serves(&requested) && s.pages() == pages
                });
                let serves = list.iter().any(|(k, s, users)| *k == key && *users > 0 && s.serves(&requested));
                prop_assert_eq!(found.is_some(), serves);
                let place = found.unwrap_or_else(|| {
                    list.push((key, requested, 0));
                    list.len() - 1
                });
                list[place].2 += 1;
                shares.push((share, place));
            } else {
                let (share, place) = shares.swap_remove(at % shares.len());
                drop(share);
                list[place].2 -= 1;
            }
            let live = list.iter().filter(|(_, _, users)| *users > 0).count();
            prop_assert_eq!((count.load(SeqCst), cache.len()), (live, live));
        }
        drop(shares);
        prop_assert_eq!((count.load(SeqCst), cache.len()), (0, 0));
    }
}
