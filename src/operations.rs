//! Joins NCCL's operations with the messages that connections send for them, in the statistics page.
//!
//! NCCL passes the numbers of events back: each has the place of its operation in it, and that of a
//! message the time of its start. So nothing is kept here, and a number that means nothing does no harm.

use std::cell::Cell;
use std::time::Duration;

use nccl_net_mpib_agent_iface::stats::{NewOperation, OperationPlace, Operations};
use nccl_net_versions::{Event, Operation};

use crate::clock;

thread_local! {
    static MESSAGE: Cell<Option<Message>> = const { Cell::new(None) };
}

/// A message that a connection reports to NCCL, which passes the report on to [`begin`] in the same
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// Bytes to be sent on the port with this number of its record, from 1.
    Sent { port: u32, bytes: u64 },
    /// A receive.
    Received,
}

impl Message {
    /// Calls NCCL to report it.
    pub(crate) fn reported<T>(self, report: impl FnOnce() -> T) -> T {
        MESSAGE.set(Some(self));
        let reported = report();
        MESSAGE.set(None);
        reported
    }
}

/// Begins an event of a communicator. Returns its number; 0 if nothing is recorded of it.
pub(crate) fn begin(operations: Operations, communicator: usize, event: &Event<'_>) -> usize {
    let begun = match *event {
        // Older releases report no operation without it.
        Event::Group => Some(Number::Group),
        Event::Operation(operation) => operation_begins(operations, communicator, &operation),
        Event::Part { operation, pid } if pid == operations.pid() => match Number::of(operation) {
            Some(Number::Operation(place)) => operations.part_begins(place).then_some(Number::Part(place)),
            _ => None,
        },
        Event::Step { part } => match Number::of(part) {
            Some(Number::Part(place)) => Some(Number::Step(place)),
            _ => None,
        },
        Event::Message { step } => match (Number::of(step), MESSAGE.get()) {
            (Some(Number::Step(place)), Some(message)) => message_begins(operations, place, message),
            _ => None,
        },
        _ => None,
    };
    begun.map_or(0, Number::word)
}

fn operation_begins(operations: Operations, communicator: usize, new: &Operation<'_>) -> Option<Number> {
    if let Some((id, name)) = new.communicator {
        operations.identify(communicator, id, new.rank, name);
    }
    let place = operations.begin(
        communicator,
        &NewOperation {
            sequence: new.sequence,
            name: new.name,
            algorithm: new.algorithm,
            protocol: new.protocol,
            bytes: new.bytes,
            channels: new.channels,
        },
    );
    place.map(Number::Operation)
}

fn message_begins(operations: Operations, place: OperationPlace, message: Message) -> Option<Number> {
    match message {
        Message::Sent { port, bytes } => {
            let rail = operations.sends(place, port, bytes)?;
            Some(Number::Sent { place, rail, at: now() })
        }
        Message::Received => Some(Number::Received(place)),
    }
}

/// Ends an event.
pub(crate) fn end(operations: Operations, event: usize) {
    match Number::of(event) {
        Some(Number::Part(place)) => operations.part_ends(place),
        Some(Number::Sent { place, rail, at }) => {
            operations.sent(place, rail, between(at, now()));
        }
        Some(Number::Received(place)) => operations.received(place),
        Some(Number::Group | Number::Operation(_) | Number::Step(_)) | None => {}
    }
}

/// The time in a number: µs, without the bits above 33. It is unique for two hours.
const TIME: u64 = (1 << 33) - 1;

fn now() -> u64 {
    (clock::now() / 1000) & TIME
}

/// Returns the time between two times in numbers. A number from NCCL may have any time: the later half of
/// the range is none.
fn between(begun: u64, ended: u64) -> Duration {
    let micros = ended.wrapping_sub(begun) & TIME;
    Duration::from_micros(if micros > TIME / 2 { 0 } else { micros })
}

/// What the number of an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Group,
    Operation(OperationPlace),
    Part(OperationPlace),
    Step(OperationPlace),
    /// `at`: µs, see [`TIME`].
    Sent {
        place: OperationPlace,
        rail: usize,
        at: u64,
    },
    Received(OperationPlace),
}

/// Widths in bits, from the lowest on.
const KIND: u32 = 3;
const COMMUNICATOR: u32 = 4;
const INDEX: u32 = 7;
const USE: u32 = 14;
const RAIL: u32 = 3;

impl Number {
    /// Returns the number that NCCL keeps. It is not 0.
    fn word(self) -> usize {
        let (kind, place, rail, at) = match self {
            Self::Group => (1, None, 0, 0),
            Self::Operation(place) => (2, Some(place), 0, 0),
            Self::Part(place) => (3, Some(place), 0, 0),
            Self::Step(place) => (4, Some(place), 0, 0),
            Self::Sent { place, rail, at } => (5, Some(place), rail, at),
            Self::Received(place) => (6, Some(place), 0, 0),
        };
        let (communicator, index, generation) =
            place.map_or((0, 0, 0), |place| (place.communicator, place.index, place.generation));
        let fields = [
            (at, 0),
            (rail as u64, RAIL),
            (generation, USE),
            (index as u64, INDEX),
            (communicator as u64, COMMUNICATOR),
            (kind, KIND),
        ];
        fields.into_iter().fold(0, |word: u64, (field, width)| word << width | field) as usize
    }

    /// Reads a number; `None` if it says nothing.
    fn of(word: usize) -> Option<Self> {
        let mut rest = word as u64;
        let mut take = |width: u32| {
            let field = rest & ((1 << width) - 1);
            rest >>= width;
            field
        };
        let kind = take(KIND);
        let [communicator, index] = [COMMUNICATOR, INDEX].map(|width| take(width) as usize);
        let generation = take(USE);
        let rail = take(RAIL) as usize;
        let place = OperationPlace { communicator, index, generation };
        Some(match kind {
            1 => Self::Group,
            2 => Self::Operation(place),
            3 => Self::Part(place),
            4 => Self::Step(place),
            5 => Self::Sent { place, rail, at: rest },
            6 => Self::Received(place),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_to_come_is_no_duration() {
        let micros = |begun, ended| between(begun, ended).as_micros();
        assert_eq!([micros(10, 17), micros(TIME - 2, 4), micros(17, 10)], [7, 7, 0]);
    }

    #[test]
    fn a_number_says_what_it_was_made_of() {
        use nccl_net_mpib_agent_iface::stats::{STATS_COMMUNICATORS, STATS_OPERATIONS, STATS_RAILS};
        let places = [
            OperationPlace { communicator: 0, index: 0, generation: 1 },
            OperationPlace {
                communicator: STATS_COMMUNICATORS - 1,
                index: STATS_OPERATIONS - 1,
                generation: OperationPlace::USE,
            },
        ];
        let rail = STATS_RAILS - 1;
        for place in places {
            for number in [
                Number::Group,
                Number::Operation(place),
                Number::Part(place),
                Number::Step(place),
                Number::Sent { place, rail, at: TIME },
                Number::Sent { place, rail: 0, at: 0 },
                Number::Received(place),
            ] {
                assert_ne!(number.word(), 0);
                assert_eq!(Number::of(number.word()), Some(number));
            }
        }
        assert_eq!(Number::of(0), None);
        assert_eq!(Number::of(7), None);
    }
}
