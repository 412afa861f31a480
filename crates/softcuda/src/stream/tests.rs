use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
};

use super::*;

/// A job that waits until the test opens it, and counts its steps.
struct Gate {
    open: Arc<AtomicBool>,
    steps: Arc<AtomicU32>,
}

impl Steps for Gate {
    fn step(&mut self) -> Progress {
        self.steps.fetch_add(1, Ordering::SeqCst);
        if self.open.load(Ordering::SeqCst) { Progress::Done } else { Progress::Waiting }
    }
}

/// Returns a job that waits, the switch that opens it, and the count of its steps.
fn gate() -> (Job, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (open, steps) = <(Arc<AtomicBool>, Arc<AtomicU32>)>::default();
    let job = Gate { open: Arc::clone(&open), steps: Arc::clone(&steps) };
    (Job::Steps(Box::new(job)), open, steps)
}

fn send(sender: &mpsc::Sender<u32>, value: u32) -> Job {
    let sender = sender.clone();
    Job::run(move || sender.send(value).unwrap())
}

#[test]
fn jobs_of_a_stream_run_in_order_and_streams_beside_each_other() {
    let streams = Streams::start().unwrap();
    let (sender, received) = mpsc::channel();
    let (waiting, free) = (streams.create(), streams.create());
    let (job, open, steps) = gate();
    streams.add(waiting, job).unwrap();
    streams.add(waiting, send(&sender, 2)).unwrap();
    streams.add(free, send(&sender, 1)).unwrap();
    assert_eq!(received.recv(), Ok(1), "the other stream is not held up");
    // Some more rounds of the worker, in which the job behind the gate must not run.
    let seen = steps.load(Ordering::SeqCst);
    while steps.load(Ordering::SeqCst) < seen + 4 {
        std::thread::yield_now();
    }
    assert_eq!(received.try_recv(), Err(mpsc::TryRecvError::Empty), "a later job came first");
    assert_eq!(streams.is_idle(waiting), Ok(false));
    open.store(true, Ordering::SeqCst);
    assert_eq!(received.recv(), Ok(2));
    streams.synchronize(waiting).unwrap();
    assert_eq!(streams.is_idle(waiting), Ok(true));
}

#[test]
fn a_stream_waits_for_an_event_as_of_the_call() {
    let streams = Streams::start().unwrap();
    let (sender, received) = mpsc::channel();
    let (first, second) = (streams.create(), streams.create());
    let event = streams.create_event();
    assert_eq!(streams.is_reached(event), Ok(true), "never recorded");
    let (job, open, _) = gate();
    streams.add(first, job).unwrap();
    streams.record(event, first).unwrap();
    streams.wait_event(second, event).unwrap();
    streams.add(second, send(&sender, 7)).unwrap();
    assert_eq!(streams.is_reached(event), Ok(false));
    // The wait concerns the mark, not what the event becomes later.
    streams.record(event, streams.create()).unwrap();
    assert_eq!(streams.is_reached(event), Ok(true));
    assert_eq!(streams.is_idle(second), Ok(false));
    assert_eq!(received.try_recv(), Err(mpsc::TryRecvError::Empty));
    open.store(true, Ordering::SeqCst);
    assert_eq!(received.recv(), Ok(7));
    streams.synchronize_event(event).unwrap();
    streams.destroy_event(event).unwrap();
    assert_eq!(streams.is_reached(event), Err(Status::INVALID_HANDLE));
}

#[test]
fn a_function_of_the_program_may_block_while_kernels_run() {
    unsafe extern "C" fn block(argument: *mut c_void) {
        // SAFETY: the test's receiver, which lives until the function has returned.
        let receiver = unsafe { &*argument.cast::<mpsc::Receiver<()>>() };
        receiver.recv().unwrap();
    }
    let streams = Streams::start().unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let (blocking, polled) = (streams.create(), streams.create());
    let argument = (&raw const blocked).cast_mut().cast();
    streams.add(blocking, Job::Host(HostFunction { function: block, argument })).unwrap();
    streams.add(polled, Job::run(|| {})).unwrap();
    streams.synchronize(polled).unwrap();
    assert_eq!(streams.is_idle(blocking), Ok(false));
    release.send(()).unwrap();
    streams.synchronize(blocking).unwrap();
}

#[test]
fn a_destroyed_stream_runs_its_jobs_and_its_handle_is_invalid() {
    let streams = Streams::start().unwrap();
    let (sender, received) = mpsc::channel();
    let stream = streams.create();
    let event = streams.create_event();
    let (job, open, _) = gate();
    streams.add(stream, job).unwrap();
    streams.add(stream, send(&sender, 1)).unwrap();
    streams.record(event, stream).unwrap();
    streams.destroy(stream).unwrap();
    assert_eq!(streams.add(stream, Job::run(|| {})), Err(Status::INVALID_HANDLE));
    assert_eq!(streams.destroy(stream), Err(Status::INVALID_HANDLE));
    assert_eq!(streams.is_reached(event), Ok(false));
    open.store(true, Ordering::SeqCst);
    assert_eq!(received.recv(), Ok(1));
    streams.synchronize_event(event).unwrap();
    assert_eq!(streams.destroy(0), Err(Status::INVALID_HANDLE), "the default stream stays");
}

#[test]
fn copies_and_fills_take_their_place_in_the_stream() {
    let streams = Streams::start().unwrap();
    let mut memory = vec![0_u8; 64];
    let base = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the vector lives until the stream has finished, and nothing else uses it meanwhile.
    let jobs = unsafe {
        [
            Job::fill(base, 1, 16),
            Job::copy(base + 16, base, 16),
            Job::write(base, vec![9; 4].into_boxed_slice()),
            Job::copy(base + 2, base, 4),
        ]
    };
    for job in jobs {
        streams.add(0, job).unwrap();
    }
    streams.synchronize(1).unwrap();
    assert_eq!(memory[..8], [9, 9, 9, 9, 9, 9, 1, 1]);
    assert_eq!(memory[16..33], [[1; 16].as_slice(), &[0]].concat());
}

#[test]
fn a_stream_waits_for_a_value_that_another_one_stores() {
    let streams = Streams::start().unwrap();
    let cell = Box::leak(Box::new(AtomicU64::new(0)));
    let at = cell.as_ptr().expose_provenance();
    let (waiting, storing) = (streams.create(), streams.create());
    // SAFETY: the cell is never freed.
    unsafe {
        streams.add(waiting, Job::until::<64>(at, 5, Condition::GreaterOrEqual)).unwrap();
        streams.add(storing, Job::store::<64>(at, 4)).unwrap();
        streams.synchronize(storing).unwrap();
        assert_eq!(streams.is_idle(waiting), Ok(false));
        streams.add(storing, Job::store::<32>(at, 6)).unwrap();
    }
    streams.synchronize_all();
    assert_eq!(streams.is_idle(waiting), Ok(true));
}
