//! What the screen shows of a document: order, filter, place, and the keys that change them.

use std::cmp::Ordering;

use clap::ValueEnum;
use mpib_host_view::{Connection, Host, Process};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::output::columns::peer;

/// Order of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// Bytes per second, the fastest first
    Rate,
    /// Bytes so far, the most first
    Bytes,
    /// Requests in flight, the most first
    Flight,
    /// Time that they wait, the longest first
    Waits,
    /// Errors, the most first
    Errors,
    /// Process, the lowest number first
    Pid,
    /// Name of the peer
    Peer,
}

/// What a key requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    None,
    Draw,
    Quit,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_typing: bool,
    paused: bool,
    /// Connections above the first one that is shown.
    pub(super) scrolled: usize,
}

impl View {
    pub(super) fn new(sort: Sort, filter: &str) -> Self {
        Self { sort, is_reversed: false, filter: filter.into(), is_typing: false, paused: false, scrolled: 0 }
    }

    /// Returns whether readings are paused.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Command {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Command::Quit } else { Command::None };
        }
        if self.is_typing {
            self.edit(key.code);
            return Command::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Command::Quit,
            KeyCode::Char('s') => self.sort = self.sort.step(1),
            KeyCode::Char('S') => self.sort = self.sort.step(Sort::value_variants().len() - 1),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(10),
            KeyCode::Home => self.scrolled = 0,
            _ => return Command::None,
        }
        Command::Draw
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
    }

    /// Returns the connections that fit the filter, in their order.
    pub(super) fn connections<'a>(&self, host: &'a Host) -> Vec<(&'a Process, &'a Connection)> {
        let all = host.processes.iter().flat_map(|p| p.connections.iter().map(move |c| (p, c)));
        let mut fitting: Vec<_> = all.filter(|(p, c)| self.fits(p, c)).collect();
        fitting.sort_by(|a, b| self.order(a, b));
        fitting
    }

    fn fits(&self, p: &Process, c: &Connection) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&self.filter.to_lowercase());
        let user = p.user.as_deref().unwrap_or_default();
        self.filter.is_empty()
            || [&p.command, user, &p.pid.to_string(), &c.peer, &peer(&c.peer), &c.direction, &c.state]
                .into_iter()
                .any(has)
            || c.rails.iter().any(|rail| has(&rail.name))
    }

    fn order(&self, a: &(&Process, &Connection), b: &(&Process, &Connection)) -> Ordering {
        let ((p, c), (q, d)) = (a, b);
        let rate = |c: &Connection| c.bytes_per_second.unwrap_or(0.0);
        let errors = |c: &Connection| c.errors + c.rails.iter().map(|rail| rail.errors).sum();
        let since = |c: &Connection| c.wait.as_ref().map_or(u64::MAX, |wait| wait.since_ms);
        let order = match self.sort {
            Sort::Rate => rate(d).total_cmp(&rate(c)),
            Sort::Bytes => d.bytes.cmp(&c.bytes),
            Sort::Flight => d.in_flight.cmp(&c.in_flight),
            Sort::Waits => since(c).cmp(&since(d)),
            Sort::Errors => errors(d).cmp(&errors(c)),
            Sort::Pid => Ordering::Equal,
            Sort::Peer => peer(&c.peer).cmp(&peer(&d.peer)),
        };
        let order = if self.is_reversed { order.reverse() } else { order };
        // Equal ones keep their places from one frame to the next.
        order.then((p.pid, c.index).cmp(&(q.pid, d.index)))
    }
}

impl Sort {
    fn step(self, by: usize) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|sort| *sort == self).unwrap_or(0);
        all[(at + by) % all.len()]
    }

    /// Returns the name for the screen.
    pub(super) fn word(self) -> &'static str {
        ["rate", "bytes", "flight", "waits", "errors", "pid", "peer"][self as usize]
    }
}
