//! What the tools of softverbs and of the plugin report about running ranks.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

use crate::failure::{Context, Failure, Result};

/// The simulated fabric of a communicator.
#[derive(Debug)]
pub(super) struct Fabric {
    name: String,
    control: PathBuf,
    mpib: PathBuf,
}

/// What softverbs counts for a device in a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Requests {
    /// Work requests that the process has posted.
    pub(super) posted: u64,
    /// Faults that have struck.
    pub(super) struck: u64,
}

/// What the plugin in a process counts for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) healthy: bool,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Of all ports: times that a connection carried on without a rail, and ports that came back.
    pub(super) episodes: u64,
    pub(super) returns: u64,
}

impl Traffic {
    /// Returns whether data has passed since `back`, in each direction that was in use before the
    /// fault.
    pub(super) fn carries(&self, back: &Self, before: &Self) -> bool {
        let directions =
            [(before.sent, back.sent, self.sent), (before.received, back.received, self.received)];
        let stands_still = |(before, back, now): &(u64, u64, u64)| *before > 0 && now == back;
        directions.iter().any(|(_, back, now)| now > back) && !directions.iter().any(stands_still)
    }
}

impl Fabric {
    /// Names the fabric whose tools are in the folder of "make build".
    pub(super) fn new(name: &str, build: &Path) -> Self {
        let control = build.join("softverbs/softverbs-ctl");
        Self { name: name.to_owned(), control, mpib: build.join("mpib") }
    }

    fn control(&self, arguments: &[&str]) -> Result<String> {
        output(Command::new(&self.control).args(["--fabric", &self.name]).args(arguments))
    }

    /// Lets a fault wait for a work request of a process, 1 being the next one.
    pub(super) fn arm(&self, device: &str, fault: &str, at: u64, process: u32) -> Result<()> {
        let (at, process) = (format!("at={at}"), process.to_string());
        self.control(&["fault", device, fault, &at, "--pid", &process]).map(drop)
    }

    pub(super) fn link_down(&self, device: &str) -> Result<()> {
        self.control(&["link", device, "down"]).map(drop)
    }

    pub(super) fn slow_down(&self, device: &str, rate: &str) -> Result<()> {
        self.control(&["rate", device, rate]).map(drop)
    }

    pub(super) fn heal(&self, device: &str) -> Result<()> {
        self.control(&["heal", device]).map(drop)
    }

    pub(super) fn requests(&self, device: &str, process: u32) -> Result<Requests> {
        let list = self.control(&["list"])?;
        requests(&list, device, process)
            .ok_or_else(|| Failure::tool(format!("process {process} of {device} is not in:\n{list}")))
    }

    /// Returns the statistics of a process. `port` is the name of the adapter.
    pub(super) fn traffic(&self, port: &str, process: u32) -> Result<Traffic> {
        let json = output(Command::new(&self.mpib).args(["stats", &process.to_string(), "--json"]))?;
        traffic(&json, port)
    }
}

/// Runs a tool. Returns its stdout.
fn output(command: &mut Command) -> Result<String> {
    let done = command.output().cannot(format!("start {}", command.get_program().display()))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    Err(Failure::tool(format!("{command:?}: {}: {}", done.status, stderr.trim())))
}

/// Finds a process of a device in the text of `softverbs-ctl list`.
fn requests(list: &str, device: &str, process: u32) -> Option<Requests> {
    let of_device = list.lines().skip_while(|line| !line.starts_with(&format!("{device}: ")));
    let own = of_device.skip(1).take_while(|line| line.starts_with(' '));
    let line = own.map(str::trim).find(|line| line.starts_with(&format!("process {process}: ")))?;
    let before = |word: &str| {
        let (left, _) = line.split_once(word)?;
        left.rsplit([' ', ',']).next()?.parse().ok()
    };
    Some(Requests { posted: before(" work requests")?, struck: before(" struck")? })
}

fn traffic(json: &str, port: &str) -> Result<Traffic> {
    /// Members of the document that `docs/guide/stats.schema.json` describes.
    #[derive(Deserialize)]
    struct Host {
        ports: Vec<Port>,
        failover: Failover,
    }
    #[derive(Deserialize)]
    struct Port {
        device: String,
        state: String,
        bytes_sent: u64,
        parts_received: u64,
    }
    #[derive(Deserialize)]
    struct Failover {
        episodes: u64,
        returns: u64,
    }
    let Host { ports, failover } = serde_json::from_str(json).cannot("read the statistics of a rank")?;
    let own: Vec<_> = ports.iter().filter(|p| p.device == port).collect();
    let [Port { state, bytes_sent: sent, parts_received: received, .. }] = own[..] else {
        return Err(Failure::tool(format!(
            "expected one port of {port} in the statistics, found {}",
            own.len()
        )));
    };
    let Failover { episodes, returns } = failover;
    Ok(Traffic { healthy: state == "healthy", sent: *sent, received: *received, episodes, returns })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
sout@10.9.0.1: no fault
  roce_adp_retrans 0, local_ack_timeout_err 0, packet_seq_err 0, rnr_nak_retry_err 0
  process 7: 10 work requests posted, 9 of them writes; faults: 2 armed, 1 struck
sup@10.9.1.1: down
  roce_adp_retrans 0, local_ack_timeout_err 0, packet_seq_err 0, rnr_nak_retry_err 0
  process 7: 300 work requests posted, 9 of them writes; faults: 0 armed, 4 struck
  process 77: 5 work requests posted, 5 of them writes; faults: 0 armed, 0 struck
";

    #[test]
    fn a_process_is_found_below_its_device() {
        let found = |device, process| requests(LIST, device, process);
        assert_eq!(found("sout@10.9.0.1", 7), Some(Requests { posted: 10, struck: 1 }));
        assert_eq!(found("sup@10.9.1.1", 7), Some(Requests { posted: 300, struck: 4 }));
        assert_eq!(found("sup@10.9.1.1", 77), Some(Requests { posted: 5, struck: 0 }));
        assert_eq!(found("sout@10.9.0.1", 77), None, "it has the other device only");
        assert_eq!(found("sup@10.9.1.2", 7), None);
    }

    #[test]
    fn a_rail_carries_data_if_each_direction_does_that_did_before() {
        let of = |sent, received| Traffic { healthy: true, sent, received, episodes: 0, returns: 0 };
        let back = of(10, 10);
        assert!(of(11, 11).carries(&back, &of(1, 1)));
        assert!(!of(11, 10).carries(&back, &of(1, 1)), "nothing was received");
        assert!(!of(10, 11).carries(&back, &of(1, 1)), "nothing was sent");
        assert!(of(10, 11).carries(&back, &of(0, 1)), "the rank only receives");
        assert!(!of(10, 10).carries(&back, &of(0, 0)));
    }

    #[test]
    fn the_port_of_the_device_is_read() {
        let port = |name: &str, state: &str, sent: u32| {
            format!(
                "{{\"device\":\"{name}\",\"state\":\"{state}\",\"bytes_sent\":{sent},\"parts_received\":3}}"
            )
        };
        let ports = [port("sout", "down", 1), port("sup", "healthy", 2)].join(",");
        let json = format!("{{\"ports\":[{ports}],\"failover\":{{\"episodes\":5,\"returns\":4}}}}");
        let expected = Traffic { healthy: true, sent: 2, received: 3, episodes: 5, returns: 4 };
        assert_eq!(traffic(&json, "sup").unwrap(), expected);
        assert!(!traffic(&json, "sout").unwrap().healthy);
        assert!(traffic(&json, "other").is_err());
    }
}
