//! The messages of the control connection.

use super::episode::some_rails;
use super::kind;
use super::wire::{DecodeError, REASON_BYTES, Reader, Writer};
use super::{
    Attempt, Callback, Hello, MAX_RAILS, NewRails, Nonce, RebuildFailed, Redial, SenderState, Tag, Verdict,
    Wiring,
};

/// Begins the reason in PROBED of a route for which the kernel of an end has no route.
pub(crate) const NO_ROUTE: &str = "no route from ";
/// Begins the reason in PROBED of a route that an end does not try, because it failed lately.
pub(crate) const NOT_TRIED: &str = "not tried, since ";
/// Begins the reason in an acceptor's PROBED of a route on which a receive of its shared receive
/// queue failed. Both ends try it once more, with receives in the queues of its queue pairs.
pub(crate) const SRQ_FAILED: &str = "a receive in the shared receive queue failed: ";
/// Begins the reason in PROBED of a route on which no packet gets through: the ends may wait for it.
pub(crate) const NO_ANSWER: &str = "nothing answers: ";
/// Begins the reason in PROBED of a route that failed while the port of the end was not active, or had
/// reported an event since its HELLO: the ends may wait for it.
pub(crate) const PORT_CHANGED: &str = "the port has changed meanwhile: ";

/// A message of an established connection about its rails. Each end numbers its own, and repeats
/// those that the peer has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Numbered {
    /// Counts the messages of the end, from 1.
    pub number: u64,
    /// The number of the last message of the peer that the end has received; 0 before the first.
    pub received: u64,
    /// The message: DOWN, STATE, VERDICT, REBUILD, REBUILT, REBUILD_FAILED, PROVED, UP or RETURN.
    pub message: Box<Message>,
}

/// A message of the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// The identity, settings and rails of the sender of this message.
    Hello(Hello),
    /// The listener has read the HELLO or REDIAL and has the secret. Only `control` sends and reads
    /// it.
    Welcome {
        /// The listener's challenge, random.
        challenge: Nonce,
        /// The proof over first frame and challenge: see [`Session`](super::Session).
        proof: Tag,
    },
    /// The connector has the secret: the tag of this frame shows that. Its first frame after
    /// WELCOME. Only `control` sends and reads it.
    Proof,
    /// The queue pairs and memory of the sender of this message.
    Wiring(Wiring),
    /// The queue pairs of the sender are in RTS. The second READY, after the probes, commits to the
    /// connection.
    Ready,
    /// The results of the sender's probes.
    Probed {
        /// The routes of the last WIRING that work.
        mask: u8,
        /// The routes that do not work, and why.
        reasons: Vec<(u8, String)>,
        /// A connector's second READY, sent early: it uses the connection if every route of the
        /// WIRING works at both ends. False from an acceptor.
        accepts: bool,
    },
    /// Rails of the connection do not work any more. A receiver sends it, and expects STATE.
    Down {
        /// The epoch of the sender's last STATE, 0 before the first. A sender ignores DOWN from
        /// before its last STATE: the receiver repeats it after that.
        epoch: u32,
        /// The rails; never zero.
        rails: u8,
    },
    /// A sender has given up rails. It expects VERDICT.
    State(SenderState),
    /// The receiver's answer to STATE.
    Verdict(Verdict),
    /// A sender makes queue pairs of dead rails anew. It expects REBUILT or REBUILD_FAILED.
    Rebuild(NewRails),
    /// The receiver has made its queue pairs, and they are in RTS. It expects PROVED.
    Rebuilt(NewRails),
    /// The receiver gives the attempt up.
    RebuildFailed(RebuildFailed),
    /// The sender's probes have arrived. It expects UP or REBUILD_FAILED.
    Proved(Attempt),
    /// The receiver's probes have arrived, and it uses the rails.
    Up(Attempt),
    /// A receiver's ports of dead rails can be used again: the sender need not wait for long.
    Return {
        /// The rails; never zero.
        rails: u8,
    },
    /// One of the messages from DOWN to RETURN. They travel in no other way.
    Numbered(Numbered),
    /// The sender gives the connection up.
    Refuse {
        /// The reason, for the operator.
        reason: String,
    },
    /// The sender closes the connection in good order.
    Bye,
    /// The sender's process accepts a connection that replaces this one when it breaks. Follows the
    /// first HELLO or WELCOME. Only `control` sends and reads it, as the next two.
    Callback(Callback),
    /// The first message of a connection that is to replace a broken one.
    Redial(Redial),
    /// The connection replaces the broken one from here on.
    Resume,
    /// The answer to the REDIAL of a connection that has ended.
    Ended {
        /// The bytes whose hash CALLBACK had: see [`ended_proof`](super::ended_proof).
        proof: Tag,
    },
}

impl Message {
    /// Returns the name of the message, for logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "HELLO",
            Self::Welcome { .. } => "WELCOME",
            Self::Wiring(_) => "WIRING",
            Self::Ready => "READY",
            Self::Probed { .. } => "PROBED",
            Self::Down { .. } => "DOWN",
            Self::State(_) => "STATE",
            Self::Verdict(_) => "VERDICT",
            Self::Rebuild(_) => "REBUILD",
            Self::Rebuilt(_) => "REBUILT",
            Self::RebuildFailed(_) => "REBUILD_FAILED",
            Self::Proved(_) => "PROVED",
            Self::Up(_) => "UP",
            Self::Return { .. } => "RETURN",
            Self::Numbered(_) => "NUMBERED",
            Self::Refuse { .. } => "REFUSE",
            Self::Bye => "BYE",
            Self::Callback(_) => "CALLBACK",
            Self::Redial(_) => "REDIAL",
            Self::Resume => "RESUME",
            Self::Proof => "PROOF",
            Self::Ended { .. } => "ENDED",
        }
    }

    /// Writes the type and the payload of a frame. Texts are cut to their maximum length.
    ///
    /// # Errors
    /// A list is too long.
    pub(super) fn write(&self, out: &mut Writer) -> Result<(), DecodeError> {
        match self {
            Self::Hello(hello) => hello.write(out.u8(kind::HELLO))?,
            Self::Welcome { challenge, proof } => {
                out.u8(kind::WELCOME).bytes(challenge).bytes(proof);
            }
            Self::Wiring(wiring) => wiring.write(out.u8(kind::WIRING))?,
            Self::Ready => {
                out.u8(kind::READY);
            }
            Self::Probed { mask, reasons, accepts } => {
                out.u8(kind::PROBED).u8(*mask).list(
                    reasons,
                    MAX_RAILS,
                    "reasons",
                    |out, (rail, reason)| {
                        out.u8(*rail).text(reason, REASON_BYTES);
                        Ok(())
                    },
                )?;
                out.u8((*accepts).into());
            }
            Self::Down { epoch, rails } => {
                out.u8(kind::DOWN).u32(*epoch).u8(*rails);
            }
            Self::State(state) => state.write(out.u8(kind::STATE))?,
            Self::Verdict(verdict) => verdict.write(out.u8(kind::VERDICT))?,
            Self::Rebuild(rails) => rails.write(out.u8(kind::REBUILD))?,
            Self::Rebuilt(rails) => rails.write(out.u8(kind::REBUILT))?,
            Self::RebuildFailed(failed) => failed.write(out.u8(kind::REBUILD_FAILED)),
            Self::Proved(attempt) => attempt.write(out.u8(kind::PROVED)),
            Self::Up(attempt) => attempt.write(out.u8(kind::UP)),
            Self::Return { rails } => {
                out.u8(kind::RETURN).u8(*rails);
            }
            Self::Numbered(Numbered { number, received, message }) => {
                out.u8(kind::NUMBERED).u64(*number).u64(*received);
                message.write(out)?;
            }
            Self::Refuse { reason } => {
                out.u8(kind::REFUSE).text(reason, REASON_BYTES);
            }
            Self::Bye => {
                out.u8(kind::BYE);
            }
            Self::Callback(callback) => callback.write(out.u8(kind::CALLBACK))?,
            Self::Redial(redial) => redial.write(out.u8(kind::REDIAL)),
            Self::Resume => {
                out.u8(kind::RESUME);
            }
            Self::Proof => {
                out.u8(kind::PROOF);
            }
            Self::Ended { proof } => {
                out.u8(kind::ENDED).bytes(proof);
            }
        }
        Ok(())
    }

    /// Decodes a frame without its length. Accepts exactly what [`Self::encode`] returns for valid
    /// values, but replaces unprintable characters of texts.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(body);
        let message = match from.u8("type")? {
            kind::NUMBERED => Self::Numbered(Numbered::read(&mut from)?),
            kind => Self::read(kind, &mut from)?,
        };
        from.end()?;
        Ok(message)
    }

    /// Reads the payload of a message other than NUMBERED.
    fn read(kind: u8, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            kind::HELLO => Self::Hello(Hello::read(from)?),
            kind::WELCOME => {
                Self::Welcome { challenge: from.array("challenge")?, proof: from.array("proof")? }
            }
            kind::WIRING => Self::Wiring(Wiring::read(from)?),
            kind::READY => Self::Ready,
            kind::PROBED => Self::Probed {
                mask: from.u8("mask")?,
                reasons: from.list(MAX_RAILS, "reasons", |from| {
                    Ok((from.below(MAX_RAILS as u8, "route", "0 to 7")?, from.text(REASON_BYTES, "reason")?))
                })?,
                accepts: from.flag("accepts")?,
            },
            kind::DOWN => Self::Down { epoch: from.u32("epoch")?, rails: some_rails(from, "rails")? },
            kind::STATE => Self::State(SenderState::read(from)?),
            kind::VERDICT => Self::Verdict(Verdict::read(from)?),
            kind::REBUILD => Self::Rebuild(NewRails::read(from)?),
            kind::REBUILT => Self::Rebuilt(NewRails::read(from)?),
            kind::REBUILD_FAILED => Self::RebuildFailed(RebuildFailed::read(from)?),
            kind::PROVED => Self::Proved(Attempt::read(from)?),
            kind::UP => Self::Up(Attempt::read(from)?),
            kind::RETURN => Self::Return { rails: some_rails(from, "rails")? },
            kind::REFUSE => Self::Refuse { reason: from.text(REASON_BYTES, "reason")? },
            kind::BYE => Self::Bye,
            kind::CALLBACK => Self::Callback(Callback::read(from)?),
            kind::REDIAL => Self::Redial(Redial::read(from)?),
            kind::RESUME => Self::Resume,
            kind::PROOF => Self::Proof,
            kind::ENDED => Self::Ended { proof: from.array("proof")? },
            other => return Err(DecodeError::Type(other)),
        })
    }
}

impl Numbered {
    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = from.u64("number")?;
        if number == 0 {
            return Err(DecodeError::Range { what: "number", found: 0, expected: "at least 1" });
        }
        let received = from.u64("last number received")?;
        match from.u8("type")? {
            kind @ kind::DOWN..=kind::RETURN => {
                Ok(Self { number, received, message: Box::new(Message::read(kind, from)?) })
            }
            other => Err(DecodeError::Type(other)),
        }
    }
}
