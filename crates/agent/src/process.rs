//! One registered process: its flows, and the memory file that shows it their shares.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use mpib_host_view::Owner;
use nccl_net_mpib_agent_iface::agent::memory::MemoryWriter;
use nccl_net_mpib_agent_iface::agent::{ENTRIES, HintsWriter, PortScale, Status};

use crate::snapshot::FlowView;

/// SOUT addresses of a flow: this host's, and the other's.
pub(crate) type Pair = (Ipv4Addr, Ipv4Addr);

/// Who a process is, by the kernel's word (`SO_PEERCRED`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Process id, as seen from the agent's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Who is charged for what it has.
    pub owner: Owner,
}

/// Where the slots of a process are.
pub(crate) trait Slots {
    fn assign(&mut self, slot: u8, pair: Pair, share: u16);
    fn set(&mut self, slot: u8, share: u16);
    fn free(&mut self, slot: u8);
}

impl Slots for MemoryWriter {
    fn assign(&mut self, slot: u8, (src, dst): Pair, share: u16) {
        Self::assign(self, slot, src, dst, share);
    }
    fn set(&mut self, slot: u8, share: u16) {
        Self::set(self, slot, share);
    }
    fn free(&mut self, slot: u8) {
        Self::free(self, slot);
    }
}

impl Slots for HintsWriter {
    fn assign(&mut self, slot: u8, (src, dst): Pair, share: u16) {
        Self::assign(self, slot, src, dst);
        Self::set(self, slot, share);
    }
    fn set(&mut self, slot: u8, share: u16) {
        Self::set(self, slot, share);
    }
    fn free(&mut self, slot: u8) {
        Self::free(self, slot);
    }
}

/// A pair of hosts, with the connections between them.
#[derive(Debug, Clone, Copy)]
struct Flow {
    slot: u8,
    connections: usize,
    share: u16,
}

/// The flows of one memory file, or of the hint file.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    flows: BTreeMap<Pair, Flow>,
}

impl Flows {
    /// Adds a connection. A new flow gets a free slot with the share that `share` returns.
    pub(crate) fn add(
        &mut self,
        slots: &mut dyn Slots,
        pair: Pair,
        share: impl FnOnce() -> u16,
    ) -> Option<u8> {
        if let Some(flow) = self.flows.get_mut(&pair) {
            flow.connections += 1;
            return Some(flow.slot);
        }
        let mut used = [false; ENTRIES];
        self.flows.values().for_each(|flow| used[usize::from(flow.slot)] = true);
        let slot = u8::try_from(used.iter().position(|used| !used)?).ok()?;
        let share = share();
        slots.assign(slot, pair, share);
        self.flows.insert(pair, Flow { slot, connections: 1, share });
        Some(slot)
    }

    /// Removes a connection. The slot becomes free with the last one.
    pub(crate) fn remove(&mut self, slots: &mut dyn Slots, pair: Pair) {
        let Some(flow) = self.flows.get_mut(&pair) else { return };
        flow.connections -= 1;
        if flow.connections == 0 {
            slots.free(flow.slot);
            self.flows.remove(&pair);
        }
    }

    /// Sets the share of every flow to what `share` returns. Returns the flows that have changed.
    pub(crate) fn set(
        &mut self,
        slots: &mut dyn Slots,
        share: impl Fn(Pair, u16) -> u16,
    ) -> Vec<(Pair, u16)> {
        let mut changed = Vec::new();
        for (pair, flow) in &mut self.flows {
            let new = share(*pair, flow.share);
            if new != flow.share {
                slots.set(flow.slot, new);
                flow.share = new;
                changed.push((*pair, new));
            }
        }
        changed
    }

    /// Returns the number of flows.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns so many flows for display.
    pub(crate) fn view(&self, most: usize) -> Vec<FlowView> {
        let view = |((source, destination), share, connections)| FlowView {
            source,
            destination,
            share,
            connections,
        };
        self.all().take(most).map(view).collect()
    }

    /// Returns each flow with its share and its number of connections.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Pair, u16, usize)> {
        self.flows.iter().map(|(pair, flow)| (*pair, flow.share, flow.connections))
    }
}

/// One process, which is one connection of the socket.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) peer: Peer,
    /// The pair of each registered connection, and whether its slot is in the hint file.
    connections: HashMap<u32, (Pair, bool)>,
    pub(crate) flows: Flows,
    memory: Option<MemoryWriter>,
    /// PORTS CHANGED is due: the process does not know its newest port entries.
    ports_changed: bool,
    /// It has passed a statistics page, which was read.
    pub(crate) has_page: bool,
    /// Names of SOUT's and SUP's port, once its statistics show them.
    pub(crate) ports: Option<[String; 2]>,
}

impl Process {
    pub(crate) fn new(peer: Peer) -> Self {
        Self {
            peer,
            connections: HashMap::new(),
            flows: Flows::default(),
            memory: None,
            ports_changed: false,
            has_page: false,
            ports: None,
        }
    }

    /// Makes the memory file if there is none. The error is the status for the plugin.
    pub(crate) fn memory(&mut self, ports: &[PortScale]) -> Result<&mut MemoryWriter, Status> {
        if self.memory.is_none() {
            let mut memory = MemoryWriter::create().map_err(|_| Status::NO_FREE_SLOT)?;
            memory.set_ports(ports);
            self.memory = Some(memory);
        }
        self.memory.as_mut().ok_or(Status::NO_FREE_SLOT)
    }

    /// Returns a descriptor of the memory file for the plugin.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.memory.as_ref()?.descriptor().try_clone_to_owned().ok()
    }

    /// Adds a connection whose slot is in the memory file.
    pub(crate) fn register(
        &mut self,
        conn_id: u32,
        pair: Pair,
        ports: &[PortScale],
        share: impl FnOnce() -> u16,
    ) -> Result<u8, Status> {
        self.memory(ports)?;
        let Self { memory: Some(memory), flows, connections, .. } = self else {
            return Err(Status::NO_FREE_SLOT);
        };
        let slot = flows.add(memory, pair, share).ok_or(Status::NO_FREE_SLOT)?;
        connections.insert(conn_id, (pair, false));
        Ok(slot)
    }

    /// Notes a connection whose slot is in the hint file.
    pub(crate) fn note_plain(&mut self, conn_id: u32, pair: Pair) {
        self.connections.insert(conn_id, (pair, true));
    }

    /// Removes a connection. Returns its pair, and whether its slot is in the hint file.
    pub(crate) fn deregister(&mut self, conn_id: u32) -> Option<(Pair, bool)> {
        let (pair, plain) = self.connections.remove(&conn_id)?;
        if let (false, Some(memory)) = (plain, &mut self.memory) {
            self.flows.remove(memory, pair);
        }
        Some((pair, plain))
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether it has registered a connection or has a memory file.
    pub(crate) fn is_served(&self) -> bool {
        self.memory.is_some() || !self.connections.is_empty()
    }

    pub(crate) fn has(&self, conn_id: u32) -> bool {
        self.connections.contains_key(&conn_id)
    }

    /// Returns the pairs of the connections whose slots are in the hint file.
    pub(crate) fn plain(&self) -> Vec<Pair> {
        self.connections.values().filter(|(_, plain)| *plain).map(|(pair, _)| *pair).collect()
    }

    /// Sets the shares of all flows.
    pub(crate) fn set_shares(&mut self, share: impl Fn(Pair, u16) -> u16) -> Vec<(Pair, u16)> {
        match &mut self.memory {
            Some(memory) => self.flows.set(memory, share),
            None => Vec::new(),
        }
    }

    /// Writes the scales of ports.
    pub(crate) fn set_ports(&mut self, ports: &[PortScale]) {
        if let Some(memory) = &mut self.memory {
            self.ports_changed |= memory.set_ports(ports);
        }
    }

    /// Returns whether PORTS CHANGED is due, once.
    pub(crate) fn take_ports_changed(&mut self) -> bool {
        std::mem::take(&mut self.ports_changed)
    }
}
