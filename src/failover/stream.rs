//! The messages of an established connection. Each has a number, and says the number of the last one
//! that its sender has received. So every message is handled once and in order on all carriers:
//! TCP connections that break and are replaced, and a mailbox that is written over a living rail.
//! What the peer has not acknowledged is repeated on a new carrier.

use std::collections::VecDeque;

use mpib_proto::{Message, Numbered};

use crate::error::{Error, Result};

/// Both directions of the messages at one end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    /// The number of the last message of this end; 0 before the first.
    last: u64,
    /// The messages of this end that the peer has not acknowledged, the last one with number `last`.
    unacknowledged: VecDeque<Message>,
    /// The number of the last message of the peer that this end has handled.
    received: u64,
}

impl Stream {
    /// Returns the frame of a new message of this end. It is kept until the peer acknowledges it.
    pub(crate) fn send(&mut self, message: Message) -> Message {
        self.last += 1;
        self.unacknowledged.push_back(message.clone());
        self.numbered(self.last, message)
    }

    /// Returns the frames of all messages that the peer has not acknowledged, in order, for a carrier
    /// that may not have brought them.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = Message> + '_ {
        self.after(0)
    }

    /// Returns the frames of the unacknowledged messages with higher numbers than `number`, in order.
    pub(crate) fn after(&self, number: u64) -> impl Iterator<Item = Message> + '_ {
        let first = self.last - self.unacknowledged.len() as u64 + 1;
        let numbers = first..=self.last;
        let all = numbers.zip(&self.unacknowledged).skip_while(move |(n, _)| *n <= number);
        all.map(|(n, message)| self.numbered(n, message.clone()))
    }

    /// Returns the number of the last message of this end; 0 before the first.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Handles a frame of the peer. Returns its message unless it has come before, or one before it
    /// is missing: that one is repeated on a carrier, and so is this one.
    ///
    /// # Errors
    /// It acknowledges what this end has not sent.
    pub(crate) fn accept(&mut self, frame: Numbered) -> Result<Option<Message>> {
        let Numbered { number, received, message } = frame;
        if received > self.last {
            let (name, last) = (message.name(), self.last);
            return Err(Error::Protocol(format!(
                "{name} acknowledges message {received}, and this end has sent {last}"
            )));
        }
        let outstanding = (self.last - received) as usize;
        while self.unacknowledged.len() > outstanding {
            self.unacknowledged.pop_front();
        }
        if number != self.received + 1 {
            return Ok(None);
        }
        self.received = number;
        Ok(Some(*message))
    }

    fn numbered(&self, number: u64, message: Message) -> Message {
        Message::Numbered(Numbered { number, received: self.received, message: Box::new(message) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(rails: u8) -> Message {
        Message::Return { rails }
    }

    fn accept(stream: &mut Stream, frame: &Message) -> Option<Message> {
        let Message::Numbered(frame) = frame.clone() else { panic!("{frame:?}") };
        stream.accept(frame).unwrap()
    }

    //= protocol.md: numbers: each message is handled once and in order
    #[test]
    fn each_message_is_handled_once_and_in_order() {
        let (mut a, mut b) = (Stream::default(), Stream::default());
        let frames: Vec<_> = (1..4).map(|i| a.send(message(i))).collect();
        assert_eq!(accept(&mut b, &frames[1]), None, "the first one is missing");
        assert_eq!(accept(&mut b, &frames[0]), Some(message(1)));
        assert_eq!(accept(&mut b, &frames[0]), None, "a repetition");
        let repeated: Vec<_> = a.unacknowledged().collect();
        let handled: Vec<_> = repeated.iter().filter_map(|frame| accept(&mut b, frame)).collect();
        assert_eq!(handled, [message(2), message(3)]);
    }

    //= protocol.md: numbers: what is not acknowledged is repeated
    #[test]
    fn what_is_not_acknowledged_is_repeated() {
        let (mut a, mut b) = (Stream::default(), Stream::default());
        let first = a.send(message(1));
        let answer = b.send(message(9));
        accept(&mut b, &first);
        assert_eq!(accept(&mut a, &answer), Some(message(9)));
        assert_eq!(a.unacknowledged().count(), 1, "the answer was sent before the message came");
        let answer = b.send(message(8));
        a.send(message(2));
        accept(&mut a, &answer);
        let left: Vec<_> = a.unacknowledged().collect();
        assert_eq!(accept(&mut b, &left[0]), Some(message(2)));
        assert_eq!((left.len(), a.after(1).count(), a.after(2).count(), a.last()), (1, 1, 0, 2));
    }

    //= protocol.md: numbers: an acknowledgement of what was not sent is an error
    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_an_error() {
        let mut stream = Stream::default();
        stream.send(message(1));
        let frame = |received| Numbered { number: 1, received, message: Box::new(message(1)) };
        let error = stream.accept(frame(2)).unwrap_err().to_string();
        assert!(error.contains("RETURN acknowledges message 2, and this end has sent 1"), "{error}");
        assert_eq!(stream.accept(frame(1)).unwrap(), Some(message(1)));
    }
}
