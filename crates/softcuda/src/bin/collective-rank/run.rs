//! The rank's work from loading the library to the end of the communicator.

use std::{
    ffi::{CString, c_void},
    os::unix::ffi::OsStrExt,
    thread,
    time::{Duration, Instant},
};

use softcuda::{
    ATTACH, Attach,
    rank::{Case, Collective, Hub, Job, Message, Outcome, Ran, Test, UNTOUCHED},
};

use crate::{
    Result,
    cuda::{Buffer, Cuda, Stream},
    library::Library,
    nccl::{Call, Comm, Nccl, UniqueId},
};

/// Pause between two looks at a stream that is not done.
const PAUSE: Duration = Duration::from_micros(100);

/// Does the job.
pub(crate) fn run(job: &Job, hub: &mut Hub) -> Result<Outcome> {
    step(hub, "load the library")?;
    let library = Library::open(&job.library)?;
    attach(job)?;
    let nccl = Nccl::of(&library)?;
    let id = if job.rank == 0 { nccl.unique_id()?.0.to_vec() } else { Vec::new() };
    step(hub, "wait for the other ranks before init")?;
    let ids = hub.exchange(id)?;
    let id = ids[0].as_slice().try_into().map_err(|_| "rank 0 sent no unique id")?;
    let cuda = Cuda::open(job.device)?;
    step(hub, "ncclCommInitRank")?;
    let begun = Instant::now();
    let comm = nccl.join(UniqueId(id), job.rank, job.ranks)?;
    let init_seconds = begun.elapsed().as_secs_f64();
    let mut outcome =
        Outcome { version: nccl.version()?, init_seconds, tests: Vec::new(), asynchronous_error: None };
    let mut bench = Bench::new(job, &cuda, &comm)?;
    let mut lap = 0;
    loop {
        for (place, test) in (0..).zip(&job.tests) {
            let ended =
                if job.timed { bench.time(*test, hub)? } else { bench.test(*test, place, lap, hub)? };
            match (ended, outcome.tests.get_mut(place as usize)) {
                (Ended::Ran(ran), Some(before)) => before.add(ran),
                (Ended::Ran(ran), None) => outcome.tests.push(ran),
                (Ended::Failed(error), _) => {
                    step(hub, "ncclCommAbort")?;
                    outcome.asynchronous_error = Some(error);
                    // The buffers of `bench` stay until the work on them has ended.
                    comm.abort()?;
                    return Ok(outcome);
                }
            }
        }
        if !job.laps || !hub.lap()? {
            break;
        }
        lap += 1;
    }
    bench.deregister()?;
    drop(bench);
    // A rank that destroys its communicator early can cut others off: NCCL 2.22 and 2.23 stop the
    // proxy before it has fetched what was posted last.
    step(hub, "wait for the other ranks before ncclCommDestroy")?;
    hub.exchange(Vec::new())?;
    step(hub, "ncclCommDestroy")?;
    comm.destroy()?;
    Ok(outcome)
}

fn step(hub: &mut Hub, name: &str) -> Result<()> {
    Ok(hub.send(&Message::Step(name.into()))?)
}

/// Attaches softcuda to the loaded library.
fn attach(job: &Job) -> Result<()> {
    let softcuda = Library::open(&job.softcuda)?;
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

/// How a test ended.
enum Ended {
    Ran(Ran),
    /// The asynchronous error: number and text.
    Failed((i32, String)),
}

/// The buffers and the stream of the tests.
struct Bench<'a> {
    job: &'a Job,
    cuda: &'a Cuda,
    comm: &'a Comm<'a>,
    stream: Stream,
    send: Buffer<'a>,
    receive: Buffer<'a>,
    registered: Vec<*mut c_void>,
}

impl<'a> Bench<'a> {
    fn new(job: &'a Job, cuda: &'a Cuda, comm: &'a Comm<'a>) -> Result<Self> {
        let bytes = |test: &Test| test.count * test.element.size() * job.ranks as usize;
        let len = job.tests.iter().map(bytes).max().unwrap_or(0);
        let (send, receive) = (cuda.buffer(len)?, cuda.buffer(len)?);
        let mut registered = Vec::new();
        if job.register {
            for buffer in [&send, &receive] {
                // SAFETY: the buffers are freed with `Bench`, after `deregister`.
                registered.extend(unsafe { comm.register(buffer.pointer(), buffer.len())? });
            }
        }
        Ok(Self { job, cuda, comm, stream: cuda.stream()?, send, receive, registered })
    }

    /// Ends the registrations, which NCCL expects before the end of the communicator.
    fn deregister(&mut self) -> Result<()> {
        for handle in self.registered.drain(..) {
            // SAFETY: a handle of `register`, taken out of the list.
            unsafe { self.comm.deregister(handle)? };
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
            let begun = Instant::now();
            self.enqueue(case)?;
            if last && round == test.times / 2 && self.job.killed == Some(self.job.rank) {
                // SAFETY: ends this process, which is what the test is about.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            if let Some(error) = self.wait()? {
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

    /// Measures the repetitions of a test together, after as many that are not measured.
    fn time(&self, test: Test, hub: &mut Hub) -> Result<Ended> {
        step(hub, &format!("time {} of {} {:?}", test.collective.name(), test.count, test.element))?;
        let mut ran = Ran::default();
        for _ in 0..2 {
            hub.exchange(Vec::new())?;
            let begun = Instant::now();
            for round in 0..test.times {
                let case = Case { test, rank: self.job.rank, ranks: self.job.ranks, round, place: 0 };
                self.enqueue(case)?;
            }
            if let Some(error) = self.wait()? {
                return Ok(Ended::Failed(error));
            }
            ran.seconds = begun.elapsed().as_secs_f64();
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
            stream: self.stream,
        };
        // SAFETY: the buffers have room for the largest test, and `wait` comes before they are freed
        // or read. After an asynchronous error `ncclCommAbort` ends the work first.
        unsafe { self.comm.enqueue(call) }
    }

    /// Waits for the stream. Returns the asynchronous error that came instead, if one did.
    fn wait(&self) -> Result<Option<(i32, String)>> {
        while !self.cuda.is_done(self.stream)? {
            if let Some(error) = self.comm.asynchronous_error()? {
                return Ok(Some(error));
            }
            thread::sleep(PAUSE);
        }
        self.comm.asynchronous_error()
    }
}
