//! The connecting end of a link, until it has joined the peer's group.

use std::sync::Arc;

use mpib_proto::{Command, LinkKind};
use nccl_net_versions::HandleBuf;
use parking_lot::Mutex;

use super::link::SendLink;
use crate::connect::PendingConnects;
use crate::device::Device;
use crate::error::Result;
use crate::transport::Settings;

/// What all connections of a rank are made of.
#[derive(Debug)]
pub(super) struct Terms {
    /// Those of the next connection.
    pub(super) settings: Mutex<Arc<Settings>>,
    pub(super) device: &'static Device,
    pub(super) pending: PendingConnects,
    /// The handles of all ranks.
    pub(super) handles: Vec<HandleBuf>,
    /// The rank of this end.
    pub(super) rank: usize,
    /// The number of the group.
    pub(super) group: u64,
}

impl Terms {
    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock())
    }

    /// Uses a traffic class for the connections from now on.
    pub(super) fn set_traffic_class(&self, class: i32) {
        Arc::make_mut(&mut *self.settings.lock()).comm_traffic_class = Some(class);
    }
}

/// A link that is being made.
#[derive(Debug)]
pub(super) struct Connector {
    handle: HandleBuf,
    kind: LinkKind,
    /// How many commands may be under way.
    slots: usize,
    link: Option<SendLink>,
    /// JOIN is posted.
    has_joined: bool,
}

impl Connector {
    /// `rank` is below the number of ranks.
    pub(super) fn new(terms: &Terms, rank: usize, kind: LinkKind, slots: usize) -> Self {
        Self { handle: terms.handles[rank], kind, slots, link: None, has_joined: false }
    }

    /// Goes on, until the first message, JOIN, is posted.
    pub(super) fn poll(&mut self, terms: &Terms) -> Result<()> {
        if self.link.is_none() {
            let comm = terms.pending.connect(&terms.settings(), terms.device, &mut self.handle)?;
            self.link = comm.map(|comm| SendLink::new(comm, self.slots)).transpose()?;
        }
        if let Some(link) = self.link.as_mut().filter(|_| !self.has_joined) {
            let join = Command::Join { rank: terms.rank as u32, link: self.kind, group: terms.group };
            self.has_joined = link.send_command(join, &[], None).map_err(|e| *e)?;
        }
        Ok(())
    }

    /// Returns whether [`take`](Self::take) has the link.
    pub(super) fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// Returns the link once it has joined.
    pub(super) fn take(&mut self) -> Option<SendLink> {
        self.link.take_if(|_| self.has_joined)
    }
}
