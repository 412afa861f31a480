//! What the statistics page of a process shows of its rails.

use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::stats::{Carried, Sender, StatsPage};

/// How often the connections of a process are read for their ports and their share.
const SELDOM: Duration = Duration::from_secs(1);

/// How many entries are read at a time. All senders of a process have the same ports, and its page may
/// have been made to keep the agent busy.
const LOOKED: usize = 64;

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

/// Compares the readings of one page. It reads port records, and the connections once a second only:
/// the cost of a reading does not depend on their number.
#[derive(Debug, Default)]
pub struct Observer {
    /// When the connections were read.
    looked: Option<Instant>,
    /// The first entry that is read for them: others may have no sender.
    first: usize,
    /// Where SOUT and SUP are.
    rails: Option<[usize; 2]>,
    ports: Option<[String; 2]>,
    share: Option<u16>,
    /// What SOUT and SUP had carried when their goodput was computed last.
    last: Option<[Carried; 2]>,
    /// What they had carried at the last reading.
    read: [Carried; 2],
    since: Option<Instant>,
    /// The events of the page at the last reading.
    events: Option<u64>,
}

impl Observer {
    /// Whether nothing was ever read.
    pub fn is_new(&self) -> bool {
        self.since.is_none()
    }

    /// Reads the page. Returns what it shows, and the time since the last reading.
    pub fn read(&mut self, page: &StatsPage, now: Instant) -> (Observation, Duration) {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= SELDOM;
        if self.rails.is_none() || self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            self.look(page);
        }
        let since = self.since.replace(now).unwrap_or(now);
        let (ports, share, (goodput, is_full)) = (self.ports.clone(), self.share, self.carried(page));
        (Observation { ports, share, goodput, is_full }, now.saturating_duration_since(since))
    }

    /// Returns whether the state of a port has changed or an episode was counted since the last call.
    pub fn has_news(&mut self, page: &StatsPage) -> bool {
        let events = page.events();
        self.events.replace(events).is_some_and(|before| before != events)
    }

    /// Reads the connections.
    fn look(&mut self, page: &StatsPage) {
        self.rails = None;
        let next = self.first + LOOKED;
        for Sender { ports, share } in page.senders(self.first..next) {
            self.rails = Some(ports);
            self.share = share.and_then(|share| u16::try_from(share).ok()).or(self.share);
        }
        let Some(rails) = self.rails else {
            self.first = if next < page.entries_used() { next } else { 0 };
            return;
        };
        let names = page.ports();
        if let [Some(sout), Some(sup)] = rails.map(|port| names.get(port)) {
            self.ports = Some([sout.name.clone(), sup.name.clone()]);
        }
    }

    /// Returns the goodput of SOUT and SUP since it was known last, and whether they are full.
    fn carried(&mut self, page: &StatsPage) -> ([Option<u64>; 2], [bool; 2]) {
        let Some(rails) = self.rails else { return Default::default() };
        let now = rails.map(|port| page.carried(port));
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
        let start = Instant::now();
        let writer = StatsWriter::for_this_process("0").unwrap();
        let page = StatsWriter::descriptor().unwrap().try_clone_to_owned().unwrap();
        let page = StatsPage::open(&page.into()).unwrap();
        let mut observer = Observer::default();
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
        // More entries without a sender than are read at a time.
        let receivers = [(); LOOKED + 1].map(|()| writer.add(&of(Direction::Receive)));
        let at = |ms| start + Duration::from_millis(ms);
        let read = |observer: &mut Observer, ms| observer.read(&page, at(ms));
        assert_eq!(read(&mut observer, 1000), (Observation::default(), Duration::ZERO));
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
        assert_eq!(read(&mut observer, 1050), (seen([None, None], idle), step), "the first time");
        let carried = |name: &str, bytes, time| {
            writer.port(name).unwrap().add_measured(bytes, time, if name == "a:1" { 100 } else { 25 })
        };
        // Two connections on SOUT at the same time; SUP was idle half of the time.
        (0..2).for_each(|_| carried("a:1", 1 << 30, 500_000_000));
        carried("b:1", 1 << 30, 500_000_000);
        senders[1].entry().share(100);
        let both = seen([Some(2 << 30), Some(2 << 30)], [true, false]);
        assert_eq!(read(&mut observer, 1100), (both, step), "the share is read once a second");
        // Too little to know, and it is not lost.
        carried("b:1", Carried::LEAST - 1, 1000);
        assert_eq!(read(&mut observer, 1150).0, seen([None, None], [false, true]));
        carried("b:1", 1, 1000);
        assert_eq!(read(&mut observer, 1200).0.goodput, [None, Some(Carried::LEAST * 500_000)]);
        assert_eq!(read(&mut observer, 2200).0.share, Some(100));

        assert!(!observer.has_news(&page), "nothing is known of before");
        writer.port_state("b:1", PortState::Down, Some(("a test", SystemTime::now())));
        assert!(observer.has_news(&page) && !observer.has_news(&page));
        drop((receivers, senders));
    }
}
