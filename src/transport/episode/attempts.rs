//! Attempts to bring dead rails back.
//!
//! The sender begins an attempt, one at a time. The ends make queue pairs: REBUILD, REBUILT. Then
//! each probes its way to the other: PROVED, UP. The receiver uses the rails from UP on, the sender
//! once it has received UP. An episode at either end ends the attempt.

use crate::error::{Error, Fast};
use crate::proto::{Attempt, NewRails};

/// The attempts of a sender.
#[derive(Debug, Default)]
pub(crate) struct SenderAttempts {
    /// The number of the last attempt; 0 before the first.
    last: u32,
    current: Option<(Attempt, u8, SenderStep)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SenderStep {
    /// This end makes its queue pairs.
    Making,
    /// REBUILD is sent.
    Requested,
    /// This end probes.
    Proving,
    /// PROVED is sent.
    Proved,
}

impl SenderAttempts {
    /// Begins an attempt for these rails. Another one must not be under way.
    pub(crate) fn begin(&mut self, rails: u8, epoch: u32) {
        self.last = self.last.wrapping_add(1).max(1);
        let attempt = Attempt { number: self.last, epoch };
        self.current = Some((attempt, rails, SenderStep::Making));
    }

    /// Returns whether no attempt is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Returns the rails of the present attempt.
    pub(crate) fn rails(&self) -> u8 {
        self.current.map_or(0, |(_, rails, _)| rails)
    }

    /// Handles the end of this end's own work. Returns the attempt, and whether PROVED is the next
    /// message: otherwise it is REBUILD.
    pub(crate) fn worked(&mut self) -> Option<(Attempt, bool)> {
        let (attempt, _, step) = self.current.as_mut()?;
        match step {
            SenderStep::Making => *step = SenderStep::Requested,
            SenderStep::Proving => *step = SenderStep::Proved,
            SenderStep::Requested | SenderStep::Proved => return None,
        }
        Some((*attempt, *step == SenderStep::Proved))
    }

    /// Handles REBUILT. Returns whether this end must probe now.
    pub(crate) fn on_rebuilt(&mut self, answer: &NewRails) -> bool {
        let Some((attempt, rails, step)) = &mut self.current else { return false };
        let fits = (*attempt, *rails, *step) == (answer.attempt, answer.rails, SenderStep::Requested);
        if fits {
            *step = SenderStep::Proving;
        }
        fits
    }

    /// Returns whether REBUILD_FAILED with this attempt ends the present one.
    pub(crate) fn is_current(&self, attempt: Attempt) -> bool {
        self.current.is_some_and(|(current, ..)| current == attempt)
    }

    /// Handles UP. Returns the rails that are back.
    pub(crate) fn on_up(&mut self, attempt: Attempt) -> Option<u8> {
        let (_, rails, _) =
            self.current.take_if(|(current, _, step)| (*current, *step) == (attempt, SenderStep::Proved))?;
        Some(rails)
    }

    /// Ends the present attempt. Later messages about it are ignored.
    pub(crate) fn abort(&mut self) {
        self.current = None;
    }
}

/// The attempts of a receiver.
#[derive(Debug, Default)]
pub(crate) struct ReceiverAttempts {
    /// The number of the last REBUILD; 0 before the first.
    last: u32,
    current: Option<(Attempt, u8, ReceiverStep)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiverStep {
    /// This end makes its queue pairs.
    Making,
    /// REBUILT is sent.
    Answered,
    /// This end probes.
    Proving,
}

impl ReceiverAttempts {
    /// Handles REBUILD, in this end's present epoch and with these dead rails. Returns whether this
    /// end must make queue pairs now; those of an earlier attempt are void.
    ///
    /// # Errors
    /// The rails are not dead.
    pub(crate) fn on_rebuild(&mut self, request: &NewRails, epoch: u32, dead: u8) -> Fast<bool> {
        if request.attempt.number <= self.last || request.attempt.epoch != epoch {
            return Ok(false);
        }
        if request.rails & !dead != 0 {
            let rails = request.rails;
            let what = format!("REBUILD of rails {rails:#04b}, of which {dead:#04b} are given up");
            return Err(Error::Protocol(what).into());
        }
        self.last = request.attempt.number;
        self.current = Some((request.attempt, request.rails, ReceiverStep::Making));
        Ok(true)
    }

    /// Handles PROVED. Returns whether this end must probe now.
    pub(crate) fn on_proved(&mut self, attempt: Attempt) -> bool {
        let Some((current, _, step)) = &mut self.current else { return false };
        let fits = (*current, *step) == (attempt, ReceiverStep::Answered);
        if fits {
            *step = ReceiverStep::Proving;
        }
        fits
    }

    /// Handles the end of this end's own work. Returns the attempt, its rails, and whether UP is the
    /// next message: otherwise it is REBUILT.
    pub(crate) fn worked(&mut self) -> Option<(Attempt, u8, bool)> {
        let (attempt, rails, step) = self.current?;
        match step {
            ReceiverStep::Making => self.current = Some((attempt, rails, ReceiverStep::Answered)),
            ReceiverStep::Proving => self.current = None,
            ReceiverStep::Answered => return None,
        }
        Some((attempt, rails, step == ReceiverStep::Proving))
    }

    /// Ends the present attempt, and returns it with its rails. Later messages about it are ignored.
    pub(crate) fn abort(&mut self) -> Option<(Attempt, u8)> {
        self.current.take().map(|(attempt, rails, _)| (attempt, rails))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::episode::tests::port;

    fn new_rails(number: u32, epoch: u32, rails: u8) -> NewRails {
        NewRails {
            attempt: Attempt { number, epoch },
            rails,
            port: port(),
            routes: Vec::new(),
            rkeys: Vec::new(),
        }
    }

    //= protocol.md: failback: a message of another attempt or epoch has no effect
    #[test]
    fn a_sender_goes_through_the_steps_in_order_and_ignores_other_messages() {
        let mut attempts = SenderAttempts::default();
        attempts.begin(0b10, 3);
        let (first, answer) = (Attempt { number: 1, epoch: 3 }, new_rails(1, 3, 0b10));
        assert!(!attempts.on_rebuilt(&answer) && attempts.on_up(first).is_none(), "not requested yet");
        assert_eq!(attempts.worked(), Some((first, false)));
        assert_eq!(attempts.worked(), None);
        for other in [new_rails(2, 3, 0b10), new_rails(1, 2, 0b10), new_rails(1, 3, 0b11)] {
            assert!(!attempts.on_rebuilt(&other), "{other:?}");
        }
        assert!(attempts.on_rebuilt(&answer) && !attempts.on_rebuilt(&answer));
        assert_eq!(attempts.on_up(first), None, "not proved yet");
        assert_eq!(attempts.worked(), Some((first, true)));
        assert_eq!(attempts.on_up(Attempt { number: 1, epoch: 2 }), None);
        assert_eq!((attempts.on_up(first), attempts.on_up(first)), (Some(0b10), None));
        attempts.begin(1, 4);
        let second = Attempt { number: 2, epoch: 4 };
        assert!(!attempts.is_current(first) && attempts.is_current(second));
        attempts.begin(1, 4);
        attempts.abort();
        assert_eq!((attempts.worked(), attempts.rails()), (None, 0));
    }

    //= protocol.md: failback: a message of another attempt or epoch has no effect
    #[test]
    fn a_receiver_begins_each_attempt_once_and_only_in_its_epoch() {
        let mut attempts = ReceiverAttempts::default();
        let begin = |attempts: &mut ReceiverAttempts, number, epoch| {
            attempts.on_rebuild(&new_rails(number, epoch, 1), 3, 1)
        };
        assert!(!begin(&mut attempts, 1, 2).unwrap() && begin(&mut attempts, 1, 3).unwrap());
        assert!(!begin(&mut attempts, 1, 3).unwrap(), "a repetition");
        let first = Attempt { number: 1, epoch: 3 };
        assert!(!attempts.on_proved(first), "not answered yet");
        assert_eq!(attempts.worked(), Some((first, 1, false)));
        assert_eq!(attempts.worked(), None);
        assert!(begin(&mut attempts, 2, 3).unwrap() && !attempts.on_proved(first), "a new one");
        let second = Attempt { number: 2, epoch: 3 };
        assert_eq!(attempts.worked(), Some((second, 1, false)));
        assert!(attempts.on_proved(second) && !attempts.on_proved(second));
        assert_eq!((attempts.worked(), attempts.worked()), (Some((second, 1, true)), None));
        assert!(!begin(&mut attempts, 2, 3).unwrap() && begin(&mut attempts, 3, 3).unwrap());
        assert_eq!((attempts.abort(), attempts.worked()), (Some((Attempt { number: 3, epoch: 3 }, 1)), None));
        let living = attempts.on_rebuild(&new_rails(4, 3, 0b11), 3, 1).unwrap_err();
        assert!(living.to_string().contains("of which 0b01 are given up"), "{living}");
    }
}
