//! The commands of one-sided traffic. Each is a message of a connection between two ranks.
//!
//! A command has eight little-endian words, and what it carries inside follows them:
//!
//! | word | content |
//! |---|---|
//! | 0 | kind in byte 0, way of the data in byte 1, 1 in byte 2 if there is a signal; window or rank in the upper half |
//! | 1 | offset in the window, or the group's number |
//! | 2 | size in bytes |
//! | 3 | bytes of each message on the data link but the last one |
//! | 4, 5, 6 | window, offset and value of the signal |
//! | 7 | number of the get |
//!
//! A word that a kind does not use is zero.

/// Words of a command.
pub const COMMAND_WORDS: usize = 8;
/// Bytes of a command without what it carries.
pub const COMMAND_BYTES: usize = 8 * COMMAND_WORDS;
/// The largest message of a command link in bytes.
pub const COMMAND_MESSAGE_BYTES: usize = 1024;
/// The most data that goes over a command link at once, in bytes.
pub const MAX_CARRIED: usize = COMMAND_MESSAGE_BYTES - COMMAND_BYTES;

const JOIN: u8 = 1;
const PUT: u8 = 2;
const GET: u8 = 3;
const ANSWER: u8 = 4;
const END: u8 = 5;

/// What a rank says to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The first message of each link: whose it is.
    Join {
        /// The rank that has connected.
        rank: u32,
        /// What goes over this link.
        link: LinkKind,
        /// The number of the group of ranks.
        group: u64,
    },
    /// Data for a window of the receiver, a signal behind it, or one of both.
    Put {
        /// The data.
        data: Option<(Extent, Way)>,
        /// The signal, due when the data and all earlier puts are visible.
        signal: Option<Signal>,
    },
    /// A request for data of a window of the receiver.
    Get {
        /// Chosen by the sender; the answer has it.
        id: u32,
        /// The data.
        from: Extent,
    },
    /// The answer to a get.
    Answer {
        /// The number of the get.
        id: u32,
        /// The size of the data in bytes.
        size: u64,
        /// How the data comes.
        way: Way,
    },
    /// The sender closes the link. Nothing follows.
    End,
}

/// What goes over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// Commands, and what they carry.
    Commands,
    /// Data that commands announce.
    Data,
}

/// A part of a window. All ranks number their windows alike: registration is collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number of the window.
    pub window: u32,
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes, 1 or more.
    pub size: u64,
}

/// How data comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Behind the command's words, in the same message.
    Inside,
    /// As the next message of the command link.
    Next,
    /// Over the data link, in messages of so many bytes; the last one may be shorter.
    DataLink(u64),
}

/// A number that is added to a word of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signal {
    /// Number of the window.
    pub window: u32,
    /// Offset of the word in bytes.
    pub offset: u64,
    /// The number to add.
    pub value: u64,
}

/// Words that are no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no command of one-sided traffic: {0:x?}")]
pub struct CommandError([u64; COMMAND_WORDS]);

/// Returns word 0.
fn head(kind: u8, way: u8, flag: u8, upper: u32) -> u64 {
    u64::from(kind) | u64::from(way) << 8 | u64::from(flag) << 16 | u64::from(upper) << 32
}

impl Way {
    /// Returns the byte of word 0, and word 3.
    fn encode(self) -> (u8, u64) {
        match self {
            Self::Inside => (1, 0),
            Self::Next => (2, 0),
            Self::DataLink(chunk) => (3, chunk),
        }
    }

    fn decode(way: u8, chunk: u64, size: u64) -> Option<Self> {
        let is_small = size <= MAX_CARRIED as u64;
        match way {
            1 if is_small => Some(Self::Inside),
            2 if is_small => Some(Self::Next),
            3 if chunk > 0 => Some(Self::DataLink(chunk)),
            _ => None,
        }
    }
}

impl Command {
    /// Returns the words.
    pub fn encode(self) -> [u64; COMMAND_WORDS] {
        match self {
            Self::Join { rank, link, group } => {
                [head(JOIN, 0, u8::from(link == LinkKind::Data), rank), group, 0, 0, 0, 0, 0, 0]
            }
            Self::Put { data, signal } => {
                let (way, chunk) = data.map_or((0, 0), |(_, way)| way.encode());
                let (window, offset, size) =
                    data.map_or((0, 0, 0), |(extent, _)| (extent.window, extent.offset, extent.size));
                let (there, to, at, value) =
                    signal.map_or((0, 0, 0, 0), |s| (1, s.window.into(), s.offset, s.value));
                [head(PUT, way, there, window), offset, size, chunk, to, at, value, 0]
            }
            Self::Get { id, from } => {
                [head(GET, 0, 0, from.window), from.offset, from.size, 0, 0, 0, 0, id.into()]
            }
            Self::Answer { id, size, way } => {
                let (way, chunk) = way.encode();
                [head(ANSWER, way, 0, 0), 0, size, chunk, 0, 0, 0, id.into()]
            }
            Self::End => [head(END, 0, 0, 0), 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// Returns the size in bytes of the data that follows the words in the command's message.
    pub fn inside(&self) -> usize {
        match self {
            Self::Put { data: Some((Extent { size, .. }, Way::Inside)), .. }
            | Self::Answer { size, way: Way::Inside, .. } => *size as usize,
            _ => 0,
        }
    }

    /// Returns the command with these words, and refuses all that [`encode`](Self::encode) never
    /// returns.
    pub fn decode(words: &[u64; COMMAND_WORDS]) -> Result<Self, CommandError> {
        let error = CommandError(*words);
        let command = Self::of(words).ok_or(error)?;
        if command.encode() == *words { Ok(command) } else { Err(error) }
    }

    fn of(words: &[u64; COMMAND_WORDS]) -> Option<Self> {
        let [head, offset, size, chunk, to, at, value, id] = *words;
        let [kind, way, flag, ..] = head.to_le_bytes();
        let upper = (head >> 32) as u32;
        let id = u32::try_from(id).ok()?;
        match kind {
            JOIN => {
                let link = if flag == 0 { LinkKind::Commands } else { LinkKind::Data };
                Some(Self::Join { rank: upper, link, group: offset })
            }
            PUT => {
                let data = match way {
                    0 => None,
                    _ if size == 0 => return None,
                    _ => Some((Extent { window: upper, offset, size }, Way::decode(way, chunk, size)?)),
                };
                let signal = match flag {
                    0 => None,
                    _ => Some(Signal { window: u32::try_from(to).ok()?, offset: at, value }),
                };
                Some(Self::Put { data, signal })
            }
            GET if size > 0 => Some(Self::Get { id, from: Extent { window: upper, offset, size } }),
            ANSWER if size > 0 => Some(Self::Answer { id, size, way: Way::decode(way, chunk, size)? }),
            END => Some(Self::End),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn way() -> impl Strategy<Value = (u64, Way)> {
        let small = 1..=MAX_CARRIED as u64;
        prop_oneof![
            small.clone().prop_map(|size| (size, Way::Inside)),
            small.prop_map(|size| (size, Way::Next)),
            (1..u64::MAX, 1..u64::MAX).prop_map(|(size, chunk)| (size, Way::DataLink(chunk))),
        ]
    }

    fn command() -> impl Strategy<Value = Command> {
        let data = (any::<u32>(), any::<u64>(), way())
            .prop_map(|(window, offset, (size, way))| (Extent { window, offset, size }, way));
        let signal =
            any::<(u32, u64, u64)>().prop_map(|(window, offset, value)| Signal { window, offset, value });
        prop_oneof![
            (any::<u32>(), any::<bool>(), any::<u64>()).prop_map(|(rank, data, group)| {
                let link = if data { LinkKind::Data } else { LinkKind::Commands };
                Command::Join { rank, link, group }
            }),
            (proptest::option::of(data), proptest::option::of(signal))
                .prop_map(|(data, signal)| Command::Put { data, signal }),
            (any::<(u32, u32, u64)>(), 1..u64::MAX).prop_map(|((id, window, offset), size)| Command::Get {
                id,
                from: Extent { window, offset, size }
            }),
            (any::<u32>(), way()).prop_map(|(id, (size, way))| Command::Answer { id, size, way }),
            Just(Command::End),
        ]
    }

    proptest! {
        #[test]
        fn a_command_survives_its_words(command in command()) {
            prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
        }

        #[test]
        fn any_words_are_one_command_or_refused(
            kind in 0..8u64, way in 0..5u64, flag in 0..3u64, upper: u32,
            rest in proptest::array::uniform7(prop_oneof![Just(0), Just(1), any::<u64>()]),
        ) {
            let mut words = [kind | way << 8 | flag << 16 | u64::from(upper) << 32, 0, 0, 0, 0, 0, 0, 0];
            words[1..].copy_from_slice(&rest);
            if let Ok(command) = Command::decode(&words) {
                prop_assert_eq!(command.encode(), words);
            }
        }
    }
}
