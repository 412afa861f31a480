//! Whether the peer's host lives: asked while the control connection is broken, and answered here
//! alone.
//!
//! A sign of life is all that needs the peer's host: an acknowledgement of a write, an immediate, a
//! frame in the mailbox. While nothing moves, pings ask for one. A ping is a signalled write of no
//! bytes, which the peer's adapter acknowledges by itself, also while the peer's process is stopped.
//! The queue pairs of a process that has ended do not exist any more, and nothing is acknowledged.
//!
//! The data path counts nothing for this. What it keeps for other reasons is compared now and then.
//!
//! The watchdog uses pings, too: it compares the progress of rails. A sender that waits for one rail
//! alone has none to compare with, and most CTS writes of a receiver are not signalled.

use std::time::{Duration, Instant};

use mpib_proto::RailSet;

use crate::error::{Error, Fast};
use crate::transport::comm::Comm;
use crate::transport::failover::names;
use crate::transport::looks::Looks;
use crate::transport::recv::cts_writer::CTS_QUEUE;
use crate::transport::send_queue::Work;

/// Index of the queue pair of a rail that carries pings. It carries CTS writes, too, and the
/// completion of a ping covers all of these before it.
const PING_QUEUE: usize = CTS_QUEUE;

/// How long nothing may move before a ping asks for a sign of life, and until the next one asks ...
const PING_EVERY: Duration = Duration::from_secs(1);
/// ... but so many have asked at least before the connection ends.
const PINGS: u32 = 4;
/// After so many looks the answer of a ping that has one has been polled. Housekeeping leaves news to
/// NCCL's next call for one pass.
const POLLED: u32 = 4;

/// The rails that the watchdog wants to be pinged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinged {
    /// All of them: at a receiver.
    All,
    /// Those beside the late ones, whose outstanding writes are signalled: at a sender.
    Others,
}

/// What a comm knows to have come from the peer's host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// The rails that count. The counts of a rail that is given up or made again begin again.
    pub(crate) rails: RailSet,
    /// Acknowledged work requests and arrived immediates of these rails, modulo 2^32.
    pub(crate) count: u32,
}

/// The signs of life since the control connection broke.
#[derive(Debug)]
pub(crate) struct Life {
    wait: Duration,
    ping_every: Duration,
    /// When the present break began, and the looks in it.
    broken: Option<(Instant, Looks)>,
    /// What was known at the last look.
    last: Signs,
    /// The time without a sign of life.
    silent: Duration,
    /// The time since the last sign of life or request for a ping.
    unasked: Duration,
    /// Looks since a ping was due, in this silence.
    asked: u32,
    /// The silence that is reported, and that has not ended.
    reported: Option<Duration>,
}

/// What is to be reported of the peer's silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has lasted longer than a ping takes.
    Silent,
    /// It has ended after this time.
    Heard(Duration),
}

impl Life {
    /// `wait`: how long there may be no sign of life.
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            wait,
            ping_every: PING_EVERY.min(wait / PINGS),
            broken: None,
            last: Signs::default(),
            silent: Duration::ZERO,
            unasked: Duration::ZERO,
            asked: 0,
            reported: None,
        }
    }

    /// Takes in what is known now, in a break that began at `broken`. Returns whether a ping is due.
    pub(crate) fn look(&mut self, now: Instant, broken: Instant, signs: Signs) -> bool {
        let before = std::mem::replace(&mut self.last, signs);
        let passed = match &mut self.broken {
            Some((at, looks)) if *at == broken => looks.passed(now),
            other => {
                *other = Some((broken, Looks::begin(now, self.ping_every)));
                self.seen();
                return false;
            }
        };
        if before.rails == signs.rails && before.count != signs.count {
            self.seen();
            return false;
        }
        self.silent += passed;
        self.unasked += passed;
        let due = self.unasked >= self.ping_every;
        self.asked = self.asked.saturating_add(u32::from(due || self.asked > 0));
        if due {
            self.unasked = Duration::ZERO;
        }
        due
    }

    /// Records a sign of life that no count shows.
    pub(crate) fn seen(&mut self) {
        (self.silent, self.unasked, self.asked) = (Duration::ZERO, Duration::ZERO, 0);
    }

    /// Returns what is to be reported since the last call: each silence once, and its end.
    pub(crate) fn turn(&mut self) -> Option<Turn> {
        match &mut self.reported {
            // The first ping has had half of its time for an answer, and the queues were polled for it.
            None if self.silent >= self.ping_every * 3 / 2 && self.asked >= POLLED => {
                self.reported = Some(self.silent);
                Some(Turn::Silent)
            }
            Some(lasted) if self.silent >= *lasted => {
                *lasted = self.silent;
                None
            }
            Some(_) => self.end_of_silence(),
            None => None,
        }
    }

    /// Returns whether a silence is reported that has not ended.
    #[inline]
    pub(crate) fn is_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// Returns the end of a silence that was reported: the control connection works again.
    pub(crate) fn end_of_silence(&mut self) -> Option<Turn> {
        self.reported.take().map(Turn::Heard)
    }

    /// Returns whether the silence in the break that began at `broken` is so long that the peer is lost.
    /// Before the first look at a break, what is known is the silence of an earlier one.
    pub(crate) fn is_lost(&self, broken: Instant, is_refused: bool) -> bool {
        self.broken.as_ref().is_some_and(|(at, _)| *at == broken) && self.silent >= self.limit(is_refused)
    }

    /// Returns after which silence the peer is lost. A host that refuses connections is up, and the peer
    /// listens as long as it lives: [`PINGS`] without an answer suffice then.
    pub(crate) fn limit(&self, is_refused: bool) -> Duration {
        if is_refused { self.ping_every * PINGS } else { self.wait }
    }

    /// Returns how long there has been no sign of life in this break, as of the last look.
    pub(crate) fn silence(&self) -> Duration {
        self.silent
    }
}

impl Comm {
    /// Pings rails if the watchdog has found late ones since the last call.
    pub(crate) fn ping_if_late(&mut self, which: Pinged) -> Fast<()> {
        match (self.watch.take_late(), which) {
            (RailSet::EMPTY, _) => Ok(()),
            (_, Pinged::All) => self.ping(RailSet::ALL),
            (late, Pinged::Others) => self.ping(RailSet::ALL.without(late)),
        }
    }

    /// Looks for signs of life of a peer whose control connection is broken. If nothing has moved for
    /// a while, pings one rail. One atomic load while the control connection works.
    pub(crate) fn look_for_life(&mut self) -> Fast<()> {
        if !self.peer.is_broken() {
            // A comm that has failed has no control connection any more.
            if self.peer.is_reported_silent() && !self.has_failed() {
                self.peer.report_works_again();
            }
            return Ok(());
        }
        if self.has_failed() {
            return Ok(());
        }
        let rails = self.working();
        let count = |sum: u32, rail: usize| sum.wrapping_add(self.rails[rail].signs_of_life());
        let signs = Signs { rails, count: rails.iter().fold(0, count) };
        let Self { peer, rails: all, .. } = self;
        let what = || match rails {
            RailSet::EMPTY => "no rail works".into(),
            _ => format!("no acknowledgement comes over {}", names(all, rails)),
        };
        if !peer.look_for_life(signs, what) {
            return Ok(());
        }
        // One rail may be silent: the next ping takes another one.
        if let Some(rail) = rails.without(self.pings).lowest() {
            self.ping(RailSet::of(rail))?;
            // All queues are polled until it is acknowledged.
            self.mark();
        }
        Ok(())
    }

    /// Returns whether a ping is outstanding, or writes of the mailbox are: no request waits for them,
    /// so no call of NCCL polls for their completions.
    pub(crate) fn awaits_bare_writes(&self) -> bool {
        !self.pings.is_empty() || self.awaits_mail_writes()
    }

    /// Pings those of these rails that work, and on which no ping is outstanding.
    fn ping(&mut self, which: RailSet) -> Fast<()> {
        for rail in (which & self.working()).without(self.pings).iter() {
            let queue = &mut self.rails[rail].send_queues[PING_QUEUE];
            // A full queue has signalled work requests outstanding.
            if queue.room() == 0 {
                continue;
            }
            let to = self.remote.scratch(rail);
            self.chain.clear();
            if !self.chain.write(None, to, None, Some(queue.signal(Work::Ping, 1))) {
                return Err(Error::Internal("a ping did not fit into its chain".into()).into());
            }
            match queue.post(&mut self.chain, true) {
                Ok(()) => {
                    self.stats.posted_bare(rail);
                    self.pings.insert(rail);
                }
                Err(e) => self.not_posted(rail, e)?,
            }
        }
        Ok(())
    }

    /// Handles the completion of a ping.
    #[cold]
    pub(crate) fn pinged(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        self.pings.remove(rail);
        self.sent(rail, PING_QUEUE, wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    fn signs(rails: u8, count: u32) -> Signs {
        Signs { rails: RailSet::from_bits(rails), count }
    }

    #[test]
    fn pings_are_due_while_nothing_moves() {
        let (mut life, start) = (Life::new(WAIT), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!life.look(at(0), start, signs(1, 7)));
        assert!(!life.look(at(999), start, signs(1, 7)));
        assert!(life.look(at(1000), start, signs(1, 7)));
        assert!(!life.look(at(1999), start, signs(1, 7)));
        assert!(life.look(at(2000), start, signs(1, 7)));
        assert_eq!(life.silence(), Duration::from_secs(2));
        assert!(!life.look(at(2900), start, signs(1, 8)), "the ping is acknowledged");
        assert_eq!(life.silence(), Duration::ZERO);
        for ms in (3000..60_000).step_by(250) {
            assert!(!life.look(at(ms), start, signs(1, ms as u32)), "data moves");
        }
        assert_eq!(life.silence(), Duration::ZERO);
    }

    #[test]
    fn a_short_wait_has_several_pings_too() {
        let (mut life, start) = (Life::new(PING_EVERY), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let pings = (0..1000).step_by(10).filter(|ms| life.look(at(*ms), start, signs(1, 7))).count();
        assert_eq!(pings, 3, "one more when the wait is over");
        assert!(life.silence() < PING_EVERY);
    }

    #[test]
    fn a_peer_whose_host_refuses_connections_is_lost_after_four_pings() {
        for wait in [WAIT, PING_EVERY] {
            let (mut life, start) = (Life::new(wait), Instant::now());
            let (mut pings, mut now) = (0, start);
            while life.silence() < life.limit(true) {
                pings += u32::from(life.look(now, start, signs(0, 7)));
                now += Duration::from_millis(10);
            }
            assert_eq!(pings, PINGS);
            assert!(life.silence() <= life.limit(false), "{wait:?}");
        }
    }

    #[test]
    fn a_rail_that_is_given_up_or_returns_is_no_sign() {
        let (mut life, start) = (Life::new(WAIT), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        life.look(at(0), start, signs(0b11, 100));
        life.look(at(500), start, signs(0b01, 60));
        life.look(at(1000), start, signs(0b11, 60));
        assert_eq!(life.silence(), Duration::from_secs(1));
    }

    #[test]
    fn a_pause_of_this_process_is_no_silence_of_the_peer() {
        let (mut life, start) = (Life::new(WAIT), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        life.look(at(0), start, signs(1, 7));
        assert!(life.look(at(3600), start, signs(1, 7)), "it asks again first");
        assert_eq!(life.silence(), PING_EVERY);
    }

    #[test]
    fn each_break_begins_with_no_silence() {
        let (mut life, start) = (Life::new(WAIT), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        for s in 0..5 {
            life.look(at(s), start, signs(1, 7));
        }
        assert_eq!(life.silence(), Duration::from_secs(4));
        assert!(life.is_lost(start, true) && !life.is_lost(start, false));
        assert!(!life.is_lost(at(8), true), "nobody has looked yet");
        life.look(at(9), at(8), signs(1, 7));
        assert_eq!(life.silence(), Duration::ZERO);
        assert!(!life.is_lost(at(8), true));
    }

    #[test]
    fn a_silence_is_reported_once_and_so_is_its_end() {
        let (mut life, start) = (Life::new(WAIT), Instant::now());
        let mut at = |ms, count| {
            life.look(start + Duration::from_millis(ms), start, signs(1, count));
            life.turn()
        };
        let moving: Vec<_> = (0..40).filter_map(|n| at(n * 250, n as u32)).collect();
        assert_eq!(moving, [], "data moves");
        let silent: Vec<_> = (40..80).filter_map(|n| at(n * 250, 39).map(|turn| (n, turn))).collect();
        assert_eq!(silent, [(46, Turn::Silent)], "1.75 s after the last sign");
        assert_eq!(at(20_000, 40), Some(Turn::Heard(Duration::from_secs(10))));
        assert_eq!(at(20_250, 40), None);
        assert_eq!(life.end_of_silence(), None);
    }
}
