//! The two ends of a connection, and a value for each of them.

use std::fmt;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that connects and then sends.
    Connector = 0,
    /// The end that accepts and then receives.
    Acceptor = 1,
}

impl Role {
    /// Both roles.
    pub const ALL: [Self; 2] = [Self::Connector, Self::Acceptor];

    /// Returns the role of the other end.
    pub const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connector => "connector",
            Self::Acceptor => "acceptor",
        })
    }
}

/// A value for each end of a connection. Both ends hold the same pair; each finds its own value by
/// its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends<T> {
    /// The connector's value.
    pub connector: T,
    /// The acceptor's value.
    pub acceptor: T,
}

impl<T> Ends<T> {
    /// Orders the values of the end with `role` and of its peer.
    pub fn new(role: Role, local: T, remote: T) -> Self {
        match role {
            Role::Connector => Self { connector: local, acceptor: remote },
            Role::Acceptor => Self { connector: remote, acceptor: local },
        }
    }

    /// Returns the value of the end with `role`.
    pub const fn local(&self, role: Role) -> &T {
        match role {
            Role::Connector => &self.connector,
            Role::Acceptor => &self.acceptor,
        }
    }

    /// Returns the value of the peer of the end with `role`.
    pub const fn remote(&self, role: Role) -> &T {
        self.local(role.other())
    }

    /// Returns references to both values.
    pub const fn as_ref(&self) -> Ends<&T> {
        Ends { connector: &self.connector, acceptor: &self.acceptor }
    }

    /// Applies `f` to both values.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> Ends<U> {
        Ends { connector: f(self.connector), acceptor: f(self.acceptor) }
    }
}
