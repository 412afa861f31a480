//! What `mpib setup` says on each cable, and what it accepts from the other end.

use nccl_net_mpib_agent_iface::text::printable;
use serde::{Deserialize, Serialize};

use super::net::{Ipv4Net, Mac};

/// Version of the format.
const FORMAT: u32 = 1;
/// Most bytes: one packet of Ethernet.
pub(super) const MOST: usize = 1400;
/// Most characters of a name.
const NAME_MAX: usize = 64;
/// Most entries of each list.
const LIST_MAX: usize = 16;

/// One end of a cable, as it announces itself there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Announcement {
    format: u32,
    /// Name of the host.
    pub(super) host: String,
    /// A random number of the process.
    pub(super) id: u64,
    pub(super) end: End,
    /// The networks of the host's other interfaces.
    pub(super) used: Vec<Ipv4Net>,
    /// The ends that this one hears.
    pub(super) heard: Vec<Mac>,
    /// The cables between the hosts that the process knows, each by the lower end first.
    pub(super) cables: Vec<[Mac; 2]>,
}

/// A port with its interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) mac: Mac,
    pub(super) interface: String,
    /// HCA and port.
    pub(super) port: String,
    /// Mb/s
    pub(super) speed: u32,
    pub(super) mtu: u32,
    /// Ends of a host with equal numbers share a wire.
    pub(super) wire: Option<usize>,
    /// The addresses of the interface.
    pub(super) nets: Vec<Ipv4Net>,
}

/// What a process announces at all ends.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) used: Vec<Ipv4Net>,
}

impl Announcement {
    pub(super) fn new(host: &Host, end: &End, heard: Vec<Mac>, cables: Vec<[Mac; 2]>) -> Self {
        let Host { name, id, used } = host.clone();
        Self { format: FORMAT, host: name, id, end: end.clone(), used, heard, cables }.shortened()
    }

    /// Leaves out what a packet has no room for.
    fn shortened(mut self) -> Self {
        self.used.truncate(LIST_MAX);
        self.heard.truncate(LIST_MAX);
        self.cables.truncate(LIST_MAX);
        self.end.nets.truncate(LIST_MAX);
        for name in [&mut self.host, &mut self.end.interface, &mut self.end.port] {
            *name = name.chars().take(NAME_MAX).collect();
        }
        while self.encode().len() > MOST && (self.used.pop().is_some() || self.end.nets.pop().is_some()) {}
        self
    }

    /// Returns the packet.
    pub(super) fn encode(&self) -> Vec<u8> {
        // It has no map, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a packet, which may be anything. Names are made safe for a terminal.
    ///
    /// # Errors
    /// Why it is no announcement.
    pub(super) fn decode(packet: &[u8]) -> Result<Self, String> {
        let mut it: Self = serde_json::from_slice(packet).map_err(|e| format!("no announcement: {e}"))?;
        if it.format != FORMAT {
            return Err(format!(
                "an announcement of format {}, expected {FORMAT}: use one release",
                it.format
            ));
        }
        let lists = [it.used.len(), it.heard.len(), it.cables.len(), it.end.nets.len()];
        let names = [&it.host, &it.end.interface, &it.end.port];
        if lists.iter().any(|len| *len > LIST_MAX) || names.iter().any(|name| name.chars().count() > NAME_MAX)
        {
            return Err(format!(
                "an announcement with more than {LIST_MAX} entries or {NAME_MAX} characters"
            ));
        }
        for name in [&mut it.host, &mut it.end.interface, &mut it.end.port] {
            *name = printable(name);
        }
        Ok(it)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An end for tests; `n` is its number everywhere.
    pub(in super::super) fn end(n: u8, wire: Option<usize>) -> End {
        End {
            mac: Mac([2, 0, 0, 0, 0, n]),
            interface: format!("eth{n}"),
            port: format!("mlx5_{n}:1"),
            speed: 200_000,
            mtu: 1500,
            wire,
            nets: Vec::new(),
        }
    }

    pub(in super::super) fn host(name: &str, id: u64) -> Host {
        Host { name: name.into(), id, used: Vec::new() }
    }

    #[test]
    fn an_announcement_fits_into_a_packet_and_comes_back() {
        let mut host = host(&"long".repeat(100), 7);
        host.used = (0..40).map(|n| Ipv4Net::new([192, 168, n, 200].into(), 24).unwrap()).collect();
        let macs: Vec<Mac> = (0..40).map(|n| end(n, None).mac).collect();
        let cables = macs.iter().map(|mac| [*mac, *mac]).collect();
        let end = End { nets: host.used.clone(), ..end(1, Some(0)) };
        let it = Announcement::new(&host, &end, macs, cables);
        assert!(it.encode().len() <= MOST, "{}", it.encode().len());
        assert_eq!(Announcement::decode(&it.encode()).unwrap(), it);
    }

    #[test]
    fn other_packets_are_refused() {
        let good = Announcement::new(&host("a", 7), &end(1, None), Vec::new(), Vec::new());
        let of = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(&good).unwrap();
            change(&mut value);
            Announcement::decode(&serde_json::to_vec(&value).unwrap())
        };
        assert!(of(&|value| value["format"] = 2.into()).unwrap_err().contains("use one release"));
        assert!(of(&|value| value["host"] = "x".repeat(65).into()).is_err());
        assert!(of(&|value| value["used"] = vec!["10.0.0.1/8"; 17].into()).is_err());
        assert!(of(&|value| value["used"] = vec!["10.0.0.1/88"].into()).is_err());
        assert!(of(&|value| value["end"]["mac"] = "no".into()).is_err());
        assert_eq!(of(&|value| value["host"] = "a\u{1b}[2Jb".into()).unwrap().host, "a?[2Jb");
        assert!(Announcement::decode(b"\xff").is_err());
    }
}
