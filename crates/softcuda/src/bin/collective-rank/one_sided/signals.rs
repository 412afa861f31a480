//! Signals without data, counted.

use std::time::Instant;

use softcuda::rank::{Hub, Ran};

use super::{OneSidedBench, Waited};
use crate::{Result, run::step};

/// Rounds in which each rank signals to each other one.
const ROUNDS: u32 = 4;
/// Looks at a wait that must not end. Each comes after another stream has done a job.
const LOOKS: usize = 50;

/// Returns how many signals a rank sends to another one in a round.
fn count(from: u32, to: u32, round: u32) -> u32 {
    1 + (from + 2 * to + round) % 5
}

impl OneSidedBench<'_> {
    pub(super) fn signal(&self, lap: u32, hub: &mut Hub) -> Result<Waited<Ran>> {
        let (own, mut ran) = (self.job.rank, Ran::default());
        step(hub, &format!("signals, lap {lap}"))?;
        let begun = Instant::now();
        for round in 0..ROUNDS {
            for peer in self.peers() {
                (0..count(own, peer, round)).try_for_each(|_| self.comm.signal(peer, self.stream))?;
            }
            let expected: Vec<_> = self.peers().map(|peer| (peer, count(peer, own, round))).collect();
            self.comm.wait_signals(&expected, self.stream)?;
            ran.compared += expected.iter().map(|(_, count)| *count as usize).sum::<usize>();
        }
        if let Err(error) = self.wait()? {
            return Ok(Err(error));
        }
        ran.seconds = begun.elapsed().as_secs_f64();
        for waiting in 0..self.job.ranks {
            if let Err(error) = self.one_more(waiting, lap, hub, &mut ran)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(ran))
    }

    /// Lets a rank wait for one more signal of each other one. The wait must not end before they are
    /// sent: no signal was counted twice.
    fn one_more(&self, waiting: u32, lap: u32, hub: &mut Hub, ran: &mut Ran) -> Result<Waited> {
        step(hub, &format!("one more signal to rank {waiting}, lap {lap}"))?;
        hub.exchange(Vec::new())?;
        if waiting == self.job.rank {
            for peer in self.peers() {
                self.comm.wait_signals(&[(peer, 1)], self.stream)?;
                let ended = self.ends_early()?;
                ran.compare(lap, peer as usize, ended.into(), 0);
                // The others send while this rank waits for one of them at a time.
                hub.exchange(Vec::new())?;
                if let Err(error) = self.wait()? {
                    return Ok(Err(error));
                }
            }
        } else {
            for peer in (0..self.job.ranks).filter(|rank| *rank != waiting) {
                hub.exchange(Vec::new())?;
                if peer == self.job.rank {
                    self.comm.signal(waiting, self.stream)?;
                }
            }
        }
        self.wait()
    }

    /// Returns whether the stream is done before it may be.
    fn ends_early(&self) -> Result<bool> {
        let scratch = self.cuda.buffer(8)?;
        for _ in 0..LOOKS {
            // SAFETY: the buffer is freed after the stream is done.
            unsafe { self.cuda.fill((&scratch, 0), 0, 8, self.later)? };
            while !self.cuda.is_done(self.later)? {
                std::thread::yield_now();
            }
            if self.cuda.is_done(self.stream)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
