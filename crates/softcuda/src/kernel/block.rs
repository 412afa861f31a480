//! A block of a kernel: the works of one channel, group by group.

use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    time::{SystemTime, UNIX_EPOCH},
};

use super::device::{Channel, Communicator};
use crate::{Unknown, collective::Task, layout, protocol::Progress};

/// Works that the host has put together. Their stages run one after the other.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Number of works.
    pub(super) works: u64,
    /// Whether a work of the group reports to the profiler.
    pub(super) is_profiled: bool,
    /// Tasks that run at the same time.
    pub(super) stages: VecDeque<Vec<Task>>,
}

/// A block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) comm: Communicator,
    pub(super) channel: Channel,
    pub(super) groups: VecDeque<Group>,
    /// Works that the channel has run, in releases that count them.
    pub(super) works: Option<u64>,
    is_started: bool,
}

impl Block {
    pub(super) fn new(comm: Communicator, channel: Channel, groups: VecDeque<Group>) -> Self {
        let works = channel.works();
        Self { comm, channel, groups, works, is_started: false }
    }

    /// Advances as far as it goes without waiting.
    pub(super) fn step(&mut self) -> Result<Progress, Unknown> {
        let mut result = Progress::Waiting;
        while !self.groups.is_empty() {
            if !self.is_started {
                self.start_group();
            }
            match self.step_group()? {
                Progress::Done => {
                    self.end_group();
                    result = Progress::Moved;
                }
                Progress::Moved => return Ok(Progress::Moved),
                Progress::Waiting => return Ok(result),
            }
        }
        Ok(Progress::Done)
    }

    fn step_group(&mut self) -> Result<Progress, Unknown> {
        let mut result = Progress::Waiting;
        while let Some(stage) = self.groups.front_mut().and_then(|group| group.stages.front_mut()) {
            let mut is_done = true;
            for task in stage.iter_mut().filter(|task| !task.is_done()) {
                match task.step()? {
                    Progress::Done => result = Progress::Moved,
                    Progress::Moved => (is_done, result) = (false, Progress::Moved),
                    Progress::Waiting => is_done = false,
                }
            }
            if !is_done {
                return Ok(result);
            }
            self.groups[0].stages.pop_front();
            result = Progress::Moved;
        }
        Ok(Progress::Done)
    }

    fn start_group(&mut self) {
        self.is_started = true;
        if let Some(works) = &mut self.works {
            *works += self.groups[0].works;
        }
        self.report(|profiler| profiler.started);
    }

    fn end_group(&mut self) {
        self.report(|profiler| profiler.completed);
        self.is_started = false;
        self.groups.pop_front();
        if let (true, Some(works)) = (self.groups.is_empty(), self.works) {
            self.channel.set_works(works);
        }
    }

    /// Reports the number of works to the profiler, with the time where the release has a place
    /// for it.
    fn report(&self, table: impl Fn(&layout::Profiler) -> layout::Field) {
        /// Bytes of {counter, time}.
        const ENTRY: usize = 16;
        let Some(profiler) = &self.comm.layout().communicator.profiler else { return };
        let (Some(works), Some(group)) = (self.works, self.groups.front()) else { return };
        let size = profiler.ring.unwrap_or(size_of::<u64>());
        let Some(entry) = self.comm.entry(table(profiler), self.channel.index, size) else { return };
        match profiler.ring {
            None => {
                // SAFETY: the channel's counter in a table of the communicator.
                unsafe { entry.word() }.store(works, Ordering::Release);
            }
            Some(size) if group.is_profiled => {
                let place = entry.plus(works as usize % (size / ENTRY) * ENTRY);
                // SAFETY: an entry of the channel's ring in a table of the communicator.
                let (counter, time) = unsafe { (place.word(), place.plus(8).word()) };
                time.store(nanoseconds(), Ordering::Relaxed);
                counter.store(works, Ordering::Release);
            }
            Some(_) => {}
        }
    }
}

/// Returns the time as a GPU's global timer has it.
fn nanoseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}
