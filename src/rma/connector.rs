//! The connecting end of a link, until it has joined the peer's group.

use std::sync::Arc;

use nccl_net_versions::HandleBuf;
use parking_lot::Mutex;

use super::link::SendLink;
use crate::connect::PendingConnects;
use crate::device::Device;
use crate::error::Result;
use crate::proto::{Command, LinkKind};
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
}

impl Connector {
    /// `rank` is below the number of ranks.
    pub(super) fn new(terms: &Terms, rank: usize, kind: LinkKind, slots: usize) -> Self {
        Self { handle: terms.handles[rank], kind, slots, link: None }
    }

    /// Goes on. Returns the link once its first message, JOIN, is posted.
    pub(super) fn poll(&mut self, terms: &Terms) -> Result<Option<SendLink>> {
        if self.link.is_none() {
            let comm = terms.pending.connect(&terms.settings(), terms.device, &mut self.handle)?;
            let Some(comm) = comm else { return Ok(None) };
            self.link = Some(SendLink::new(comm, self.slots)?);
        }
        let Some(link) = &mut self.link else { return Ok(None) };
        let join = Command::Join { rank: terms.rank as u32, link: self.kind, group: terms.group };
        match link.send_command(join, &[], None).map_err(|e| *e)? {
            true => Ok(self.link.take()),
            false => Ok(None),
        }
    }
}
