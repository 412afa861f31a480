//! Rates between two readings.

use std::collections::HashMap;

use crate::{Connection, Count, Host, Port, Process, TwoWays};

impl Host {
    /// Computes the rates since an earlier reading, of what existed then.
    pub fn rates(&mut self, before: &Self) {
        let seconds = self.at_ms.saturating_sub(before.at_ms) as f64 / 1e3;
        if seconds <= 0.0 {
            return;
        }
        self.interval_seconds = Some(seconds);
        let rate = |now: Count, then: Count| Some(now.since(then) as f64 / seconds);
        totals(&mut self.totals, &before.totals, rate);
        ports(&mut self.ports, &before.ports, rate);
        let key = |process: &Process| (process.pid, process.made_ms);
        let old: HashMap<_, _> = before.processes.iter().map(|process| (key(process), process)).collect();
        for process in &mut self.processes {
            let Some(old) = old.get(&key(process)) else { continue };
            totals(&mut process.totals, &old.totals, rate);
            ports(&mut process.ports, &old.ports, rate);
            connections(&mut process.connections, &old.connections, rate);
        }
    }
}

fn totals(now: &mut TwoWays, before: &TwoWays, rate: impl Fn(Count, Count) -> Option<f64>) {
    for (now, before) in [(&mut now.send, &before.send), (&mut now.recv, &before.recv)] {
        now.messages_per_second = rate(now.messages, before.messages);
        now.bytes_per_second = rate(now.bytes, before.bytes);
    }
}

fn ports(now: &mut [Port], before: &[Port], rate: impl Fn(Count, Count) -> Option<f64>) {
    let old: HashMap<_, _> = before.iter().map(|port| (&port.name, &port.counts)).collect();
    for port in now {
        let Some(old) = old.get(&port.name) else { continue };
        port.bytes_sent_per_second = rate(port.counts.bytes_sent, old.bytes_sent);
        port.parts_sent_per_second = rate(port.counts.parts_sent, old.parts_sent);
        port.parts_received_per_second = rate(port.counts.parts_received, old.parts_received);
    }
}

fn connections(now: &mut [Connection], before: &[Connection], rate: impl Fn(Count, Count) -> Option<f64>) {
    let old: HashMap<_, _> = before.iter().map(|c| ((c.index, c.generation.0), c)).collect();
    for c in now {
        let Some(old) = old.get(&(c.index, c.generation.0)) else { continue };
        c.messages_per_second = rate(c.messages, old.messages);
        c.bytes_per_second = rate(c.bytes, old.bytes);
        for (rail, old) in c.rails.iter_mut().zip(&old.rails) {
            let (Some(now), Some(then)) = (rail.bytes, old.bytes) else { continue };
            rail.bytes_per_second = rate(now, then);
        }
    }
}
