//! Dialling a connection again: where an end can be reached, and the first message of a new TCP
//! connection that replaces a broken one.

use super::wire::{DecodeError, Reader, Writer};
use super::{Handle, Nonce, Role, STATE_OFFSET};

/// Where the process of an end accepts connections that replace a broken one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callback {
    /// The addresses, the port and the nonce of the process's listener for re-dials.
    pub handle: Handle,
    /// The secret of this connection, which a REDIAL to that listener must contain.
    pub key: Nonce,
}

/// The first message of a connection to a listener for re-dials.
#[derive(Clone, PartialEq, Eq)]
pub struct Redial {
    /// The listener's nonce.
    pub nonce: Nonce,
    /// The token of the connection's first HELLO, by which the connection is found.
    pub token: Nonce,
    /// The key of the listener's CALLBACK.
    pub key: Nonce,
    /// The end that dials. The connector replaces the broken connection by this one. The acceptor
    /// requests that the connector does so.
    pub from: Role,
}

/// The key is a secret.
impl std::fmt::Debug for Redial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redial").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Callback {
    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.handle.encode()[..STATE_OFFSET]).bytes(&self.key);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut handle = [0; super::HANDLE_BYTES];
        handle[..STATE_OFFSET].copy_from_slice(&from.array::<STATE_OFFSET>("handle")?);
        let handle = Handle::decode(&handle).map_err(DecodeError::Handle)?;
        Ok(Self { handle, key: from.array("key")? })
    }
}

impl Redial {
    /// Bytes of the payload.
    pub(super) const BYTES: usize = 3 * size_of::<Nonce>() + 1;

    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.nonce).bytes(&self.token).bytes(&self.key);
        out.u8(match self.from {
            Role::Connector => 0,
            Role::Acceptor => 1,
        });
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            nonce: from.array("nonce")?,
            token: from.array("token")?,
            key: from.array("key")?,
            from: if from.flag("end")? { Role::Acceptor } else { Role::Connector },
        })
    }
}
