//! The purpose of a work request, encoded in its `wr_id`.

/// The purpose of a work request. It travels in `wr_id`, the only field that a failed completion
/// keeps: a place in bits `[7:0]`, the kind in `[15:8]`, and the number of the work request on its
/// queue pair in `[63:32]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A write of the handshake's probe.
    Probe,
    /// The signalled write of a group of sends.
    Data {
        /// Slot of the group.
        slot: u8,
    },
    /// Like `Data`, with a part that is measured.
    Measured {
        /// Slot of the group.
        slot: u8,
    },
    /// A signalled CTS write.
    Cts,
    /// The signalled write of a part that is sent again.
    Replay {
        /// Slot of the group.
        slot: u8,
        /// The rail that was to carry the part, below 8.
        part: u8,
    },
    /// The read of a flush.
    Flush {
        /// Place of the flush.
        index: u8,
    },
    /// The signalled write of the mailbox.
    Mail,
    /// A [ping](super::ping).
    Ping,
    /// A write without a signal, at either end. It has no number, and completes only if it fails.
    Unsignalled,
    /// A receive, which has no number. Also any `wr_id` that the plugin never uses.
    Receive,
}

/// The kind of a replay of part 0. Those of the other parts follow.
const REPLAY: u64 = 16;
const REPLAYS_END: u64 = REPLAY + crate::proto::MAX_RAILS as u64;

impl Work {
    /// Returns the purpose of the signalled write of a group of sends on one rail. `measured` is the
    /// mask of the rails whose parts are measured.
    #[inline(always)]
    pub(crate) const fn data(slot: u8, rail: usize, measured: u8) -> Self {
        if measured >> rail & 1 == 1 { Self::Measured { slot } } else { Self::Data { slot } }
    }

    /// Returns the `wr_id` of work request `number` of its queue pair.
    #[inline(always)]
    pub(crate) const fn id(self, number: u32) -> u64 {
        let what = match self {
            Self::Unsignalled => 0,
            Self::Probe => 1 << 8,
            Self::Cts => 2 << 8,
            Self::Data { slot } => 3 << 8 | slot as u64,
            Self::Flush { index } => 4 << 8 | index as u64,
            Self::Mail => 5 << 8,
            Self::Receive => 6 << 8,
            Self::Ping => 8 << 8,
            Self::Measured { slot } => 7 << 8 | slot as u64,
            Self::Replay { slot, part } => (REPLAY + part as u64) << 8 | slot as u64,
        };
        what | (number as u64) << 32
    }

    /// Returns the number that [`id`](Self::id) encoded.
    #[inline]
    pub(crate) const fn number(id: u64) -> u32 {
        (id >> 32) as u32
    }

    #[inline]
    pub(crate) const fn of(id: u64) -> Self {
        match (id as u32 >> 8) as u64 {
            0 => Self::Unsignalled,
            1 => Self::Probe,
            2 => Self::Cts,
            3 => Self::Data { slot: id as u8 },
            4 => Self::Flush { index: id as u8 },
            5 => Self::Mail,
            8 => Self::Ping,
            7 => Self::Measured { slot: id as u8 },
            REPLAY..REPLAYS_END => Self::Replay { slot: id as u8, part: (id >> 8) as u8 - REPLAY as u8 },
            _ => Self::Receive,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Data { .. } | Self::Measured { .. } | Self::Replay { .. } => "data write",
            Self::Cts => "CTS write",
            Self::Flush { .. } => "flush read",
            Self::Mail => "mailbox write",
            Self::Ping => "ping",
            Self::Unsignalled => "write",
            Self::Receive => "receive",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_decodes_to_its_work_and_number() {
        let numbered = [0, 255]
            .map(|n| [Work::Data { slot: n }, Work::Measured { slot: n }, Work::Flush { index: n }])
            .concat();
        let again = (0..8).map(|part| Work::Replay { slot: 63, part });
        let bare = [Work::Probe, Work::Cts, Work::Mail, Work::Ping, Work::Unsignalled, Work::Receive];
        for work in bare.into_iter().chain(numbered).chain(again) {
            for number in [0, 1, u32::MAX] {
                let id = work.id(number);
                assert_eq!((Work::of(id), Work::number(id)), (work, number));
            }
        }
        assert_eq!(Work::of(u64::MAX), Work::Receive);
    }
}
