//! Pings: empty writes that show whether the rails of a connection work while nothing else moves, and
//! whether the peer's host lives.
//!
//! The watchdog compares the progress of rails. A sender that waits for one rail alone has none to
//! compare with, and most CTS writes of a receiver are not signalled. A ping is a signalled write of
//! no bytes, which the peer's adapter acknowledges by itself.

use crate::error::{Error, Fast};
use crate::proto::{RailSet, rails};
use crate::transport::comm::Comm;
use crate::transport::life::Signs;
use crate::transport::work::Work;

/// Index of the queue pair of a rail that carries pings. It carries CTS writes, too, and the
/// completion of a ping covers all of these before it.
pub(crate) const PING_QUEUE: usize = super::recv::cts_writer::CTS_QUEUE;

/// The rails that the watchdog wants to be pinged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinged {
    /// All of them: at a receiver.
    All,
    /// Those beside the late ones, whose outstanding writes are signalled: at a sender.
    Others,
}

impl Comm {
    /// Pings rails if the watchdog has found late ones since the last call.
    pub(crate) fn ping_if_late(&mut self, which: Pinged) -> Fast<()> {
        let late = self.watch.take_late();
        match (late, which) {
            (0, _) => Ok(()),
            (_, Pinged::All) => self.ping(u8::MAX),
            (late, Pinged::Others) => self.ping(!late),
        }
    }

    /// Looks for signs of life of a peer whose control connection is broken. If nothing has moved for
    /// a while, pings one rail. One atomic load while the control connection works.
    pub(crate) fn look_for_life(&mut self) -> Fast<()> {
        if !self.peer.is_broken() || self.has_failed() {
            return Ok(());
        }
        let rails = RailSet::from_bits(self.living() & !self.failures.noticed());
        let count = |sum: u32, rail: usize| sum.wrapping_add(self.rails[rail].signs_of_life());
        let signs = Signs { rails, count: rails.iter().fold(0, count) };
        if !self.peer.look_for_life(signs) {
            return Ok(());
        }
        // One rail may be silent: the next ping takes another one.
        if let Some(rail) = rails.without(RailSet::from_bits(self.pings)).lowest() {
            self.ping(RailSet::of(rail).bits())?;
            // All queues are polled until it is acknowledged.
            self.mark();
        }
        Ok(())
    }

    /// Returns whether a ping is outstanding.
    pub(crate) fn awaits_pings(&self) -> bool {
        self.pings != 0
    }

    /// Pings the rails of the mask that are alive, and on which no ping is outstanding.
    fn ping(&mut self, mask: u8) -> Fast<()> {
        let living = self.living() & !self.failures.noticed();
        for rail in rails(mask & living & !self.pings) {
            let queue = &mut self.rails[rail].send_queues[PING_QUEUE];
            // A full queue has signalled work requests outstanding.
            if queue.room() == 0 {
                continue;
            }
            let to = self.remote.scratch(rail);
            self.chain.clear();
            if !self.chain.write(None, to, None, Some(queue.signal(Work::Ping, 1))) {
                return Err(Error::Internal("a ping did not fit into its chain".into()).into());
            }
            match queue.post(&mut self.chain, true) {
                Ok(()) => {
                    self.stats.posted_bare(rail);
                    self.pings |= 1 << rail;
                }
                Err(e) => self.not_posted(rail, e)?,
            }
        }
        Ok(())
    }

    /// Handles the completion of a ping.
    #[cold]
    pub(crate) fn pinged(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        self.pings &= !(1 << rail);
        let known = self.rails[rail].send_queues[PING_QUEUE].sent(wr_id)?;
        self.stats.completed(rail, known);
        Ok(())
    }
}
