//! What has become of ports between two readings.

use mpib_host_view::{Host, Port};

use crate::EventKind;

/// An event of a port: its kind, the port, and the line of the log.
pub(super) type PortEvent = (EventKind, String, String);

/// Returns what has happened to the ports. A failure that begins and ends between two readings is
/// seen by its episodes.
pub(super) fn events(before: &Host, now: &Host) -> Vec<PortEvent> {
    now.ports
        .iter()
        .flat_map(|port| of_port(before.ports.iter().find(|old| old.name == port.name), port))
        .collect()
}

fn of_port(before: Option<&Port>, now: &Port) -> Vec<PortEvent> {
    let name = &now.name;
    let mut events = Vec::new();
    // A port that is seen for the first time is news only if it is not well.
    let old = before.map_or("healthy", |port| &port.state);
    if let Some((kind, what)) = change(old, &now.state) {
        // A cause may begin with the port.
        let cause =
            now.cause.as_deref().map(|cause| cause.strip_prefix(&format!("{name}: ")).unwrap_or(cause));
        let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
        events.push((kind, name.clone(), format!("port {name} is {what}{cause}")));
    }
    let Some(before) = before else { return events };
    for (reason, count) in &now.counts.episodes {
        let new = count.since(before.counts.episodes.get(reason).copied().unwrap_or_default());
        if new > 0 {
            let ends = if new == 1 { "one connection end".into() } else { format!("{new} connection ends") };
            let text = format!("{ends} carried on without port {name} ({reason})");
            events.push((EventKind::Failover, name.clone(), text));
        }
    }
    events
}

/// Returns what a change of state means. The port of a job that has ended is `unused`.
fn change(old: &str, new: &str) -> Option<(EventKind, &'static str)> {
    match (old, new) {
        (old, new) if old == new => None,
        (_, "down") => Some((EventKind::RailDown, "down")),
        (_, "suspect") => Some((EventKind::RailDown, "suspect")),
        (_, "probing") => Some((EventKind::RailProbing, "probed")),
        ("unused", _) => None,
        (_, "healthy") => Some((EventKind::RailBack, "healthy again")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mpib_host_view::Count;

    use super::*;

    fn host(state: &str, stalls: u64) -> Host {
        let mut port = Port { name: "p:1".into(), state: state.into(), ..Port::default() };
        port.cause = (state != "healthy").then(|| "p:1: no link".into());
        port.counts.episodes.insert("stall".into(), Count(stalls));
        Host { ports: vec![port], ..Host::default() }
    }

    //= agent-interface.md: events of rails come from the differences between readings
    #[test]
    fn changes_of_a_port_are_events() {
        let between = |old: &Host, new: &Host| -> Vec<_> {
            events(old, new).into_iter().map(|(kind, _, text)| (kind, text)).collect()
        };
        let line = |kind, text: &str| vec![(kind, text.to_owned())];
        let (well, down) = (host("healthy", 0), host("down", 0));
        assert_eq!(between(&Host::default(), &well), []);
        assert_eq!(between(&Host::default(), &down), line(EventKind::RailDown, "port p:1 is down: no link"));
        assert_eq!(between(&well, &well), []);
        assert_eq!(between(&well, &down), line(EventKind::RailDown, "port p:1 is down: no link"));
        let probing = line(EventKind::RailProbing, "port p:1 is probed: no link");
        assert_eq!(between(&down, &host("probing", 0)), probing);
        assert_eq!(between(&down, &well), line(EventKind::RailBack, "port p:1 is healthy again"));
        let flap = line(EventKind::Failover, "2 connection ends carried on without port p:1 (stall)");
        assert_eq!(between(&well, &host("healthy", 2)), flap);
        // A job that ends with a port down, and the next one.
        assert_eq!(between(&down, &host("unused", 0)), []);
        assert_eq!(between(&host("unused", 0), &well), []);
    }
}
