//! A descriptor of the queue between kernels and NCCL's proxy (`ncclGinProxyGfd_t`): sixteen words,
//! the lowest bit of each is set once the word is written.

/// Words of a descriptor.
const WORDS: usize = 16;
/// The version of the descriptors' format, by which the proxy reads whether a signal is strong.
const VERSION: u64 = 2;

// The operation is a sum of these.
const PUT: u64 = 1;
const INLINE: u64 = 2;
const COUNTER: u64 = 4;
const INCREMENT: u64 = 8;
const ADD: u64 = 16;
const VA_SIGNAL: u64 = 32;
const GET: u64 = 64;
const FLUSH: u64 = 128;

/// A place in a window of some rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The network's handle for the window.
    pub handle: u64,
    /// Bytes from the beginning of what is registered.
    pub offset: u64,
}

/// What a put writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Bytes of this rank's memory.
    Memory(Place),
    /// A value in the descriptor, of up to eight bytes.
    Value(u64),
}

/// What a signal does to its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Add {
    /// It adds one.
    One,
    /// It adds a value.
    Value(u64),
}

impl Add {
    /// Returns what is added.
    pub const fn value(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Value(value) => value,
        }
    }
}

/// A signal of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub id: u32,
    /// What it does.
    pub add: Add,
    /// Whether it follows all puts before it, or only the one of its descriptor.
    pub strong: bool,
}

/// What a descriptor requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writes bytes to another rank.
    Put {
        /// What is written.
        source: Source,
        /// Where.
        to: Place,
        /// Bytes.
        size: u64,
        /// Counter of this rank that counts the end of the put.
        counter: Option<u32>,
        /// Signal at the other rank.
        signal: Option<Signal>,
    },
    /// Signals without data.
    Signal(Signal),
    /// Adds to a word of a window of another rank.
    WindowSignal {
        /// The word.
        at: Place,
        /// What it does.
        add: Add,
        /// Whether it follows all puts before it.
        strong: bool,
    },
    /// Reads bytes of another rank.
    Get {
        /// The other rank's bytes.
        from: Place,
        /// Where they are written.
        to: Place,
        /// Bytes.
        size: u64,
    },
    /// Makes the bytes of all gets before it visible.
    Flush,
}

/// A descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor(pub(super) [u64; WORDS]);

impl Descriptor {
    /// Bytes of a descriptor in a queue.
    pub const SIZE: usize = 8 * WORDS;

    /// Returns the descriptor of an operation.
    ///
    /// # Panics
    /// If a number has more bits than its place.
    pub fn new(operation: Operation) -> Self {
        let mut descriptor = Self([1; WORDS]);
        match operation {
            Operation::Put { source, to, size, counter, signal } => {
                let inline = descriptor.source(source);
                descriptor.to(to);
                let counted = if counter.is_some() { COUNTER } else { 0 };
                let signalled = signal.map_or(0, |signal| operation_of(signal.add));
                descriptor.completion(counter.unwrap_or(0), signal);
                descriptor.head(PUT | inline | counted | signalled, size);
            }
            Operation::Signal(signal) => {
                descriptor.completion(0, Some(signal));
                descriptor.head(PUT | operation_of(signal.add), 0);
            }
            Operation::WindowSignal { at, add, strong } => {
                descriptor.source(Source::Memory(at));
                descriptor.completion(0, Some(Signal { id: 0, add, strong }));
                descriptor.head(VA_SIGNAL | operation_of(add), 0);
            }
            Operation::Get { from, to, size } => {
                descriptor.source(Source::Memory(from));
                descriptor.to(to);
                descriptor.head(GET, size);
            }
            Operation::Flush => descriptor.head(FLUSH, 0),
        }
        descriptor
    }

    /// Sets bits of a word.
    fn set(&mut self, word: usize, low: u32, width: u32, value: u64) {
        assert!(width == 64 || value >> width == 0, "{value} has more than {width} bits");
        self.0[word] |= value << low;
    }

    fn head(&mut self, operation: u64, size: u64) {
        self.set(0, 1, 4, VERSION);
        self.set(0, 7, 57, size);
        self.set(7, 8, 16, operation);
    }

    /// Returns the bit of the operation that the source needs.
    fn source(&mut self, source: Source) -> u64 {
        match source {
            Source::Memory(Place { handle, offset }) => {
                self.set(1, 1, 63, offset);
                self.set(2, 1, 63, handle);
                0
            }
            Source::Value(value) => {
                self.set(1, 8, 48, value & ((1 << 48) - 1));
                self.set(2, 8, 16, value >> 48);
                INLINE
            }
        }
    }

    fn to(&mut self, place: Place) {
        self.set(3, 1, 63, place.offset);
        self.set(4, 1, 63, place.handle);
    }

    fn completion(&mut self, counter: u32, signal: Option<Signal>) {
        self.set(5, 1, 23, counter.into());
        let Some(Signal { id, add, strong }) = signal else { return };
        let value = add.value();
        self.set(5, 24, 24, id.into());
        self.set(5, 48, 16, value & 0xffff);
        self.set(6, 1, 1, strong.into());
        self.set(6, 8, 16, value >> 16 & 0xffff);
        self.set(6, 24, 32, value >> 32);
    }
}

const fn operation_of(add: Add) -> u64 {
    match add {
        Add::One => INCREMENT,
        Add::Value(_) => ADD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bits of a word.
    fn bits(descriptor: Descriptor, word: usize, low: u32, width: u32) -> u64 {
        descriptor.0[word] >> low & (u64::MAX >> (64 - width))
    }

    #[test]
    fn every_word_is_marked_as_written() {
        for operation in
            [Operation::Flush, Operation::Get { from: Place::default(), to: Place::default(), size: 0 }]
        {
            assert!(Descriptor::new(operation).0.iter().all(|word| word & 1 == 1), "{operation:?}");
        }
    }

    #[test]
    fn a_put_has_its_places_its_counter_and_its_signal() {
        let put = Descriptor::new(Operation::Put {
            source: Source::Memory(Place { handle: 0x7fff_1234_5678, offset: 1 << 40 | 3 }),
            to: Place { handle: 0x7fff_8765_4321, offset: 5 },
            size: 1 << 30,
            counter: Some(0x7f_ffff),
            signal: Some(Signal { id: 0xff_fffe, add: Add::Value(0x1234_5678_9abc_def0), strong: true }),
        });
        assert_eq!((bits(put, 0, 1, 4), bits(put, 0, 7, 57)), (2, 1 << 30));
        assert_eq!((bits(put, 1, 1, 63), bits(put, 2, 1, 63)), (1 << 40 | 3, 0x7fff_1234_5678));
        assert_eq!((bits(put, 3, 1, 63), bits(put, 4, 1, 63)), (5, 0x7fff_8765_4321));
        assert_eq!((bits(put, 5, 1, 23), bits(put, 5, 24, 24)), (0x7f_ffff, 0xff_fffe));
        let value = bits(put, 5, 48, 16) | bits(put, 6, 8, 16) << 16 | bits(put, 6, 24, 32) << 32;
        assert_eq!((value, bits(put, 6, 1, 1)), (0x1234_5678_9abc_def0, 1));
        assert_eq!(bits(put, 7, 8, 16), PUT | COUNTER | ADD);
    }

    #[test]
    fn a_value_lies_in_the_words_of_the_source() {
        let source = Source::Value(0x8877_6655_4433_2211);
        let to = Place::default();
        let put = Descriptor::new(Operation::Put { source, to, size: 8, counter: None, signal: None });
        assert_eq!((bits(put, 1, 8, 32), bits(put, 1, 40, 16)), (0x4433_2211, 0x6655));
        assert_eq!((bits(put, 2, 8, 16), bits(put, 7, 8, 16)), (0x8877, PUT | INLINE));
    }

    #[test]
    fn each_operation_has_its_bits() {
        let place = Place { handle: 7, offset: 9 };
        let signal = Signal { id: 3, add: Add::One, strong: false };
        let of = |operation| bits(Descriptor::new(operation), 7, 8, 16);
        assert_eq!(of(Operation::Signal(signal)), PUT | INCREMENT);
        assert_eq!(of(Operation::Get { from: place, to: place, size: 1 }), GET);
        assert_eq!(of(Operation::Flush), FLUSH);
        let signal = Operation::WindowSignal { at: place, add: Add::Value(2), strong: true };
        assert_eq!(of(signal), VA_SIGNAL | ADD);
        assert_eq!(bits(Descriptor::new(signal), 1, 1, 63), 9);
    }

    #[test]
    #[should_panic(expected = "16777216 has more than 24 bits")]
    fn a_number_without_room_is_refused() {
        Descriptor::new(Operation::Signal(Signal { id: 1 << 24, add: Add::One, strong: true }));
    }
}
