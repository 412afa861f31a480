//! A splitter over the life of a connection: hints and speeds change, rails die and return, messages
//! are posted and complete.

use mpib_proto::{MAX_RAILS, SHARE_ONE, SPLIT_ALIGN};

use super::*;

const SPLIT_MIN: usize = 4096;

#[derive(Debug, Clone)]
enum Event {
    Hint(u16),
    Speeds([u32; 4]),
    Rails(u8),
    Message(usize),
    /// The oldest message of a rail.
    Completed(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0u16..1200).prop_map(Event::Hint),
        1 => prop::array::uniform4(1u32..1000).prop_map(Event::Speeds),
        1 => any::<u8>().prop_map(Event::Rails),
        20 => prop_oneof![0usize..300, 0..SPLIT_MIN, 0..1usize << 24].prop_map(Event::Message),
        20 => (0usize..4).prop_map(Event::Completed),
    ]
}

/// The connection as the splitter sees it.
struct World {
    splitter: Splitter,
    agent: Hint,
    reported: Arc<Reported>,
    /// The share for SUP, if the agent decides; else the speeds of the rails.
    share: Option<u16>,
    speeds: [u32; 4],
    usable: RailSet,
    in_flight: [u32; MAX_RAILS],
    /// Since share or rails changed: bytes of chosen messages on each rail, and the largest one.
    chosen: [usize; MAX_RAILS],
    largest: usize,
}

impl World {
    fn new(rails: usize, hinted: bool) -> Self {
        let (agent, speeds) = (Hint::default(), [1; 4]);
        let reported = Arc::new(Reported::new(&speeds.map(|s| (s, s))[..rails]));
        let by_speed = Source::Reported(Arc::clone(&reported));
        let (plan, source) = match hinted {
            true => (Plan::Shared(Class::Intra), Source::Hinted(Box::new(agent.clone()), Box::new(by_speed))),
            false => (Plan::Plain, by_speed),
        };
        let roles: Vec<RailRole> = RailRole::all().take(rails).collect();
        let limits = Limits { sout_only: 0, split_min: SPLIT_MIN as u32, is_set: true };
        Self {
            splitter: Splitter::new(plan, source, None, limits, &roles),
            agent,
            reported,
            share: hinted.then_some(0),
            speeds,
            usable: RailSet::first(rails),
            in_flight: [0; MAX_RAILS],
            chosen: [0; MAX_RAILS],
            largest: 0,
        }
    }

    fn happens(&mut self, event: &Event, rails: usize) {
        match *event {
            Event::Hint(share) => self.agent.0.store(share, Ordering::Relaxed),
            Event::Speeds(speeds) => {
                self.speeds = speeds;
                self.reported.renew(&speeds.map(|s| (s, s))[..rails]);
            }
            Event::Rails(mask) => {
                self.usable = RailSet::from_bits(mask) & RailSet::first(rails);
                self.splitter.keep(self.usable);
                (self.chosen, self.largest) = ([0; MAX_RAILS], 0);
            }
            Event::Message(len) => self.message(len),
            Event::Completed(rail) => self.in_flight[rail] = self.in_flight[rail].saturating_sub(1),
        }
    }

    fn message(&mut self, len: usize) {
        let hint = self.share.map(|_| self.agent.0.load(Ordering::Relaxed));
        if hint != self.share {
            (self.share, self.chosen, self.largest) = (hint, [0; MAX_RAILS], 0);
        }
        let (mut split, in_flight) = (Split::NONE, self.in_flight);
        if !self.splitter.split(len, |rail| in_flight[rail], &mut split) {
            assert!(self.usable.is_empty());
            return;
        }
        self.splitter.posted(&split);
        assert!(self.usable.includes(split.rails()) && !split.rails().is_empty());
        assert_eq!(split.parts().map(|part| part.len).sum::<usize>(), len);
        split.rails().iter().for_each(|rail| self.in_flight[rail] += 1);
        if (SPLIT_ALIGN..SPLIT_MIN).contains(&len) {
            assert_eq!(split.rails().len(), 1, "{len} bytes are split");
            self.chose(split.rails().lowest().unwrap(), len, &in_flight);
        }
    }

    /// Checks the choice of a rail for a whole message.
    fn chose(&mut self, rail: usize, len: usize, in_flight: &[u32]) {
        self.chosen[rail] += len;
        self.largest = self.largest.max(len);
        match self.share {
            Some(share) if self.usable.len() == 2 => {
                let share = usize::from(share.min(SHARE_ONE));
                let sum = self.chosen[0] + self.chosen[1];
                let off = (self.chosen[1] * 1024).abs_diff(sum * share);
                assert!(off <= self.largest * share.max(1024 - share), "{:?} of {share}", self.chosen);
            }
            Some(_) => {}
            None => {
                let ends = |rail: usize| f64::from(in_flight[rail] + 1) / f64::from(self.speeds[rail]);
                assert!(self.usable.iter().all(|other| ends(rail) <= ends(other) * 1.000_001));
            }
        }
    }
}

proptest! {
    #[test]
    fn a_splitter_keeps_its_rules(
        rails in 1usize..=4,
        hinted: bool,
        events in prop::collection::vec(event(), 1..300),
    ) {
        let rails = if hinted { 2 } else { rails };
        let mut world = World::new(rails, hinted);
        events.iter().for_each(|event| world.happens(event, rails));
    }
}
