//! What ranks do in each other's memory.

mod gin;
mod puts;
mod signals;

use softcuda::rank::{Hub, Job, NO_WINDOW, OneSided};

use self::{gin::Gin, puts::Puts};
use crate::{
    Result,
    cuda::{Buffer, Cuda, Stream},
    nccl::{Comm, Nccl, Window},
    run::{Ended, step, wait},
};

/// The tests of one-sided transfers in a communicator.
pub(crate) struct OneSidedBench<'a> {
    job: &'a Job,
    cuda: &'a Cuda,
    comm: &'a Comm<'a>,
    stream: Stream,
    /// Polled after the other one, which was created first.
    later: Stream,
    puts: Option<Puts<'a>>,
    gin: Option<Gin<'a>>,
}

impl<'a> OneSidedBench<'a> {
    /// Makes the windows of the job's tests, together with all ranks.
    pub(crate) fn new(job: &'a Job, nccl: &'a Nccl, cuda: &'a Cuda, comm: &'a Comm<'a>) -> Result<Self> {
        let has = |test| job.one_sided.contains(&test);
        let puts = has(OneSided::Put).then(|| Puts::new(job, nccl, cuda, comm)).transpose()?;
        let gin = has(OneSided::Gin).then(|| Gin::new(job, nccl, cuda, comm)).transpose()?;
        Ok(Self { job, cuda, comm, stream: cuda.stream()?, later: cuda.stream()?, puts, gin })
    }

    /// Runs a test, with other values in each lap.
    pub(crate) fn test(&mut self, test: OneSided, lap: u32, hub: &mut Hub) -> Result<Ended> {
        let ran = match (test, &self.puts, &self.gin) {
            (OneSided::Put, Some(puts), _) => self.put(puts, lap, hub),
            (OneSided::Signal, ..) => self.signal(lap, hub),
            (OneSided::Gin, _, Some(gin)) => self.gin(gin, lap, hub),
            _ => Err(format!("{} was not prepared", test.name()).into()),
        };
        ran.map(|ran| ran.map_or_else(Ended::Failed, Ended::Ran))
    }

    /// Ends the windows.
    pub(crate) fn end(self, hub: &mut Hub) -> Result<()> {
        step(hub, "end the windows of one-sided transfers")?;
        self.gin.map_or(Ok(()), |gin| gin.end(self.comm))?;
        self.puts.map_or(Ok(()), |puts| puts.memory.end(self.comm))
    }

    /// Returns all ranks but this one.
    fn peers(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        let own = self.job.rank;
        (0..self.job.ranks).filter(move |rank| *rank != own)
    }

    fn wait(&self) -> Result<Waited> {
        Ok(match wait(self.cuda, self.comm, self.stream)? {
            None => Ok(()),
            Some(error) => Err(error),
        })
    }
}

/// The asynchronous error that ended a wait: number and text.
type Waited<T = ()> = std::result::Result<T, (i32, String)>;

/// Memory in windows: what puts read, and where they write.
struct Windowed<'a> {
    source: Buffer<'a>,
    target: Buffer<'a>,
    windows: [Window; 2],
}

impl<'a> Windowed<'a> {
    fn new(nccl: &Nccl, cuda: &'a Cuda, comm: &Comm<'_>, source: usize, target: usize) -> Result<Self> {
        let source = cuda.buffer_at(nccl.mem_alloc(source)?, source);
        let target = cuda.buffer_at(nccl.mem_alloc(target)?, target);
        let open = |buffer: &Buffer<'_>| -> Result<Window> {
            // SAFETY: memory of NCCL, of the same size in all ranks.
            let window = unsafe { comm.open_window(buffer.pointer(), buffer.len())? };
            Ok(window.ok_or(NO_WINDOW)?)
        };
        Ok(Self { windows: [open(&source)?, open(&target)?], source, target })
    }

    /// The window of all ranks' targets.
    fn target_window(&self) -> Window {
        self.windows[1]
    }

    fn end(self, comm: &Comm<'_>) -> Result<()> {
        // SAFETY: windows of `open_window`, which end once.
        self.windows.into_iter().try_for_each(|window| unsafe { comm.close_window(window) })
    }
}
