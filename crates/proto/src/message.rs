//! The messages of the control connection.

use super::wire::{
    Codec, DecodeError, Layout, Nested, REASON_BYTES, Reader, Writer, layout, list, some_rails, text, within,
};
use super::{
    Attempt, Callback, Found, Hello, MAX_RAILS, NewRails, Nonce, RebuildFailed, Redial, Search, SenderState,
    Sequence, Tag, Up, Verdict, Wiring,
};

/// Begins the reason in PROBED of a route for which the kernel of an end has no route.
pub const NO_ROUTE: &str = "no route from ";
/// Begins the reason in PROBED of a route that an end does not try, because it failed lately.
pub const NOT_TRIED: &str = "not tried, since ";
/// Begins the reason in an acceptor's PROBED of a route on which a receive of its shared receive
/// queue failed. Both ends try it once more, with receives in the queues of its queue pairs.
pub const SRQ_FAILED: &str = "a receive in the shared receive queue failed: ";
/// Begins the reason in PROBED of a route on which no packet gets through: the ends may wait for it.
pub const NO_ANSWER: &str = "nothing answers: ";
/// Begins the reason in PROBED of a route that failed while the port of the end was not active, or had
/// reported an event since its HELLO: the ends may wait for it.
pub const PORT_CHANGED: &str = "the port has changed meanwhile: ";

/// Defines the messages: the name and type byte of each, and what follows the type, which is a value
/// with its own layout, or fields with their codecs.
macro_rules! messages {
    ($($(#[$attr:meta])* $kind:ident = $n:literal => $name:ident
        $(($value:ident: $type:ty))?
        $({ $($(#[$doc:meta])* $field:ident: $field_type:ty = $codec:expr,)+ })?,
    )+) => {
        /// The type bytes of the messages.
        pub(super) mod kind {
            $(pub(crate) const $kind: u8 = $n;)+
        }

        /// A message of the control connection.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Message {
            $($(#[$attr])* $name $(($type))? $({ $($(#[$doc])* $field: $field_type,)+ })?,)+
        }

        impl Message {
            /// Returns the name of the message, for logs.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($kind),)+
                }
            }

            /// Writes the type and the payload of a frame. Texts are cut to their maximum length.
            pub(super) fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name $(($value))? $({ $($field),+ })? => {
                        out.u8(kind::$kind);
                        $($value.write(out);)?
                        $($($codec.write($field, out);)+)?
                    })+
                }
            }

            /// Reads the payload of a message of this type.
            fn read(kind: u8, from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(match kind {
                    $(kind::$kind => Self::$name
                        $((<$type>::read(from)?))?
                        $({ $($field: $codec.read(from)?),+ })?,)+
                    other => return Err(DecodeError::Type(other)),
                })
            }
        }
    };
}

messages! {
    /// The identity, settings and rails of the sender of this message.
    HELLO = 1 => Hello(hello: Hello),
    /// The listener has read the HELLO or REDIAL and has the secret. Only `control` sends and reads
    /// it.
    WELCOME = 2 => Welcome {
        /// The listener's challenge, random.
        challenge: Nonce = "challenge",
        /// The proof over first frame and challenge: see [`Session`](super::Session).
        proof: Tag = "proof",
    },
    /// The connector has the secret: the tag of this frame shows that. Its first frame after
    /// WELCOME. Only `control` sends and reads it.
    PROOF = 11 => Proof,
    /// The queue pairs and memory of the sender of this message.
    WIRING = 3 => Wiring(wiring: Wiring),
    /// The queue pairs of the sender are in RTS. The second READY, after the probes, commits to the
    /// connection.
    READY = 4 => Ready,
    /// The results of the sender's probes.
    PROBED = 5 => Probed {
        /// The routes of the last WIRING that work.
        mask: u8 = "mask",
        /// The routes that do not work, and why.
        reasons: Vec<(u8, String)> =
            list("reasons", MAX_RAILS, (within("route", 0..=7, "0 to 7"), text("reason", REASON_BYTES))),
        /// A connector's second READY, sent early: it uses the connection if every route of the
        /// WIRING works at both ends. False from an acceptor.
        accepts: bool = "accepts",
    },
    /// The queue pairs on which the sender searches for pairs of ports that answer.
    SEARCH = 13 => Search(search: Search),
    /// The pairs of ports that have answered the connector.
    FOUND = 14 => Found(found: Found),
    /// Rails of the connection do not work any more. A receiver sends it, and expects STATE.
    DOWN = 16 => Down {
        /// The epoch of the sender's last STATE, 0 before the first. A sender ignores DOWN from
        /// before its last STATE: the receiver repeats it after that.
        epoch: u32 = "epoch",
        /// The rails; never zero.
        rails: u8 = some_rails("rails"),
    },
    /// A sender has given up rails. It expects VERDICT.
    STATE = 17 => State(state: SenderState),
    /// The receiver's answer to STATE.
    VERDICT = 18 => Verdict(verdict: Verdict),
    /// A sender makes queue pairs of dead rails again. It expects REBUILT or REBUILD_FAILED.
    REBUILD = 19 => Rebuild(rails: NewRails),
    /// The receiver has made its queue pairs, and they are in RTS. It expects PROVED.
    REBUILT = 20 => Rebuilt(rails: NewRails),
    /// The receiver gives the attempt up.
    REBUILD_FAILED = 21 => RebuildFailed(failed: RebuildFailed),
    /// The sender's probes have arrived. It expects UP or REBUILD_FAILED.
    PROVED = 22 => Proved(attempt: Attempt),
    /// The receiver's probes have arrived, and it uses the rails.
    UP = 23 => Up(up: Up),
    /// A receiver's ports of dead rails can be used again: the sender need not wait for long.
    RETURN = 24 => Return {
        /// The rails; never zero.
        rails: u8 = some_rails("rails"),
    },
    /// A receiver closes. It has the data of all groups before `next`, acknowledged or not.
    ARRIVED = 26 => Arrived {
        /// The first group whose data it does not have.
        next: Sequence = Nested,
    },
    /// One of the messages about rails and data. They travel in no other way.
    NUMBERED = 25 => Numbered(numbered: Numbered),
    /// The sender gives the connection up.
    REFUSE = 6 => Refuse {
        /// The reason, for the operator.
        reason: String = text("reason", REASON_BYTES),
    },
    /// The sender closes the connection in good order.
    BYE = 7 => Bye,
    /// The sender's process accepts a connection that replaces this one when it breaks. Follows the
    /// first HELLO or WELCOME. Only `control` sends and reads it, as the next two.
    CALLBACK = 8 => Callback(callback: Callback),
    /// The first message of a connection that is to replace a broken one.
    REDIAL = 9 => Redial(redial: Redial),
    /// The connection replaces the broken one from here on.
    RESUME = 10 => Resume,
    /// The answer to the REDIAL of a connection that has ended.
    ENDED = 12 => Ended {
        /// The bytes whose hash CALLBACK had: see [`ended_proof`](super::ended_proof).
        proof: Tag = "proof",
    },
}

impl Message {
    /// Decodes a frame without its length. Accepts exactly what [`Self::encode`] returns for valid
    /// values, but replaces unprintable characters of texts.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(body);
        let kind = from.u8("type")?;
        let message = Self::read(kind, &mut from)?;
        from.end()?;
        Ok(message)
    }
}

layout! {
    /// A message of an established connection about its rails. Each end numbers its own, and repeats
    /// those that the peer has not acknowledged.
    pub struct Numbered {
        /// Counts the messages of the end, from 1.
        pub number: u64 = within("number", 1..=u64::MAX, "at least 1"),
        /// The number of the last message of the peer that the end has received; 0 before the first.
        pub received: u64 = "last number received",
        /// The message: DOWN, STATE, VERDICT, REBUILD, REBUILT, REBUILD_FAILED, PROVED, UP,
        /// RETURN or ARRIVED.
        pub message: Box<Message> = AboutRails,
    }
}

/// The codec of a message that is numbered.
struct AboutRails;

impl Codec<Box<Message>> for AboutRails {
    fn write(&self, message: &Box<Message>, out: &mut Writer) {
        message.write(out);
    }

    fn read(&self, from: &mut Reader<'_>) -> Result<Box<Message>, DecodeError> {
        match from.u8("type")? {
            kind @ (kind::DOWN..=kind::RETURN | kind::ARRIVED) => Ok(Box::new(Message::read(kind, from)?)),
            other => Err(DecodeError::Type(other)),
        }
    }
}
