//! A thread that reads the statistics of all processes for all clients of the server.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use mpib_host_view::{Host, Ledger, MetricsOptions, Passed, Source, Waits, metrics};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::rails::{self, PortEvent};
use super::{Document, History};
use crate::per_minute::PerMinute;
use crate::{Agent, Handle};

/// Most changes of rails that are logged in a minute.
const NOTES: usize = 60;

/// The thread waits so many times as long as a reading has taken, but not longer than if nobody asks. Pages
/// can be made that take long.
const REST: u32 = 9;

/// The time between the first two readings. Whether a process moves data, one alone does not show.
const MOMENT: Duration = Duration::from_millis(100);

/// One reading, and its texts, each made when it is first needed.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// When the reading before was made, with which this one is compared.
    before: Instant,
    document: Document,
    waits: Waits,
    json: OnceLock<Bytes>,
    event: OnceLock<Bytes>,
    metrics: [OnceLock<Bytes>; 2],
    history: OnceLock<Bytes>,
}

impl Reading {
    fn new((before, earlier): (Instant, &Host), host: Host, handle: &Handle) -> Self {
        let waits = Waits::of(&[earlier, &host]);
        let document = Document { host, agent: handle.read(Agent::snapshot), connections_omitted: 0 };
        let (json, event, metrics, history) = Default::default();
        Self { at: Instant::now(), before, document, waits, json, event, metrics, history }
    }

    /// Returns the document as JSON.
    pub(super) fn json(&self) -> Bytes {
        self.json.get_or_init(|| encode(&self.document)).clone()
    }

    /// Returns who waits for whom as JSON.
    pub(super) fn waits(&self) -> Bytes {
        encode(&self.waits)
    }

    /// Returns the bounded document as a server-sent event.
    pub(super) fn event(&self) -> Bytes {
        let event = || [b"data: ", &encode(&self.document.bounded())[..], b"\n\n"].concat().into();
        self.event.get_or_init(event).clone()
    }

    /// Returns the metrics for Prometheus.
    pub(super) fn metrics(&self, per_peer: bool) -> Bytes {
        let text = || metrics(&self.document.host, MetricsOptions { per_peer }).into();
        self.metrics[usize::from(per_peer)].get_or_init(text).clone()
    }
}

fn encode(value: &impl serde::Serialize) -> Bytes {
    // These documents have no maps with keys other than strings, so encoding cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// The latest reading, for the server's tasks.
#[derive(Debug, Clone)]
pub(super) struct Readings {
    latest: watch::Receiver<Arc<Reading>>,
    adapters: PathBuf,
    history: Arc<Mutex<History>>,
    /// Clients that follow the stream.
    followers: Arc<AtomicUsize>,
    /// The thread ends with the last of these.
    nudge: Arc<Nudge>,
    /// The time for which a reading counts as fresh.
    often: Duration,
}

/// Has the thread read sooner.
#[derive(Debug)]
pub(crate) struct Nudge {
    wake: SyncSender<()>,
    /// A rail has changed since the last reading.
    rail_changed: Arc<AtomicBool>,
}

impl Nudge {
    /// Has the thread read as soon as a second has passed since the last reading.
    fn request(&self) {
        // The thread wakes anyway if a nudge is pending.
        let _ = self.wake.try_send(());
    }

    /// Has the thread read at once, or 100 ms after the last reading.
    pub(crate) fn rail_changed(&self) {
        self.rail_changed.store(true, Ordering::Relaxed);
        self.request();
    }
}

/// How long the thread waits between two readings.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// While somebody follows the stream, and at least for other requests.
    often: Duration,
    /// If nobody asks: for the events and the history.
    seldom: Duration,
    /// At least, when rails have changed.
    change: Duration,
}

const PACE: Pace = Pace {
    often: Duration::from_secs(1),
    seldom: Duration::from_secs(5),
    change: Duration::from_millis(100),
};

impl Readings {
    /// Reads, and starts the thread.
    pub(super) fn start(source: Source, handle: Handle) -> io::Result<Self> {
        Self::start_at(PACE, source, handle)
    }

    fn start_at(pace: Pace, mut source: Source, handle: Handle) -> io::Result<Self> {
        let mut ledger = Ledger::default();
        let adapters = source.adapters().to_owned();
        let before = (Instant::now(), read(&mut source, &handle));
        thread::sleep(MOMENT);
        let mut host = read(&mut source, &handle);
        ledger.update(&mut host, &source.ports());
        let history = Arc::new(Mutex::new(History::default()));
        let (send, latest) = watch::channel(Arc::new(Reading::new((before.0, &before.1), host, &handle)));
        let (wake, nudged) = sync_channel(1);
        let rail_changed = Arc::<AtomicBool>::default();
        let nudge = Arc::new(Nudge { wake, rail_changed: rail_changed.clone() });
        handle.set_readings(&nudge);
        let followers = Arc::new(AtomicUsize::new(0));
        let reader = Reader {
            source,
            ledger,
            handle,
            send,
            history: history.clone(),
            nudged,
            rail_changed,
            pace,
            followers: followers.clone(),
            notes: PerMinute::new(NOTES),
            left_out: false,
        };
        thread::Builder::new().name("readings".into()).spawn(|| reader.run())?;
        Ok(Self { latest, adapters, history, followers, nudge, often: pace.often })
    }

    /// Returns the age of the latest reading.
    pub(super) fn age(&self) -> Duration {
        self.latest.borrow().at.elapsed()
    }

    /// Returns a reading that is at most a second old, or the latest one if there is no such within
    /// two seconds.
    pub(super) async fn fresh(&self) -> Arc<Reading> {
        let mut latest = self.latest.clone();
        let last = latest.borrow_and_update().clone();
        if last.at.elapsed() < self.often { last } else { self.next(latest).await }
    }

    /// Returns a fresh reading that is compared with one of the last seconds: what moved before those
    /// may stand still now.
    pub(super) async fn of_now(&self) -> Arc<Reading> {
        let reading = self.fresh().await;
        if reading.at - reading.before < 2 * self.often {
            return reading;
        }
        let mut latest = self.latest.clone();
        latest.borrow_and_update();
        self.next(latest).await
    }

    /// Returns the reading after the one that was seen last, or that one after two seconds.
    async fn next(&self, mut latest: watch::Receiver<Arc<Reading>>) -> Arc<Reading> {
        self.nudge();
        let changed = tokio::time::timeout(2 * PACE.often, latest.changed());
        let _ = changed.await;
        let newest = latest.borrow();
        newest.clone()
    }

    /// Returns the ports of this host: those that the kernel has, and those that processes use.
    pub(super) async fn ports(&self) -> BTreeSet<String> {
        let mut ports = mpib_host_view::ports(&self.adapters);
        ports.extend(self.fresh().await.document.host.ports.iter().map(|port| port.name.clone()));
        ports
    }

    /// Follows the readings.
    pub(super) fn follow(&self) -> Follower {
        let followers = self.followers.clone();
        followers.fetch_add(1, Ordering::Relaxed);
        self.nudge();
        let mut latest = self.latest.clone();
        latest.mark_changed();
        Follower { latest, followers }
    }

    /// Returns the number of clients that follow the readings.
    pub(super) fn followers(&self) -> usize {
        self.followers.load(Ordering::Relaxed)
    }

    /// Returns the history as JSON, one text for each reading.
    pub(super) fn history(&self) -> Bytes {
        let latest = self.latest.borrow().clone();
        latest.history.get_or_init(|| encode(&*self.history.lock())).clone()
    }

    /// Has the thread read as soon as a second has passed since the last reading.
    pub(super) fn nudge(&self) {
        self.nudge.request();
    }
}

/// A client that gets each reading.
#[derive(Debug)]
pub(super) struct Follower {
    latest: watch::Receiver<Arc<Reading>>,
    followers: Arc<AtomicUsize>,
}

impl Follower {
    /// Waits for the next reading; `None` at the end of the thread.
    pub(super) async fn next(&mut self) -> Option<Arc<Reading>> {
        self.latest.changed().await.ok()?;
        Some(self.latest.borrow_and_update().clone())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.followers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread.
struct Reader {
    source: Source,
    ledger: Ledger,
    handle: Handle,
    send: watch::Sender<Arc<Reading>>,
    history: Arc<Mutex<History>>,
    nudged: Receiver<()>,
    rail_changed: Arc<AtomicBool>,
    pace: Pace,
    followers: Arc<AtomicUsize>,
    notes: PerMinute,
    /// Whether changes were left out, and a line says so.
    left_out: bool,
}

impl Reader {
    fn run(mut self) {
        // The first reading was made at the start.
        let mut read_at = Instant::now();
        let mut rested = read_at;
        let mut due = read_at + self.pace.often;
        loop {
            match self.nudged.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(()) => {
                    let Pace { often, change, .. } = self.pace;
                    let rail_changed = self.rail_changed.load(Ordering::Relaxed);
                    due = due.min(read_at + if rail_changed { change } else { often }).max(rested);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Before the reading: a change that it misses causes the next one.
            self.rail_changed.store(false, Ordering::Relaxed);
            read_at = Instant::now();
            self.read();
            rested = Instant::now() + (REST * read_at.elapsed()).min(self.pace.seldom);
            let followed = self.followers.load(Ordering::Relaxed) > 0;
            due = rested.max(read_at + if followed { self.pace.often } else { self.pace.seldom });
        }
    }

    fn read(&mut self) {
        let mut host = read(&mut self.source, &self.handle);
        self.ledger.update(&mut host, &self.source.ports());
        let last = self.send.borrow().clone();
        host.rates(&last.document.host);
        self.note(rails::events(&last.document.host, &host));
        self.history.lock().add(&host);
        let reading = Reading::new((last.at, &last.document.host), host, &self.handle);
        self.send.send_replace(Arc::new(reading));
    }

    /// Logs changes of rails. Any process may show any, as often as it likes.
    fn note(&mut self, mut events: Vec<PortEvent>) {
        let (now, all) = (Instant::now(), events.len());
        if all == 0 {
            return;
        }
        events.retain(|_| self.notes.allows(now));
        let left_out = events.len() < all;
        let begins = left_out && !self.left_out;
        self.left_out = left_out;
        if events.is_empty() && !begins {
            return;
        }
        self.handle.change(|agent| {
            events.into_iter().for_each(|(kind, port, text)| agent.note(kind, &port, text));
            if begins {
                agent.log(format!(
                    "more than {NOTES} changes of rails in a minute; the others are not logged"
                ));
            }
        });
    }
}

/// Reads the pages that processes have passed.
fn read(source: &mut Source, handle: &Handle) -> Host {
    let pages = handle.pages();
    let passed = pages.iter().map(|page| Passed {
        pid: page.pid,
        uid: page.uid,
        owner: &page.owner,
        page: &page.stats,
    });
    let passed: Vec<_> = passed.collect();
    Host { not_permitted: handle.read(Agent::without_page), ..source.passed(&passed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// A process whose page shows a port down and up without pause.
    #[test]
    fn changes_without_pause_do_not_flood_the_log() {
        let handle = Handle::new(Agent::new(Config::default(), None, Default::default())).unwrap();
        let reading = Arc::new(Reading::new((Instant::now(), &Host::default()), Host::default(), &handle));
        let pace = Pace { often: Duration::ZERO, seldom: Duration::ZERO, change: Duration::ZERO };
        let mut reader = Reader {
            source: Source::default(),
            ledger: Ledger::default(),
            handle: handle.clone(),
            send: watch::channel(reading).0,
            history: Arc::default(),
            nudged: sync_channel(1).1,
            rail_changed: Arc::default(),
            pace,
            followers: Arc::default(),
            notes: PerMinute::new(NOTES),
            left_out: false,
        };
        for n in 0..30 {
            let event =
                |i| (crate::EventKind::RailDown, format!("d{i}:1"), format!("port d{i}:1 is down, {n}"));
            reader.note((0..10).map(event).collect());
        }
        let texts: Vec<String> =
            handle.read(Agent::snapshot).events.into_iter().map(|event| event.text).collect();
        assert_eq!(texts.iter().filter(|text| text.contains("is down")).count(), NOTES);
        let reported = texts.iter().filter(|text| text.contains("the others are not logged"));
        assert_eq!(reported.count(), 1, "{texts:?}");
    }

    //= why.md: an answer compares two readings of the last seconds
    #[test]
    fn what_waits_now_is_not_compared_with_what_moved_long_ago() {
        let hour = Duration::from_secs(3600);
        let pace = Pace { often: Duration::ZERO, seldom: hour, change: Duration::ZERO };
        let handle = Handle::new(Agent::new(Config::default(), None, Default::default())).unwrap();
        let readings = Readings::start_at(pace, Source::default(), handle).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let asked = Instant::now();
        let reading = runtime.block_on(readings.of_now());
        assert!(reading.before >= asked, "compared with a reading of {:?} before", asked - reading.before);
    }

    /// An hour is never waited for: the reading comes for the change of the rail alone.
    //= agent-interface.md: a change of a rail is in the stream at once
    #[test]
    fn a_change_of_a_rail_is_read_before_the_next_reading_is_due() {
        let hour = Duration::from_secs(3600);
        let pace = Pace { often: hour, seldom: hour, change: Duration::ZERO };
        let handle = Handle::new(Agent::new(Config::default(), None, Default::default())).unwrap();
        let readings = Readings::start_at(pace, Source::default(), handle.clone()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut follower = readings.follow();
        // Only a failing test waits this long.
        let mut next = || {
            let next = async { tokio::time::timeout(Duration::from_secs(30), follower.next()).await };
            runtime.block_on(next).expect("a reading").unwrap()
        };
        let first = next();
        for _ in 0..3 {
            readings.nudge();
            handle.rail_changed();
            assert!(next().at > first.at);
        }
        drop((readings, follower));
        // Nobody is left to read.
        handle.rail_changed();
    }
}
