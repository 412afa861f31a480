//! Scales of ports, which the agent sets for the whole process.

use std::collections::BTreeMap;
use std::fmt;

use nccl_net_mpib_agent_iface::agent::memory::Memory;
use nccl_net_mpib_agent_iface::agent::{PortScale, SHARE_ONE};

/// What applies the scales.
pub trait PortScales: fmt::Debug + Send + Sync {
    /// Multiplies the weight of a port with `scale` / 1024 in all connections of the process. 1024
    /// changes nothing, 0 takes the port out of use as long as another rail can carry the data.
    /// `port` is HCA and port, for instance `mlx5_0:1`. It need not be a port of this process.
    fn set_port_scale(&self, port: &str, scale: u16);
}

/// The scales that the agent has set, and what applies them.
#[derive(Debug)]
pub(super) struct Scales {
    known: BTreeMap<String, u16>,
}

impl Scales {
    pub(super) fn new() -> Self {
        Self { known: BTreeMap::new() }
    }

    /// Applies what has changed, and logs it. Without an agent the last scales stay.
    pub(super) fn update(&mut self, memory: &Memory, agent: &str, target: &dyn PortScales) {
        // While an entry is being written, the agent will send another message.
        let Some(ports) = memory.ports() else { return };
        let mut wanted: BTreeMap<String, u16> =
            ports.into_iter().map(|PortScale { name, scale }| (name, scale)).collect();
        for name in self.known.keys() {
            wanted.entry(name.clone()).or_insert(SHARE_ONE);
        }
        for (name, new) in wanted {
            let old = self.known.get(&name).copied().unwrap_or(SHARE_ONE);
            if old == new {
                continue;
            }
            target.set_port_scale(&name, new);
            let what = match new {
                0 => "out of use",
                SHARE_ONE => "in full use again",
                _ => "in reduced use",
            };
            tracing::info!(
                target: "net",
                "agent {agent}: port {name} is {what}: scale {new} of {SHARE_ONE}, before {old}"
            );
            match new {
                SHARE_ONE => self.known.remove(&name),
                _ => self.known.insert(name, new),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::agent::memory::MemoryWriter;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Calls(Mutex<Vec<(String, u16)>>);

    impl PortScales for Calls {
        fn set_port_scale(&self, port: &str, scale: u16) {
            self.0.lock().push((port.to_owned(), scale));
        }
    }

    #[test]
    fn only_changes_are_applied_and_a_port_without_an_entry_is_in_full_use() {
        let (mut scales, calls) = (Scales::new(), Calls::default());
        let mut writer = MemoryWriter::create().unwrap();
        let memory = Memory::open(writer.descriptor().try_clone_to_owned().unwrap()).unwrap();
        let mut after = |ports: &[(&str, u16)]| {
            let ports: Vec<_> =
                ports.iter().map(|(name, scale)| PortScale { name: (*name).into(), scale: *scale }).collect();
            writer.set_ports(&ports);
            scales.update(&memory, "here", &calls);
            std::mem::take(&mut *calls.0.lock())
        };
        assert_eq!(after(&[("a:1", 0), ("b:1", 1024)]), [("a:1".into(), 0)]);
        assert_eq!(after(&[("a:1", 0)]), []);
        assert_eq!(after(&[("b:1", 512), ("a:1", 0)]), [("b:1".into(), 512)]);
        assert_eq!(after(&[("b:1", 512)]), [("a:1".into(), 1024)]);
        assert_eq!(after(&[]), [("b:1".into(), 1024)]);
        assert_eq!(after(&[]), []);
    }
}
