//! The cache of registrations under every schedule of two threads: a registration with a share
//! exists exactly once, and ends with its last share. The test compiles the file of the cache with
//! loom's locks instead of the plugin's.

#[path = "../../../src/device/mr_cache/cache.rs"]
#[allow(dead_code, reason = "a part of it is the plugin's")]
mod cache;

mod sync {
    use std::ops::{Deref, DerefMut};

    pub(super) use loom::sync::Arc;

    /// `None` only inside of [`Condvar::wait`].
    pub(super) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    pub(super) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(super) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = guard.0.take().map(|held| self.0.wait(held).unwrap());
        }

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

use self::cache::{Cache, Held, Span};
use crate::explore::explore;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize as Count, Ordering::SeqCst};
use loom::thread;

/// A registration: records whether it exists, and how many do.
struct Made {
    there: Arc<AtomicBool>,
    all: Arc<Count>,
}

impl Made {
    fn new(all: &Arc<Count>) -> Self {
        all.fetch_add(1, SeqCst);
        Self { there: Arc::new(AtomicBool::new(true)), all: Arc::clone(all) }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.there.store(false, SeqCst);
        self.all.fetch_sub(1, SeqCst);
    }
}

/// A share of a registration, and whether the registration still exists.
struct Share {
    held: Held<u8, Made>,
    there: Arc<AtomicBool>,
}

#[derive(Clone)]
struct World {
    cache: Arc<Cache<u8, Made>>,
    all: Arc<Count>,
}

impl World {
    fn new() -> Self {
        Self { cache: Arc::new(Cache::new()), all: Arc::new(Count::new(0)) }
    }

    /// Returns `None` if a registration had to be made and `good` is false.
    fn get(&self, addr: usize, len: usize, good: bool) -> Option<Share> {
        let span = Span::new(addr, len, 4096).unwrap();
        let make = || if good { Ok(Made::new(&self.all)) } else { Err(()) };
        let (held, there) = self.cache.get(0, span, make, |made| Arc::clone(&made.there)).ok()?;
        Some(Share { held, there })
    }

    fn ended(&self) {
        assert_eq!((self.all.load(SeqCst), self.cache.len()), (0, 0));
    }
}

impl Share {
    fn end(self) {
        assert!(self.there.load(SeqCst), "somebody has a share in it");
        drop(self.held);
    }
}

/// Runs `this` and `other` in two threads, then checks that no registration remains.
fn two(this: fn(&World), other: fn(&World)) -> impl Fn() + Sync + Send + 'static {
    move || {
        let world = World::new();
        let theirs = world.clone();
        let thread = thread::spawn(move || other(&theirs));
        this(&world);
        thread.join().unwrap();
        world.ended();
    }
}

#[test]
fn who_asks_at_the_same_time_gets_one_registration() {
    let schedules = explore(|| {
        let world = World::new();
        let theirs = world.clone();
        let thread = thread::spawn(move || theirs.get(0x5000, 0x3000, true).unwrap());
        let ours = world.get(0x5000, 0x3000, true).unwrap();
        let other = thread.join().unwrap();
        assert_eq!(world.all.load(SeqCst), 1);
        ours.end();
        other.end();
        world.ended();
    });
    println!("{schedules} schedules");
    assert!(schedules > 10, "{schedules}");
}

/// The last share goes in one thread while another asks: it gets that registration, or one of its
/// own.
#[test]
fn a_released_registration_is_reused_or_registered_again() {
    fn twice(world: &World) {
        world.get(0x5000, 0x3000, true).unwrap().end();
        world.get(0x5000, 0x3000, true).unwrap().end();
    }
    let schedules = explore(two(twice, twice));
    println!("{schedules} schedules");
    assert!(schedules > 100, "{schedules}");
}

#[test]
fn a_part_is_served_by_the_whole_or_by_itself() {
    let schedules = explore(two(
        |world| {
            let whole = world.get(0x5000, 0x3000, true).unwrap();
            let part = world.get(0x6000, 0x100, true).unwrap();
            whole.end();
            part.end();
        },
        |world| world.get(0x6080, 0x10, true).unwrap().end(),
    ));
    println!("{schedules} schedules");
    assert!(schedules > 10, "{schedules}");
}

/// Who waits for it makes their own then, and nobody waits for ever.
#[test]
fn a_failed_registration_fails_its_caller_only() {
    let schedules = explore(two(
        |world| {
            if let Some(share) = world.get(0x5000, 0x3000, false) {
                share.end();
            }
        },
        |world| world.get(0x5000, 0x3000, true).unwrap().end(),
    ));
    println!("{schedules} schedules");
    assert!(schedules > 10, "{schedules}");
}
