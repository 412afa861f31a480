//! What the usual sends of a comm have in common.

use crate::proto::MAX_RAILS;
use crate::split::Splitter;
use crate::transport::comm::Comm;
use crate::transport::send_queue::SendQueue;
use crate::verbs::ImmWrite;

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct UsualSends {
    /// The largest message, in bytes, that goes whole on a rail that need not be chosen.
    pub(crate) largest: usize,
    /// That rail.
    pub(crate) rail: usize,
    /// The mask with that rail alone.
    pub(crate) mask: u8,
    /// Their share for SUP, for the statistics.
    pub(crate) share: Option<u16>,
    /// They go inline up to this many bytes, from memory that the processor can read.
    pub(crate) inline: usize,
    /// The setting for that.
    pub(crate) wanted_inline: usize,
    pub(crate) write: ImmWrite,
}

impl UsualSends {
    /// `wanted_inline`: bytes up to which they go inline where the queue pairs have room.
    pub(crate) fn new(
        splitter: &Splitter,
        comm: &Comm,
        wanted_inline: usize,
        separate_imm_above: usize,
    ) -> Self {
        let (below, rail) = splitter.decided().unwrap_or((1, 0));
        let rail = rail % MAX_RAILS;
        let room = comm.rails.get(rail).into_iter().flat_map(|rail| rail.send_queues.iter());
        let room = room.map(SendQueue::inline).min().unwrap_or(0);
        Self {
            largest: (below.min(comm.layout.exact_below()) - 1).min(separate_imm_above),
            rail,
            mask: 1 << rail,
            share: splitter.share(1),
            inline: room.min(wanted_inline),
            wanted_inline,
            write: ImmWrite::new(),
        }
    }
}
