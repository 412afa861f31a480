//! The two ends of a connection.

/// Which end of a connection this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The end that called `connect`.
    Sender,
    /// The end that called `accept`.
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
