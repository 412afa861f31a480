//! Which end of a connection this is.

/// What an end of a connection does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It connected.
    Sender,
    /// It accepted.
    Receiver,
}

impl Role {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Sender => "sending to",
            Self::Receiver => "receiving from",
        }
    }
}
