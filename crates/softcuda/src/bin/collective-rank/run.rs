//! The rank's work from loading the library to the end of the communicator.

use std::{
    ffi::{CString, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use softcuda::{
    ATTACH, Attach,
    rank::{Case, Collective, Hub, Job, Memory, Message, Outcome, Ran, Test, UNTOUCHED},
};

use crate::{
    Result,
    cuda::{Buffer, Cuda, Stream},
    library::Library,
    nccl::{Call, Comm, Nccl, UniqueId, Window},
    one_sided::OneSidedBench,
};

/// Pause between two looks at a stream that is not done.
const PAUSE: Duration = Duration::from_micros(100);

/// Bytes of a window.
const WINDOW: usize = 1 << 20;

/// Batches of a test that is measured, beside the first one.
const MOST_BATCHES: u32 = 20;
/// Batches in any case, the first one included.
const LEAST_BATCHES: u32 = 3;
/// No batch begins after this time.
const BATCHES_TIME: Duration = Duration::from_millis(400);

/// Does the job.
pub(crate) fn run(job: &Job, hub: &mut Hub) -> Result<Outcome> {
    step(hub, "load the library")?;
    let library = Library::open(&job.library)?;
    if let Some(softcuda) = &job.softcuda {
        attach(job, softcuda)?;
    }
    let nccl = Nccl::of(&library)?;
    let cuda = Cuda::open(job.device)?;
    let (comm, init_seconds) = join(job, &nccl, hub)?;
    let buffers = Buffers::new(job, &cuda, &nccl)?;
    let mut bench = Bench::new(job, &cuda, &comm, &buffers)?;
    let window = if job.window { Some(open_window(&nccl, &comm, hub)?) } else { None };
    let mut one_sided = OneSidedBench::new(job, &nccl, &cuda, &comm)?;
    let mut outcome = Outcome {
        version: nccl.version()?,
        init_seconds,
        window: window.map(|window| window.is_some()),
        one_sided: Vec::new(),
        tests: Vec::new(),
        asynchronous_error: None,
    };
    let mut lap = 0;
    loop {
        if let Some(error) = run_lap(job, &bench, &mut one_sided, lap, &mut outcome, hub)? {
            step(hub, "ncclCommAbort")?;
            outcome.asynchronous_error = Some(error);
            // The buffers stay until the work on them has ended.
            comm.abort()?;
            return Ok(outcome);
        }
        let shares = job.memory == Memory::Registered && !job.timed && lap == 0;
        if shares {
            share(job, &nccl, &cuda, &buffers, hub)?;
        }
        let repeats = if job.laps { hub.lap()? } else { shares };
        if !repeats {
            break;
        }
        lap += 1;
    }
    one_sided.end(hub)?;
    bench.deregister()?;
    if let Some(window) = window.flatten() {
        step(hub, "ncclCommWindowDeregister")?;
        // SAFETY: a window of `open_window`, which is used once.
        unsafe { comm.close_window(window)? };
    }
    end(comm, hub)?;
    Ok(outcome)
}

/// Runs all tests once more. Returns the asynchronous error that ended one of them.
fn run_lap(
    job: &Job,
    bench: &Bench<'_>,
    one_sided: &mut OneSidedBench<'_>,
    lap: u32,
    outcome: &mut Outcome,
    hub: &mut Hub,
) -> Result<Option<(i32, String)>> {
    for (place, test) in job.one_sided.iter().enumerate() {
        match one_sided.test(*test, lap, hub)? {
            Ended::Ran(ran) => add(&mut outcome.one_sided, place, ran),
            Ended::Failed(error) => return Ok(Some(error)),
        }
    }
    for (place, test) in job.tests.iter().enumerate() {
        let ended =
            if job.timed { bench.time(*test, hub)? } else { bench.test(*test, place as u32, lap, hub)? };
        match ended {
            Ended::Ran(ran) => add(&mut outcome.tests, place, ran),
            Ended::Failed(error) => return Ok(Some(error)),
        }
    }
    Ok(None)
}

/// Adds a lap of the test at a place to the laps before.
fn add(all: &mut Vec<Ran>, place: usize, ran: Ran) {
    match all.get_mut(place) {
        Some(before) => before.add(ran),
        None => all.push(ran),
    }
}

/// Creates a communicator with the other ranks. Returns also how many seconds its init took.
fn join<'a>(job: &Job, nccl: &'a Nccl, hub: &mut Hub) -> Result<(Comm<'a>, f64)> {
    let id = if job.rank == 0 { nccl.unique_id()?.0.to_vec() } else { Vec::new() };
    step(hub, "wait for the other ranks before init")?;
    let ids = hub.exchange(id)?;
    let id = ids[0].as_slice().try_into().map_err(|_| "rank 0 sent no unique id")?;
    step(hub, "ncclCommInitRank")?;
    let begun = Instant::now();
    let comm = nccl.join(UniqueId(id), job.rank, job.ranks)?;
    Ok((comm, begun.elapsed().as_secs_f64()))
}

/// Makes a window, which no test uses. NCCL makes none without a network for one-sided transfers.
fn open_window(nccl: &Nccl, comm: &Comm<'_>, hub: &mut Hub) -> Result<Option<Window>> {
    let memory = nccl.mem_alloc(WINDOW)?;
    step(hub, "ncclCommWindowRegister")?;
    // SAFETY: memory of NCCL's, of the same size in all ranks.
    unsafe { comm.open_window(memory, WINDOW) }
}

/// Destroys a communicator when all ranks have come here.
fn end(comm: Comm<'_>, hub: &mut Hub) -> Result<()> {
    // A rank that destroys its communicator early can cut others off: NCCL 2.22 and 2.23 stop the
    // proxy before it has fetched what was posted last.
    step(hub, "wait for the other ranks before ncclCommDestroy")?;
    hub.exchange(Vec::new())?;
    step(hub, "ncclCommDestroy")?;
    comm.destroy()
}

/// Registers the buffers in a second communicator, runs the last test there, and ends it. The registrations
/// of the first communicator must stay; the tests are repeated with them.
fn share(job: &Job, nccl: &Nccl, cuda: &Cuda, buffers: &Buffers<'_>, hub: &mut Hub) -> Result<()> {
    let (comm, _) = join(job, nccl, hub)?;
    let mut bench = Bench::new(job, cuda, &comm, buffers)?;
    if let Some((place, test)) = (0..).zip(&job.tests).last() {
        match bench.test(*test, place, 0, hub)? {
            Ended::Ran(ran) if ran.wrong == 0 => {}
            Ended::Ran(ran) => {
                return Err(format!("in a second communicator: {test:?}: first {:?}", ran.first).into());
            }
            Ended::Failed((code, text)) => {
                return Err(format!("in a second communicator: asynchronous error {code}: {text}").into());
            }
        }
    }
    bench.deregister()?;
    end(comm, hub)
}

pub(crate) fn step(hub: &mut Hub, name: &str) -> Result<()> {
    Ok(hub.send(&Message::Step(name.into()))?)
}

/// Attaches softcuda to the loaded library.
fn attach(job: &Job, softcuda: &Path) -> Result<()> {
    let softcuda = Library::open(softcuda)?;
    // SAFETY: the function that `ATTACH` names has this type.
    let attach: Attach = unsafe { softcuda.function(ATTACH)? };
    let path = CString::new(job.library.as_os_str().as_bytes())?;
    let settings = CString::new(serde_json::to_string(&job.settings)?)?;
    // SAFETY: two C strings; the library is loaded, and no thread of it runs yet.
    match unsafe { attach(path.as_ptr(), settings.as_ptr()) } {
        0 => Ok(()),
        _ => Err("softcuda did not attach; its reason is on stderr".into()),
    }
}

/// Waits for a stream. Returns the asynchronous error that came instead, if one did.
pub(crate) fn wait(cuda: &Cuda, comm: &Comm<'_>, stream: Stream) -> Result<Option<(i32, String)>> {
    while !cuda.is_done(stream)? {
        if let Some(error) = comm.asynchronous_error()? {
            return Ok(Some(error));
        }
        thread::sleep(PAUSE);
    }
    comm.asynchronous_error()
}

/// How a test ended.
pub(crate) enum Ended {
    Ran(Ran),
    /// The asynchronous error: number and text.
    Failed((i32, String)),
}

/// The buffers of the tests.
struct Buffers<'a> {
    send: Buffer<'a>,
    receive: Buffer<'a>,
}

impl<'a> Buffers<'a> {
    fn new(job: &Job, cuda: &'a Cuda, nccl: &Nccl) -> Result<Self> {
        let bytes = |test: &Test| test.count * test.element.size() * job.ranks as usize;
        let len = job.tests.iter().map(bytes).max().unwrap_or(0);
        let buffer = || match job.memory {
            Memory::Windows => Ok(cuda.buffer_at(nccl.mem_alloc(len.max(1))?, len)),
            Memory::Plain | Memory::Registered => cuda.buffer(len),
        };
        Ok(Self { send: buffer()?, receive: buffer()? })
    }
}

/// The tests of a communicator, with its registrations and a stream.
struct Bench<'a> {
    job: &'a Job,
    cuda: &'a Cuda,
    comm: &'a Comm<'a>,
    stream: Stream,
    send: &'a Buffer<'a>,
    receive: &'a Buffer<'a>,
    registered: Vec<*mut c_void>,
    /// Of the buffers to send and to receive, where NCCL makes windows.
    windows: [Option<Window>; 2],
}

impl<'a> Bench<'a> {
    fn new(job: &'a Job, cuda: &'a Cuda, comm: &'a Comm<'a>, buffers: &'a Buffers<'a>) -> Result<Self> {
        let (send, receive) = (&buffers.send, &buffers.receive);
        let mut registered = Vec::new();
        let mut windows = [None; 2];
        for (buffer, window) in [send, receive].into_iter().zip(&mut windows) {
            match job.memory {
                Memory::Plain => {}
                Memory::Registered => {
                    // SAFETY: the buffers are freed after `deregister`, or at the end of the process.
                    registered.extend(unsafe { comm.register(buffer.pointer(), buffer.len())? });
                }
                // SAFETY: memory of NCCL (`Buffers::new`), by the same tests in all ranks.
                Memory::Windows => *window = unsafe { comm.open_window(buffer.pointer(), buffer.len())? },
            }
        }
        Ok(Self { job, cuda, comm, stream: cuda.stream()?, send, receive, registered, windows })
    }

    /// Ends the registrations, which NCCL expects before the end of the communicator.
    fn deregister(&mut self) -> Result<()> {
        for handle in self.registered.drain(..) {
            // SAFETY: a handle of `register`, taken out of the list.
            unsafe { self.comm.deregister(handle)? };
        }
        for window in self.windows.iter_mut().filter_map(Option::take) {
            // SAFETY: a window of `open_window`, taken out of its place.
            unsafe { self.comm.close_window(window)? };
        }
        Ok(())
    }

    /// Runs all repetitions of a test, which has this place in the list. Each round of each lap has
    /// other values.
    fn test(&self, test: Test, place: u32, lap: u32, hub: &mut Hub) -> Result<Ended> {
        let mut ran = Ran::default();
        let last = place as usize + 1 == self.job.tests.len();
        for round in lap * test.times..(lap + 1) * test.times {
            step(
                hub,
                &format!("{} of {} {:?}, round {round}", test.collective.name(), test.count, test.element),
            )?;
            let case = Case { test, rank: self.job.rank, ranks: self.job.ranks, round, place };
            self.prepare(case)?;
            if test.collective == Collective::PutSignal {
                // The peer writes into the buffer without being asked.
                hub.exchange(Vec::new())?;
            }
            let begun = Instant::now();
            self.enqueue(case)?;
            if last && round == test.times / 2 && self.job.killed == Some(self.job.rank) {
                // SAFETY: ends this process, which is what the test is about.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            if let Some(error) = wait(self.cuda, self.comm, self.stream)? {
                return Ok(Ended::Failed(error));
            }
            ran.seconds += begun.elapsed().as_secs_f64();
            let received = self.receive.read(case.received() * test.element.size())?;
            let (wrong, first) = case.compare(&received);
            ran.compared += case.received();
            ran.wrong += wrong;
            ran.first = ran.first.or(first);
        }
        Ok(Ended::Ran(ran))
    }

    /// Measures the repetitions of a test together, in batches. The first one does not count. The
    /// result is the fastest one: the others contain what the scheduler gave to other threads.
    fn time(&self, test: Test, hub: &mut Hub) -> Result<Ended> {
        step(hub, &format!("time {} of {} {:?}", test.collective.name(), test.count, test.element))?;
        let mut ran = Ran { seconds: f64::INFINITY, ..Ran::default() };
        let first = Instant::now();
        for batch in 0..=MOST_BATCHES {
            // Rank 0 decides for all ranks whether another batch follows.
            let is_over = batch >= LEAST_BATCHES && first.elapsed() > BATCHES_TIME;
            if hub.exchange(vec![is_over.into()])?[0] == [1] {
                break;
            }
            let begun = Instant::now();
            for round in 0..test.times {
                let case = Case { test, rank: self.job.rank, ranks: self.job.ranks, round, place: 0 };
                self.enqueue(case)?;
            }
            if let Some(error) = wait(self.cuda, self.comm, self.stream)? {
                return Ok(Ended::Failed(error));
            }
            if batch > 0 {
                ran.seconds = ran.seconds.min(begun.elapsed().as_secs_f64());
            }
        }
        Ok(Ended::Ran(ran))
    }

    /// Fills the buffers.
    fn prepare(&self, case: Case) -> Result<()> {
        let contribution = case.contribution();
        if case.test.collective == Collective::AllReduceInPlace {
            return self.receive.write(&contribution);
        }
        self.receive.write(&vec![UNTOUCHED; self.receive.len()])?;
        self.send.write(&contribution)
    }

    fn enqueue(&self, case: Case) -> Result<()> {
        let Test { collective, element, operator, count, .. } = case.test;
        let (send, receive) = (self.send.pointer(), self.receive.pointer());
        let call = Call {
            collective,
            element,
            operator,
            root: case.root(),
            count,
            send,
            receive,
            window: self.windows[1],
            stream: self.stream,
        };
        // SAFETY: the buffers have room for the largest test, and `wait` comes before they are freed
        // or read. After an asynchronous error `ncclCommAbort` ends the work first.
        unsafe { self.comm.enqueue(call) }
    }
}
