//! What each connection has done, in a page that other processes read: `agent-iface` has its layout.
//!
//! The page belongs to the process and outlives `finalize`, as its connections do. Counting is plain stores by whoever has the
//! comm's state; without a page, or with `MPIB_STATS=0`, it is one comparison.

use std::sync::atomic::{AtomicBool, Ordering};

use nccl_net_mpib_agent_iface::stats::{
    ConnectionEntry, Data, Direction, Entry, Event, Islands, NewConnection, StatsWriter,
};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::policy::Plan;
use crate::proto::RailRole;
use crate::route::Class;
use crate::verbs::{About, AsyncEvent};
use crate::warned::{Subject, Warned};

/// Returns the page, which has the process's id in its name: one for all instances of the plugin.
fn page() -> std::io::Result<&'static StatsWriter> {
    StatsWriter::for_this_process(env!("CARGO_PKG_VERSION"))
}

/// Whether a process's events are counted.
#[derive(Debug, Default)]
pub struct Stats {
    /// An init requested the page, and the page is there.
    counts: AtomicBool,
}

impl Stats {
    /// Makes the page, unless the settings want none or it is there. Logs once if the page cannot
    /// be made.
    ///
    /// # Errors
    /// With `MPIB_STRICT=1`: the page cannot be made.
    pub fn init(&self, config: &Config, warned: &Warned) -> Result<()> {
        let Some(page) = config.stats.then(page) else { return Ok(()) };
        let Err(e) = page else {
            self.counts.store(true, Ordering::Relaxed);
            return Ok(());
        };
        let what = format!("no statistics page can be made (set MPIB_STATS=0 to do without): {e}");
        let what = config.degraded(what)?;
        if warned.once(Subject::StatsPage) {
            tracing::warn!(target: "init", "{what}; mpib stats will not show this process");
        }
        Ok(())
    }

    /// Counts an event of an adapter.
    pub fn event(&self, event: &AsyncEvent) {
        let kind = match event {
            e if e.is_link_down() => Event::LinkDown,
            e if e.is_link_up() => Event::LinkUp,
            e if e.is_table() => Event::Table,
            e if e.is_fatal() && e.about == About::Device => Event::Device,
            e if e.is_fatal() => Event::Queue,
            _ => Event::Other,
        };
        if self.counts.load(Ordering::Relaxed)
            && let Ok(page) = page()
        {
            page.event(kind);
        }
    }
}

/// One end of a connection, counted or not.
#[derive(Debug, Default)]
pub struct Counters {
    entry: Option<&'static Entry>,
    /// Gives the entry back, or was only counted as a connection without one.
    _taken: Option<ConnectionEntry>,
}

impl Counters {
    /// Begins to count. `rails`: of each its index in the device, and its HCA and port; `elsewhere`: NCCL did not ask for
    /// one of them.
    pub fn open(
        config: &Config,
        direction: Direction,
        plan: Plan,
        peer: &str,
        rails: &[(RailRole, &str)],
        elsewhere: bool,
    ) -> Self {
        // That there is no page was told at init.
        let Some(page) = config.stats.then(|| page().ok()).flatten() else { return Self::default() };
        let class = |class| match class {
            Class::Intra => Islands::Same,
            Class::Inter => Islands::Two,
        };
        let (islands, data) = match plan {
            Plan::Plain => (Islands::Unknown, Data::Plain),
            Plan::Isolated(c) => (class(c), Data::OneRail),
            Plan::Shared(c) => (class(c), Data::Split),
        };
        let rails: Vec<_> = rails.iter().map(|(role, name)| (role.index(), *name)).collect();
        let taken = page.add(&NewConnection {
            direction,
            islands,
            data,
            peer,
            rails: &rails,
            substituted: elsewhere,
        });
        Self { entry: taken.entry(), _taken: Some(taken) }
    }

    /// A call gave a request; a send goes by `share`, if by any.
    #[inline]
    pub fn request(&self, share: Option<u16>) {
        let Some(entry) = self.entry else { return };
        entry.request();
        if let Some(share) = share {
            entry.share(share);
        }
    }

    /// test told that a request is done, with so many messages of so many bytes in all.
    #[inline]
    pub fn done(&self, messages: usize, bytes: usize) {
        self.entry.iter().for_each(|entry| entry.done(messages, bytes));
    }

    /// A send that finds no receive gives no request.
    #[inline]
    pub fn no_receive<T>(&self) -> Option<T> {
        self.entry.iter().for_each(|entry| entry.wait_for_peer());
        None
    }

    /// A call that finds no room gives no request.
    #[inline]
    pub fn no_room<T>(&self) -> Option<T> {
        self.entry.iter().for_each(|entry| entry.wait_for_queue());
        None
    }

    /// Work requests were posted on a rail, `parts` of which carry so many bytes of messages.
    #[inline]
    pub fn posted(&self, rail: usize, work_requests: usize, parts: usize, bytes: usize) {
        self.entry.iter().for_each(|entry| entry.rail(rail).posted(work_requests, parts, bytes));
    }

    /// A work request was posted on a rail that carries nothing of a message.
    #[inline]
    pub fn posted_bare(&self, rail: usize) {
        self.entry.iter().for_each(|entry| entry.rail(rail).posted_bare());
    }

    /// So many work requests of a rail are known to be done.
    #[inline]
    pub fn completed(&self, rail: usize, work_requests: u32) {
        self.entry.iter().for_each(|entry| entry.rail(rail).completed(work_requests));
    }

    /// A message, or a part of one, arrived on a rail.
    #[inline]
    pub fn arrived(&self, rail: usize) {
        self.entry.iter().for_each(|entry| entry.rail(rail).arrived());
    }

    /// A completion of a rail told an error.
    #[cold]
    pub fn rail_error(&self, rail: usize) {
        self.entry.iter().for_each(|entry| entry.rail(rail).error());
    }

    /// A call failed, and with it the connection.
    #[cold]
    pub fn failure(&self, why: &Error) {
        self.entry.iter().for_each(|entry| entry.failure(&why.to_string()));
    }
}
