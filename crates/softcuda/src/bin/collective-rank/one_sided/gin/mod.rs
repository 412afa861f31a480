//! Kernels with GIN: threads stand in for their blocks and post to NCCL's proxy.
//!
//! Each block puts to every other rank in rounds, and looks at what the same block of the other ranks
//! has put as soon as their signal is there. Several blocks share a context. At the end each signal
//! and counter has exactly its value. Then the blocks get, and look at that.

mod block;
mod device;
mod plan;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use softcuda::rank::{Hub, Job, Ran, UNTOUCHED};

use self::{block::Block, device::Device, plan::Plan};
use super::{OneSidedBench, Waited, Windowed};
use crate::{
    Result,
    cuda::Cuda,
    nccl::{Comm, Nccl},
    run::step,
};

/// Pause between two looks for an asynchronous error.
const PAUSE: Duration = Duration::from_millis(1);

/// The communicator of kernels, and their memory.
pub(super) struct Gin<'a> {
    memory: Windowed<'a>,
    device: Device,
    plan: Plan,
}

impl<'a> Gin<'a> {
    /// Makes windows and the communicator, together with all ranks.
    pub(super) fn new(job: &Job, nccl: &Nccl, cuda: &'a Cuda, comm: &Comm<'_>) -> Result<Self> {
        if job.softcuda.is_none() {
            return Err("threads of the CPU cannot stand in for kernels on a GPU".into());
        }
        let plan = Plan::new(job.rank, job.ranks);
        let memory = Windowed::new(nccl, cuda, comm, plan.source_len(), plan.target_len())?;
        let device = Device::new(job, nccl, comm, &plan, memory.windows)?;
        Ok(Self { memory, device, plan })
    }

    /// Ends communicator and windows.
    pub(super) fn end(self, comm: &Comm<'_>) -> Result<()> {
        self.device.end(comm)?;
        self.memory.end(comm)
    }
}

impl OneSidedBench<'_> {
    pub(super) fn gin(&self, gin: &Gin<'_>, lap: u32, hub: &mut Hub) -> Result<Waited<Ran>> {
        let mut ran = Ran::default();
        step(hub, &format!("prepare kernels, lap {lap}"))?;
        gin.memory.source.write(&gin.plan.source(lap))?;
        gin.memory.target.write(&gin.plan.target(lap))?;
        gin.device.reset(&gin.plan);
        hub.exchange(Vec::new())?;
        let begun = Instant::now();
        let all: [(_, Work); 2] = [("puts", |block| block.put()), ("gets", |block| block.get())];
        for (name, work) in all {
            step(hub, &format!("{name} of kernels, lap {lap}"))?;
            if let Err(error) = self.run_blocks(gin, lap, work, &mut ran)? {
                return Ok(Err(error));
            }
            // All ranks have posted everything, and it is complete.
            hub.exchange(Vec::new())?;
        }
        ran.seconds = begun.elapsed().as_secs_f64();
        gin.device.check(&gin.plan, lap, &mut ran);
        self.check_memory(gin, lap, &mut ran)?;
        Ok(Ok(ran))
    }

    /// Runs all blocks, each on a thread.
    fn run_blocks(&self, gin: &Gin<'_>, lap: u32, work: Work, ran: &mut Ran) -> Result<Waited> {
        let stop = AtomicBool::new(false);
        let (blocks, failed) = thread::scope(|scope| -> Result<_> {
            let start = |number| {
                let block = Block::new(gin, number, lap, &stop);
                scope.spawn(move || work(&block))
            };
            let threads: Vec<_> = (0..plan::BLOCKS).map(start).collect();
            let mut failed = None;
            while threads.iter().any(|thread| !thread.is_finished()) {
                thread::sleep(PAUSE);
                let error = self.comm.asynchronous_error();
                // The threads must end before an error returns from here.
                stop.fetch_or(!matches!(error, Ok(None)), Ordering::Relaxed);
                failed = error?.or(failed);
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            let joined: Vec<_> = joined.collect::<thread::Result<_>>().map_err(|_| "a block panicked")?;
            Ok((joined, failed))
        })?;
        if let Some(error) = failed {
            return Ok(Err(error));
        }
        blocks.into_iter().for_each(|block| ran.add(block));
        Ok(Ok(()))
    }

    /// Checks all bytes of the target that no block has looked at.
    fn check_memory(&self, gin: &Gin<'_>, lap: u32, ran: &mut Ran) -> Result<()> {
        let target = gin.memory.target.read(gin.plan.target_len())?;
        let own = gin.plan.own_areas();
        ran.untouched(&target[own.clone()], lap, own.start);
        for (at, expected) in gin.plan.words() {
            let word = target[at..at + 8].try_into().unwrap_or_default();
            ran.compare(lap, at, u64::from_le_bytes(word), expected);
        }
        debug_assert_eq!(target.last(), Some(&UNTOUCHED));
        Ok(())
    }
}

type Work = fn(&Block<'_>) -> Ran;
