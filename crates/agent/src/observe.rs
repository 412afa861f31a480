//! What the statistics page of a process shows of its rails.

use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::stats::{Carried, Sender, StatsPage, pages_of};

/// How often a process is searched for its pages until there is one, and its connections are read
/// for their ports and their share.
const SELDOM: Duration = Duration::from_secs(1);

/// A rail on which parts have waited for less than this part of the time that they have waited on the
/// other rail is not full.
const MUCH_LESS: u64 = 4;

/// What one reading shows of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// Ports of SOUT and SUP.
    pub ports: Option<[String; 2]>,
    /// The share that the process has used last.
    pub share: Option<u16>,
    /// Goodput of SOUT and SUP, in bytes per second; `None` if a rail has carried too little since
    /// the last one.
    pub goodput: [Option<u64>; 2],
    /// Whether SOUT and SUP had more to carry than they could since the last reading: parts have
    /// waited on the rail, and not much less than on the other one.
    pub is_full: [bool; 2],
}

/// Reads the pages of one process. It reads port records, and the connections once a second only:
/// the cost of a reading does not depend on their number.
#[derive(Debug)]
pub struct Observer {
    pid: u32,
    pages: Vec<StatsPage>,
    searched: Option<Instant>,
    /// When the connections were read.
    looked: Option<Instant>,
    /// Where SOUT and SUP are, by page.
    rails: Vec<(usize, [usize; 2])>,
    ports: Option<[String; 2]>,
    share: Option<u16>,
    /// What SOUT and SUP had carried when their goodput was computed last.
    last: Option<[Carried; 2]>,
    /// What they had carried at the last reading.
    read: [Carried; 2],
    since: Option<Instant>,
    /// The events of the pages at the last reading.
    events: Option<u64>,
}

impl Observer {
    /// Observes a process. It need not have a page yet.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            pages: Vec::new(),
            searched: None,
            looked: None,
            rails: Vec::new(),
            ports: None,
            share: None,
            last: None,
            read: Default::default(),
            since: None,
            events: None,
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether nothing was ever read.
    pub fn is_new(&self) -> bool {
        self.since.is_none()
    }

    /// Reads the pages. Returns what they show, and the time since the last reading.
    pub fn read(&mut self, now: Instant) -> Option<(Observation, Duration)> {
        self.search(now);
        if self.pages.is_empty() {
            return None;
        }
        let is_due = |at: Instant| now.saturating_duration_since(at) >= SELDOM;
        if self.rails.is_empty() || self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            self.look();
        }
        let since = self.since.replace(now).unwrap_or(now);
        let (ports, share, (goodput, is_full)) = (self.ports.clone(), self.share, self.carried());
        Some((Observation { ports, share, goodput, is_full }, now.saturating_duration_since(since)))
    }

    /// Returns whether the state of a port has changed or an episode was counted since the last call.
    pub fn has_news(&mut self) -> bool {
        let events = self.pages.iter().map(StatsPage::events).fold(0, u64::wrapping_add);
        !self.pages.is_empty() && self.events.replace(events).is_some_and(|before| before != events)
    }

    fn search(&mut self, now: Instant) {
        let due = self.searched.is_none_or(|at| now >= at + SELDOM);
        if self.pages.is_empty() && due && self.pid != 0 {
            self.searched = Some(now);
            self.pages = pages_of(self.pid).unwrap_or_default();
        }
    }

    /// Reads the connections.
    fn look(&mut self) {
        self.rails.clear();
        for (index, page) in self.pages.iter().enumerate() {
            let Some(Sender { ports, .. }) = page.senders().last() else { continue };
            self.rails.push((index, ports));
            let share = page.senders().filter_map(|sender| sender.share).last();
            self.share = share.and_then(|share| u16::try_from(share).ok()).or(self.share);
            let names = page.ports();
            if let [Some(sout), Some(sup)] = ports.map(|port| names.get(port)) {
                self.ports = Some([sout.name.clone(), sup.name.clone()]);
            }
        }
    }

    /// Returns the goodput of SOUT and SUP since it was known last, and whether they are full.
    fn carried(&mut self) -> ([Option<u64>; 2], [bool; 2]) {
        if self.rails.is_empty() {
            return Default::default();
        }
        let mut now = [Carried::default(); 2];
        for (page, ports) in &self.rails {
            for (sum, port) in now.iter_mut().zip(ports) {
                *sum += self.pages[*page].carried(*port);
            }
        }
        let before = std::mem::replace(&mut self.read, now);
        let Some(last) = &mut self.last else {
            self.last = Some(now);
            return Default::default();
        };
        let goodput = [0, 1].map(|rail| {
            let goodput = (now[rail] - last[rail]).goodput();
            if goodput.is_some() {
                last[rail] = now[rail];
            }
            goodput
        });
        let waited = [0, 1].map(|rail| (now[rail] - before[rail]).waited);
        let most = waited[0].max(waited[1]);
        (goodput, waited.map(|waited| waited > most / MUCH_LESS))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use nccl_net_mpib_agent_iface::stats::{
        Data, Direction, Islands, NewConnection, PortState, StatsWriter, Traffic,
    };

    use super::*;

    /// One test: a process has one page.
    //= agent.md: the policy measured reads what ports have carried, not connections
    #[test]
    fn ports_show_their_goodput_and_their_news() {
        let pid = std::process::id();
        let mut observer = Observer::new(pid);
        let start = Instant::now();
        assert_eq!((Observer::new(0).read(start), observer.read(start)), (None, None), "no page");
        let writer = StatsWriter::for_this_process("0").unwrap();
        let rails: &[(u8, &str)] = &[(0, "a:1"), (1, "b:1")];
        let of = |direction| NewConnection {
            direction,
            islands: Islands::Two,
            data: Data::Split,
            traffic: Traffic::Messages,
            peer: "p",
            rails,
            substituted: false,
        };
        let receiver = writer.add(&of(Direction::Receive));
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(observer.read(at(500)), None, "it is searched once a second");
        assert_eq!(observer.read(at(1000)), Some((Observation::default(), Duration::ZERO)));
        let senders = [7, 341].map(|share| {
            let sender = writer.add(&of(Direction::Send));
            sender.entry().share(share);
            sender
        });
        let ports = Some(["a:1", "b:1"].map(String::from));
        let seen =
            |goodput, is_full| Observation { ports: ports.clone(), share: Some(341), goodput, is_full };
        let idle = [false, false];
        let step = Duration::from_millis(50);
        assert_eq!(observer.read(at(1050)), Some((seen([None, None], idle), step)), "the first time");
        let carried = |name: &str, bytes, time| {
            writer.port(name).unwrap().add_measured(bytes, time, if name == "a:1" { 100 } else { 25 })
        };
        // Two connections on SOUT at the same time; SUP was idle half of the time.
        (0..2).for_each(|_| carried("a:1", 1 << 30, 500_000_000));
        carried("b:1", 1 << 30, 500_000_000);
        senders[1].entry().share(100);
        let both = seen([Some(2 << 30), Some(2 << 30)], [true, false]);
        assert_eq!(observer.read(at(1100)), Some((both, step)), "the share is read once a second");
        // Too little to know, and it is not lost.
        carried("b:1", Carried::LEAST - 1, 1000);
        assert_eq!(observer.read(at(1150)).unwrap().0, seen([None, None], [false, true]));
        carried("b:1", 1, 1000);
        assert_eq!(observer.read(at(1200)).unwrap().0.goodput, [None, Some(Carried::LEAST * 500_000)]);
        assert_eq!(observer.read(at(2200)).unwrap().0.share, Some(100));

        assert!(!observer.has_news(), "nothing is known of before");
        writer.port_state("b:1", PortState::Down, Some(("a test", SystemTime::now())));
        assert!(observer.has_news() && !observer.has_news());
        drop((receiver, senders));
    }
}
