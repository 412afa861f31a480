//! Sends and receives of a batch.

use super::{Reader, layout};
use crate::{
    Unknown,
    address::Address,
    collective::{
        REGISTERED_STEP, Task,
        p2p::{Message, decode_chunk, part_range},
    },
    kernel::device::Channel,
    layout::P2pHalf,
    protocol::{Direction, Protocol, Registration},
};

impl Reader<'_> {
    /// Returns the tasks of a send and a receive.
    pub(super) fn p2p(&mut self, channel: &Channel, place: u32, work: &[u8]) -> Result<Vec<Task>, Unknown> {
        let fields = self.layout.p2p.clone();
        let (send, receive) = (&fields.send, &fields.receive);
        let channels = fields.channels.size(work);
        if !channels.is_power_of_two() {
            return Err(Unknown::new("number of channels", channels).found("send and receive"));
        }
        let base = fields.channel_base.size(work);
        let part = self.program.part_order.part(channel.index, base, channels);
        if send.rank.signed(work) == self.comm.rank as i64 {
            return Ok(self.copy(place, part, work));
        }
        let mut tasks = Vec::new();
        for (half, direction) in [(send, Direction::Send), (receive, Direction::Receive)] {
            if let Some(message) = self.message(half, direction, place, part, work)? {
                tasks.push(message.task(&self.comm, channel)?);
            }
        }
        Ok(tasks)
    }

    /// Returns the part of a send to this rank itself.
    fn copy(&mut self, place: u32, part: usize, work: &[u8]) -> Vec<Task> {
        let (send, receive) = (&self.layout.p2p.send, &self.layout.p2p.receive);
        let (bytes, parts) = (send.bytes.size(work), send.channels.size(work));
        if part >= parts {
            return Vec::new();
        }
        let range = part_range(bytes, parts, part);
        let name = || "send to this rank".to_owned();
        self.coverage.add((place, true), name, bytes, [range.clone()].into_iter());
        let at = |field: layout::Field| Address::new(field.size(work)).plus(range.start);
        vec![Task::Copy { from: at(send.buffer), to: at(receive.buffer), bytes: range.len() }]
    }

    fn message(
        &mut self,
        half: &P2pHalf,
        direction: Direction,
        place: u32,
        part: usize,
        work: &[u8],
    ) -> Result<Option<Message>, Unknown> {
        let parts = half.channels.size(work);
        if part >= parts {
            return Ok(None);
        }
        let (peer, bytes) = (half.rank.signed(work), half.bytes.size(work));
        let range = part_range(bytes, parts, part);
        let is_send = direction == Direction::Send;
        let name = || format!("{direction:?} with rank {peer}");
        self.coverage.add((place, is_send), name, bytes, [range.clone()].into_iter());
        let is_ll = half.is_ll.is_set(work);
        let registration = match half.net_registered.is_set(work) && !is_ll {
            false => Registration::None,
            true if half.whole => Registration::Whole,
            true => Registration::P2p,
        };
        Ok(Some(Message {
            direction,
            peer: usize::try_from(peer).map_err(|_| Unknown::new("peer", peer))?,
            buffer: Address::new(half.buffer.size(work)).plus(range.start),
            bytes: range.len(),
            chunk: match registration {
                Registration::None => decode_chunk(half.chunk.get(work) as u8),
                Registration::Whole => range.len().max(1),
                _ => REGISTERED_STEP,
            },
            protocol: if is_ll { Protocol::Ll } else { Protocol::Simple },
            registration,
        }))
    }
}
