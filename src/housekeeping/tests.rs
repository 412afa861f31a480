use std::sync::atomic::{AtomicBool, AtomicU32};

use nix::sys::eventfd::EfdFlags;

use super::*;

/// Counts its runs.
#[derive(Default)]
pub(crate) struct Count(AtomicU32);

impl Count {
    pub(crate) fn runs(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Job for Count {
    fn run(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Adds a job.
pub(crate) fn add<J: Job + 'static>(list: &Housekeeping, job: &Arc<J>) -> JobId {
    let id = list.reserve();
    list.add(id, "a job", super::job(job));
    id
}

/// Returns when all jobs are due that wait.
fn last_due(list: &Housekeeping) -> Instant {
    list.jobs.lock().due.last().map_or_else(Instant::now, |(at, _)| *at)
}

#[test]
fn a_job_runs_until_it_is_removed_or_dropped() {
    let (list, jobs) = (Housekeeping::default(), [(); 3].map(|()| Arc::<Count>::default()));
    let ids = [0, 1, 2].map(|i| add(&list, &jobs[i]));
    let runs = |jobs: &[Arc<Count>]| jobs.iter().map(|j| j.runs()).collect::<Vec<_>>();
    list.run(last_due(&list));
    assert_eq!(runs(&jobs), [1, 1, 1]);
    list.remove(ids[1]);
    list.run(last_due(&list));
    assert_eq!(runs(&jobs), [2, 1, 2]);
    let [first, _, last] = jobs;
    drop(first);
    list.remove(ids[2]);
    list.run(last_due(&list));
    assert_eq!((runs(&[last]), list.jobs.lock().entries.len()), (vec![2], 0));
    assert!(list.jobs.lock().due.is_empty());
}

/// A job with a bug.
struct Panics;

impl Job for Panics {
    fn run(&self) -> Result<()> {
        panic!("a seeded bug");
    }
}

//= faults.md: 74
#[test]
fn a_job_that_panics_ends_alone() {
    let (list, bug, other) = (Housekeeping::default(), Arc::new(Panics), Arc::<Count>::default());
    let id = add(&list, &bug);
    add(&list, &other);
    list.run(last_due(&list));
    list.run(last_due(&list));
    assert_eq!(other.runs(), 2);
    assert_eq!(list.jobs.lock().entries.len(), 1);
    list.remove(id);
}

/// Runs every 20 ms.
#[derive(Default)]
struct Often(AtomicU32);

impl Job for Often {
    fn run(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(20))
    }
}

#[test]
fn each_job_runs_at_its_own_interval_and_at_a_wake() {
    let (list, often, seldom) = (Housekeeping::default(), Arc::<Often>::default(), Arc::<Count>::default());
    add(&list, &often);
    let id = add(&list, &seldom);
    let runs = || (often.0.load(Ordering::Relaxed), seldom.runs());
    assert!(list.run(last_due(&list)).unwrap() <= Duration::from_millis(20));
    assert_eq!(runs(), (1, 1));
    // Times at which the list below has the same intervals, however long this test takes.
    let first_due = || list.jobs.lock().due.first().unwrap().0;
    list.run(first_due());
    assert_eq!(runs(), (2, 1));
    list.wake(id);
    list.run(first_due());
    assert_eq!(runs(), (2, 2), "the one that was woken");
    list.run(last_due(&list));
    assert_eq!(runs(), (3, 3));
}

/// Wakes itself in its first run.
struct Again(Housekeeping, Mutex<Option<JobId>>, Count);

impl Job for Again {
    fn run(&self) -> Result<()> {
        self.2.run()?;
        self.1.lock().take().into_iter().for_each(|id| self.0.wake(id));
        Ok(())
    }
}

#[test]
fn a_wake_during_a_run_makes_the_job_run_once_more() {
    let job = Arc::new(Again(Housekeeping::default(), Mutex::default(), Count::default()));
    let list = &job.0;
    *job.1.lock() = Some(add(list, &job));
    list.run(last_due(list));
    assert_eq!(list.run(Instant::now()).unwrap().as_millis() / TICK.as_millis(), 0);
    assert_eq!(job.2.runs(), 2);
    list.run(Instant::now());
    assert_eq!(job.2.runs(), 2, "its interval counts again");
}

/// Runs until it is released.
#[derive(Default)]
struct Held(AtomicBool, AtomicBool);

impl Job for Held {
    fn run(&self) -> Result<()> {
        self.0.store(true, Ordering::Release);
        while !self.1.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn a_job_that_runs_is_removed_after_its_run_and_holds_nobody_else_up() {
    let (list, held, other) = (Housekeeping::default(), Arc::<Held>::default(), Arc::<Count>::default());
    let (id, free) = (add(&list, &held), add(&list, &other));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| list.run(begun));
        while !held.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        list.wake(free);
        list.remove(free);
        let removed = scope.spawn(|| {
            list.remove(id);
            held.1.load(Ordering::Acquire)
        });
        while list.jobs.lock().entries.contains_key(&id) {
            std::thread::yield_now();
        }
        held.1.store(true, Ordering::Release);
        assert!(removed.join().unwrap(), "removed while it ran");
    });
    assert_eq!((Arc::strong_count(&held), other.runs()), (1, 0));
}

#[test]
fn a_wake_reaches_the_thread_that_waits() {
    let (list, job) = (Housekeeping::default(), Arc::<Count>::default());
    let id = add(&list, &job);
    list.wake(id);
    let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap());
    list.set_waker(Arc::clone(&waker));
    assert!(waker.read().is_err(), "nothing yet");
    (0..2).for_each(|_| list.wake(id));
    list.wake_thread();
    assert_eq!(waker.read().unwrap(), 3);
    let other = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap());
    list.remove_waker(&other);
    list.wake(id);
    assert_eq!(waker.read().unwrap(), 1, "another thread has ended");
    list.remove_waker(&waker);
    list.wake(id);
    assert!(waker.read().is_err(), "the thread has ended");
}

/// Rests while its flag is set.
#[derive(Default)]
struct Rests(AtomicBool, Count);

impl Job for Rests {
    fn run(&self) -> Result<()> {
        self.1.run()
    }

    fn interval(&self) -> Option<Duration> {
        (!self.0.load(Ordering::Relaxed)).then_some(TICK)
    }
}

#[test]
fn a_job_that_rests_runs_when_it_is_woken_or_started() {
    let (list, job) = (Housekeeping::default(), Arc::<Rests>::default());
    let id = add(&list, &job);
    job.0.store(true, Ordering::Relaxed);
    assert_eq!((list.run(last_due(&list)), job.1.runs()), (None, 1), "nothing is due");
    list.wake(id);
    assert_eq!((list.run(Instant::now()), job.1.runs()), (None, 2));
    let waker = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap());
    list.set_waker(Arc::clone(&waker));
    (0..3).for_each(|_| list.start(id));
    assert_eq!(waker.read().unwrap(), 1, "the thread sleeps until the first one");
    assert_eq!((list.run(last_due(&list)), job.1.runs()), (None, 3));
    list.remove(id);
    list.start(id);
    list.wake(id);
    assert_eq!((list.run(Instant::now()), job.1.runs()), (None, 3), "it is removed");
}

/// Starts itself in its first run, as a comm does that NCCL uses again during the run.
struct Starts(Housekeeping, Mutex<Option<JobId>>, Count);

impl Job for Starts {
    fn run(&self) -> Result<()> {
        self.2.run()?;
        self.1.lock().take().into_iter().for_each(|id| self.0.start(id));
        Ok(())
    }

    fn interval(&self) -> Option<Duration> {
        None
    }
}

#[test]
fn a_start_during_a_run_is_not_lost() {
    let job = Arc::new(Starts(Housekeeping::default(), Mutex::default(), Count::default()));
    let list = &job.0;
    *job.1.lock() = Some(add(list, &job));
    assert!(list.run(last_due(list)).is_some(), "it runs once more");
    assert_eq!((list.run(last_due(list)), job.2.runs()), (None, 2));
}

#[test]
fn a_companion_runs_while_another_job_is_awake() {
    let list = Housekeeping::default();
    let [companion, one, two] = [(); 3].map(|()| Arc::<Rests>::default());
    list.add_companion(list.reserve(), "a companion", job(&companion));
    companion.0.store(true, Ordering::Relaxed);
    assert_eq!(list.run(last_due(&list)), None);
    let ids = [&one, &two].map(|job| add(&list, job));
    list.run(last_due(&list));
    assert_eq!(companion.1.runs(), 2, "it has started with the first of them");
    one.0.store(true, Ordering::Relaxed);
    list.run(last_due(&list));
    list.run(last_due(&list));
    assert_eq!((companion.1.runs(), one.1.runs(), two.1.runs()), (4, 2, 3));
    list.remove(ids[1]);
    assert_eq!((list.run(last_due(&list)), companion.1.runs()), (None, 5), "its last run");
    list.start(ids[0]);
    list.run(last_due(&list));
    assert_eq!((companion.1.runs(), one.1.runs()), (6, 3));
    assert_eq!((list.run(last_due(&list)), companion.1.runs(), one.1.runs()), (None, 7, 3));
}
