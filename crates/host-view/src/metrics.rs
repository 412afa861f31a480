//! The metrics of a document, as text for Prometheus.
//!
//! The text is Prometheus' own format (`text/plain; version=0.0.4`), which Prometheus, the textfile
//! collector of node_exporter, and promtool read.

use std::collections::BTreeMap;

use nccl_net_mpib_agent_iface::stats::Awaited;
use nccl_net_mpib_agent_iface::{COMMIT, WIRE_PROTOCOL};
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::jobs::OTHERS;
use crate::model::{Connection, Job, Port, Stalls, Totals};
use crate::sysfs::counters;
use crate::verdict::{by_port, reasons};
use crate::{Count, Host, peer_process};

/// The most values of the label `peer`. All other peers are together in `other`.
pub const MAX_PEERS: usize = 256;

/// What is formatted on request only.
#[derive(Debug, Clone, Copy, Default)]
pub struct MetricsOptions {
    /// Metrics for each peer.
    pub per_peer: bool,
}

/// A metric as the manual has it.
struct Description {
    name: &'static str,
    kind: MetricType,
    labels: &'static [&'static str],
    help: &'static str,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        /// The metrics, in the order of the text.
        #[derive(Debug, Clone, Copy)]
        enum Id { $($id),+ }

        const METRICS: &[Description] = &[$(
            Description { name: $name, kind: MetricType::$kind, labels: &[$($label),*], help: $help }
        ),+];
    };
}

metrics! {
    BuildInfo = GAUGE "mpib_build_info" ["version", "commit", "protocol"] "Version, commit and wire protocol of the program that has read the statistics; always 1";
    Processes = GAUGE "mpib_processes" [] "Processes whose statistics are read";
    NotPermitted = GAUGE "mpib_processes_not_permitted" [] "Processes that this user may not inspect; of an agent: those that have passed no statistics page";
    NotInspected = GAUGE "mpib_processes_not_inspected" [] "Processes that were not inspected, since their user or the host has too many pages";
    Unreadable = GAUGE "mpib_processes_unreadable" [] "Processes whose statistics cannot be read";
    Connections = GAUGE "mpib_connections" [] "Open connections: one for each end and direction";
    FailedConnections = GAUGE "mpib_connections_failed" [] "Open connections that have failed";
    Opened = COUNTER "mpib_connections_opened_total" [] "Connections made";
    Requests = COUNTER "mpib_requests_total" ["direction"] "Requests that isend, irecv or iflush returned";
    Messages = COUNTER "mpib_messages_total" ["direction"] "Messages of requests that are done";
    MessageBytes = COUNTER "mpib_message_bytes_total" ["direction"] "Bytes of these messages";
    Waits = COUNTER "mpib_waits_total" ["direction", "reason"] "Calls that returned no request: they wait for the peer's receive, or for room in a queue";
    OldestWait = GAUGE "mpib_oldest_wait_seconds" ["for"] "How long the open connection has waited that has waited for the longest: for a receive of the peer, data of requests that are outstanding, a rail, or room in a queue. 0 if none waits";
    FailedCalls = COUNTER "mpib_failed_calls_total" ["direction"] "Calls that failed, and with them their connection";
    Events = COUNTER "mpib_adapter_events_total" ["event"] "Asynchronous events of adapters";
    Forged = COUNTER "mpib_forged_frames_total" [] "Frames of control connections with a wrong authentication tag";
    Returns = COUNTER "mpib_rail_returns_total" [] "Ports and routes that came back into use";
    JobProcesses = GAUGE "mpib_job_processes" ["user", "job"] "Processes that name the job: by MPIB_JOB, or as the scheduler does. At most 16 users and 8 jobs of each; the others are other";
    JobConnections = GAUGE "mpib_job_connections" ["user", "job"] "Their open connections";
    JobFailed = GAUGE "mpib_job_connections_failed" ["user", "job"] "Those that have failed";
    JobDegraded = GAUGE "mpib_job_connections_degraded" ["user", "job"] "Those that run without a rail that they expect";
    JobOldestWait = GAUGE "mpib_job_oldest_wait_seconds" ["user", "job", "for"] "How long the connection of the job has waited that has waited for the longest, as mpib_oldest_wait_seconds";
    JobBytes = COUNTER "mpib_job_message_bytes_total" ["user", "job", "direction"] "Bytes of the job's messages of requests that are done. Not of the job other";
    PortsNotShown = GAUGE "mpib_ports_not_shown" [] "Ports beyond the 64th, which have no metrics";
    State = GAUGE "mpib_rail_state" ["device", "port", "state"] "1 for the state that the port has: healthy, suspect, down or probing; of several processes the worst";
    RailConnections = GAUGE "mpib_rail_connections" ["device", "port"] "Open connections with a rail on the port";
    Degraded = GAUGE "mpib_connections_degraded" ["device", "port", "reason"] "Open connections that run without a rail on the port, which they expect. Reason: that of the episode, or connect: it has not worked since the connection was made; left_out: it is never used; drained";
    TransmitBytes = COUNTER "mpib_rail_transmit_bytes_total" ["device", "port"] "Bytes of messages that senders posted";
    TransmitParts = COUNTER "mpib_rail_transmit_parts_total" ["device", "port"] "Messages or parts of messages that senders posted";
    ReceiveParts = COUNTER "mpib_rail_receive_parts_total" ["device", "port"] "Messages or parts of messages that receivers received";
    WorkRequests = COUNTER "mpib_rail_work_requests_total" ["device", "port"] "Work requests posted";
    Errors = COUNTER "mpib_rail_errors_total" ["device", "port"] "Completions with an error";
    Goodput = GAUGE "mpib_rail_goodput_bytes_per_second" ["device", "port"] "What the port carried in the last second while it had something to carry: the sum of its processes. Absent if it was not measured";
    Weight = GAUGE "mpib_rail_weight_ratio" ["device", "port"] "Weight where messages are split, as a part of the sum over the ports with a weight. Absent if it is not measured";
    Scale = GAUGE "mpib_rail_scale_ratio" ["device", "port"] "Scale of the weight, 0 to 1: 0 means that the port gets no new data";
    Failovers = COUNTER "mpib_failovers_total" ["device", "port", "reason"] "Times that an end of a connection carried on without a rail on the port";
    Stall = HISTOGRAM "mpib_failover_stall_seconds" ["device", "port"] "Time from the loss of a rail until everything was sent again";
    Replayed = COUNTER "mpib_replayed_bytes_total" ["device", "port"] "Bytes that senders sent again after the loss of a rail on the port";
    Speed = GAUGE "mpib_port_speed_bytes_per_second" ["device", "port"] "Speed of the port";
    PortUp = GAUGE "mpib_port_up" ["device", "port"] "1 if the link of the port is ACTIVE, 0 if not, whether a job uses the port or not";
    LinkLost = GAUGE "mpib_port_link_lost" ["device", "port"] "1 if the port has no link, had one since the agent's start, and no administrator has set it down";
    PeerConnections = GAUGE "mpib_peer_connections" ["peer", "direction"] "Open connections with the host. On request only";
    PeerInFlight = GAUGE "mpib_peer_requests_in_flight" ["peer", "direction"] "Requests of these connections that are not done. On request only";
}

/// Formats a document.
pub fn metrics(host: &Host, options: MetricsOptions) -> String {
    let mut families = Families::new();
    of_host(&mut families, host);
    host.jobs.iter().for_each(|job| of_job(&mut families, job));
    let weights = host.ports.iter().filter_map(|port| port.weight).map(f64::from).sum();
    host.ports.iter().for_each(|port| of_port(&mut families, port, weights));
    of_degraded(&mut families, host);
    if options.per_peer {
        of_peers(&mut families, host);
    }
    families.text()
}

/// Returns the table of all metrics in Markdown.
pub fn manual() -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    let mut row = |name: &str, kind: MetricType, labels: &[&str], help: &str| {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = format!("{kind:?}").to_lowercase();
        table += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
    };
    METRICS.iter().for_each(|m| row(m.name, m.kind, m.labels, m.help));
    for (file, help) in counters() {
        row(&counter_name(file), MetricType::COUNTER, &["device", "port"], &counter_help(file, help));
    }
    table
}

fn counter_name(file: &str) -> String {
    format!("mpib_port_{}_total", file.strip_prefix("port_").unwrap_or(file))
}

fn counter_help(file: &str, help: &str) -> String {
    format!("{help} ({file} of the adapter)")
}

fn of_host(to: &mut Families, host: &Host) {
    let connections = || host.processes.iter().flat_map(|process| &process.connections);
    to.add(Id::BuildInfo, &[&host.mpib, COMMIT, &WIRE_PROTOCOL.to_string()], 1.0);
    to.add(Id::Processes, &[], host.processes.len() as f64);
    to.add(Id::NotPermitted, &[], host.not_permitted as f64);
    to.add(Id::NotInspected, &[], host.not_inspected as f64);
    to.add(Id::Unreadable, &[], host.unreadable.len() as f64);
    to.add(Id::Connections, &[], host.processes.iter().map(|p| f64::from(p.open)).sum());
    to.add(Id::FailedConnections, &[], connections().filter(|c| c.state == "failed").count() as f64);
    to.count(Id::Opened, &[], host.opened);
    for (direction, totals) in [("send", &host.totals.send), ("recv", &host.totals.recv)] {
        let Totals { requests, messages, bytes, waits_for_peer, waits_for_queue, errors, .. } = *totals;
        to.count(Id::Requests, &[direction], requests);
        to.count(Id::Messages, &[direction], messages);
        to.count(Id::MessageBytes, &[direction], bytes);
        to.count(Id::Waits, &[direction, "peer"], waits_for_peer);
        to.count(Id::Waits, &[direction, "queue"], waits_for_queue);
        to.count(Id::FailedCalls, &[direction], errors);
    }
    for what in Awaited::ALL {
        let waits = |c: &&Connection| c.wait.as_ref().is_some_and(|wait| wait.r#for == what.word());
        let oldest = connections().filter(waits).filter_map(|c| c.waited_ms(host.at_ms)).max();
        to.add(Id::OldestWait, &[what.word()], oldest.unwrap_or(0) as f64 / 1e3);
    }
    for event in nccl_net_mpib_agent_iface::stats::Event::ALL {
        let count = host.events.get(event.word()).copied().unwrap_or_default();
        to.count(Id::Events, &[event.word()], count);
    }
    to.count(Id::Forged, &[], host.forged_frames);
    to.count(Id::Returns, &[], host.failover.returns);
    to.add(Id::PortsNotShown, &[], host.ports_not_shown as f64);
}

fn of_job(to: &mut Families, job: &Job) {
    let labels = &[job.user.as_str(), job.job.as_str()];
    to.add(Id::JobProcesses, labels, job.processes.into());
    to.add(Id::JobConnections, labels, job.connections.into());
    to.add(Id::JobFailed, labels, job.failed.into());
    to.add(Id::JobDegraded, labels, job.degraded.into());
    for what in Awaited::ALL.iter().map(|what| what.word()) {
        let longest = job.waits_ms.get(what).copied().unwrap_or(0);
        to.add(Id::JobOldestWait, &[labels[0], labels[1], what], longest as f64 / 1e3);
    }
    if job.job == OTHERS {
        // Which jobs are among them changes: their sum is no counter.
        return;
    }
    for (direction, totals) in [("send", &job.totals.send), ("recv", &job.totals.recv)] {
        to.count(Id::JobBytes, &[labels[0], labels[1], direction], totals.bytes);
    }
}

fn of_port(to: &mut Families, port: &Port, weights: f64) {
    let number = port.port.to_string();
    let labels = &[port.device.as_str(), number.as_str()];
    let counts = &port.counts;
    for state in nccl_net_mpib_agent_iface::stats::PortState::ALL {
        let state = state.word();
        to.add(Id::State, &[labels[0], labels[1], state], f64::from(u8::from(port.state == state)));
    }
    to.add(Id::RailConnections, labels, port.connections.into());
    to.count(Id::TransmitBytes, labels, counts.bytes_sent);
    to.count(Id::TransmitParts, labels, counts.parts_sent);
    to.count(Id::ReceiveParts, labels, counts.parts_received);
    to.count(Id::WorkRequests, labels, counts.work_requests);
    to.count(Id::Errors, labels, counts.errors);
    if let Some(goodput) = port.goodput {
        to.count(Id::Goodput, labels, goodput);
    }
    if let Some(weight) = port.weight {
        to.add(Id::Weight, labels, f64::from(weight) / weights);
    }
    to.add(Id::Scale, labels, f64::from(port.scale) / 1024.0);
    for (reason, n) in &counts.episodes {
        to.count(Id::Failovers, &[labels[0], labels[1], reason], *n);
    }
    to.histogram(Id::Stall, labels, &counts.stalls);
    to.count(Id::Replayed, labels, counts.bytes_sent_again);
    let Some(adapter) = &port.adapter else { return };
    if let Some(speed) = adapter.speed {
        to.count(Id::Speed, labels, speed);
    }
    if let Some(up) = adapter.is_up() {
        to.add(Id::PortUp, labels, f64::from(u8::from(up)));
        to.add(Id::LinkLost, labels, f64::from(u8::from(adapter.link_lost_ms.is_some())));
    }
    for (i, (file, _)) in counters().enumerate() {
        if let Some(n) = adapter.counters.get(file).or_else(|| adapter.hw_counters.get(file)) {
            to.push(METRICS.len() + i, metric(&["device", "port"], labels, MetricType::COUNTER, n.0 as f64));
        }
    }
}

/// Counts the connections that lack a rail, by its port.
fn of_degraded(to: &mut Families, host: &Host) {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for lack in host.processes.iter().flat_map(|process| &process.connections).flat_map(by_port) {
        *counts.entry(lack.0).or_default() += 1;
    }
    for port in &host.ports {
        let number = port.port.to_string();
        for reason in reasons() {
            let n = counts.get(&(port.name.as_str(), reason)).copied().unwrap_or(0);
            to.add(Id::Degraded, &[&port.device, &number, reason], f64::from(n));
        }
    }
}

fn of_peers(to: &mut Families, host: &Host) {
    let mut peers: BTreeMap<(&str, &str), (u32, Count)> = BTreeMap::new();
    let mut known = std::collections::BTreeSet::new();
    for c in host.processes.iter().flat_map(|process| &process.connections) {
        let peer = host_of(&c.peer);
        let has_room = known.len() < MAX_PEERS || known.contains(peer);
        let peer = if has_room { peer } else { "other" };
        if has_room {
            known.insert(peer);
        }
        let (connections, in_flight) = peers.entry((peer, &c.direction)).or_default();
        (*connections, *in_flight) = (*connections + 1, *in_flight + c.in_flight);
    }
    for ((peer, direction), (connections, in_flight)) in peers {
        to.add(Id::PeerConnections, &[peer, direction], connections.into());
        to.count(Id::PeerInFlight, &[peer, direction], in_flight);
    }
}

/// Returns the host in the name of a peer. The port and the process would make a label of each
/// connection.
fn host_of(peer: &str) -> &str {
    peer_process(peer).map_or(peer, |(host, _)| host)
}

/// The metrics of one text, in the order of [`METRICS`] and then of [`counters`].
struct Families(Vec<MetricFamily>);

impl Families {
    fn new() -> Self {
        let family = |name: &str, kind: MetricType, help: &str| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_field_type(kind);
            family.set_help(help.to_owned());
            family
        };
        let own = METRICS.iter().map(|m| family(m.name, m.kind, m.help));
        let of_kernel = counters()
            .map(|(file, help)| family(&counter_name(file), MetricType::COUNTER, &counter_help(file, help)));
        Self(own.chain(of_kernel).collect())
    }

    fn push(&mut self, index: usize, metric: Metric) {
        self.0[index].mut_metric().push(metric);
    }

    fn add(&mut self, id: Id, labels: &[&str], value: f64) {
        let Description { labels: names, kind, .. } = METRICS[id as usize];
        self.push(id as usize, metric(names, labels, kind, value));
    }

    fn count(&mut self, id: Id, labels: &[&str], value: Count) {
        self.add(id, labels, value.0 as f64);
    }

    fn histogram(&mut self, id: Id, labels: &[&str], stalls: &Stalls) {
        let (mut buckets, mut sum) = (Vec::new(), Count(0));
        for (bound, n) in stalls.bounds_ms.iter().zip(&stalls.counts) {
            sum += *n;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound as f64 / 1e3);
            bucket.set_cumulative_count(sum.0);
            buckets.push(bucket);
        }
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(stalls.counts.iter().copied().sum::<Count>().0);
        histogram.set_sample_sum(stalls.sum_ms / 1e3);
        let mut metric = Metric::from_label(pairs(METRICS[id as usize].labels, labels));
        metric.set_histogram(histogram);
        self.push(id as usize, metric);
    }

    fn text(self) -> String {
        // The encoder refuses metrics without values.
        let families: Vec<_> = self.0.into_iter().filter(|family| !family.get_metric().is_empty()).collect();
        // It fails for metrics without a name or values, and for its output; none of this can be.
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }
}

fn pairs(names: &[&str], values: &[&str]) -> Vec<LabelPair> {
    let pair = |(name, value): (&&str, &&str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    names.iter().zip(values).map(pair).collect()
}

fn metric(names: &[&str], values: &[&str], kind: MetricType, value: f64) -> Metric {
    let mut metric = Metric::from_label(pairs(names, values));
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
