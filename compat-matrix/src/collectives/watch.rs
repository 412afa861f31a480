//! What watches a communicator: NCCL's RAS, which is queried while the ranks run, its profiler, and
//! its log.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    time::Duration,
};

use softcuda::{profiler::Counts, world::Director};

use super::plan::Plan;
use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
};

/// How long RAS may take for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Queries RAS after the first lap.
#[derive(Debug)]
pub(super) struct Inquiry {
    address: SocketAddrV4,
    ranks: u32,
    answer: Option<Result<String>>,
}

impl Inquiry {
    /// Chooses a free port of the loopback, on which a rank will listen.
    pub(super) fn new(ranks: u32) -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let port = free.cannot("find a free port")?.port();
        Ok(Self { address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), ranks, answer: None })
    }

    /// Returns the address for `NCCL_RAS_ADDR`.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns what RAS reported.
    pub(super) fn result(self) -> Result<String> {
        self.answer.unwrap_or_else(|| Err(Failure::wrong("the ranks ended before RAS was queried")))
    }

    /// Requests the status by the text protocol of NCCL's client `ncclras`.
    fn ask(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address.into(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        stream.write_all(b"CLIENT PROTOCOL 2\n")?;
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if !line.starts_with("SERVER PROTOCOL ") {
            return Err(io::Error::other(format!("expected the server's protocol, got {line:?}")));
        }
        stream.write_all(b"VERBOSE STATUS\n")?;
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Director for Inquiry {
    fn lap(&mut self, _: &[u32]) -> io::Result<bool> {
        let status = self.ask().map_err(|e| Failure::wrong(format!("RAS at {}: {e}", self.address)));
        self.answer = Some(status.and_then(|status| judge(&status, self.ranks)));
        Ok(false)
    }

    fn tick(&mut self, _: &[u32]) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that the status has one communicator, with every rank and without an error.
fn judge(status: &str, ranks: u32) -> Result<String> {
    let found: Vec<_> = status.lines().filter_map(communicator).collect();
    let all = |row: &&Row| row.ranks == ranks && row.errors == "OK";
    match found.iter().find(all) {
        Some(Row { ranks, .. }) if found.len() == 1 => {
            Ok(format!("RAS has one communicator of {ranks} ranks"))
        }
        _ => Err(Failure::wrong(format!(
            "expected one communicator of {ranks} ranks without an error, RAS has {found:?} in {status:?}"
        ))),
    }
}

/// A line of the table of communicators.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    ranks: u32,
    errors: String,
}

/// Reads a line of the table: its number, communicators, nodes, ranks of a node, ranks of the
/// communicator, ranks of all communicators, status and errors.
fn communicator(line: &str) -> Option<Row> {
    let cells: Vec<_> = line.split_whitespace().collect();
    let [_, _, _, _, ranks, all, status, errors] = cells[..] else { return None };
    let is_row = status.chars().all(|c| c.is_ascii_uppercase()) && all.parse::<u32>().is_ok();
    is_row.then(|| Some(Row { ranks: ranks.parse().ok()?, errors: errors.to_owned() }))?
}

/// Checks the channels of collectives in a rank's log.
pub(super) fn check_channels(log: &str, wanted: u32) -> std::result::Result<(), String> {
    let number = |line: &str| line.split_once(" coll channels")?.0.rsplit(' ').next()?.parse::<u32>().ok();
    match log.lines().find_map(number) {
        Some(found) if found == wanted => Ok(()),
        found => Err(format!("expected {wanted} channels of collectives, found {found:?}")),
    }
}

/// Checks what the profiler of a rank has counted.
pub(super) fn check_profile(report: &str) -> std::result::Result<(), String> {
    match Counts::parse(report) {
        None => Err(format!("the profiler has reported {report:?}")),
        Some(counts) if counts.started == 0 || counts.stopped != counts.started || counts.other > 0 => {
            Err(format!("not every event of the plugin is one of a queue pair that ends: {counts:?}"))
        }
        Some(_) => Ok(()),
    }
}

/// Returns whether the profiler counts. A release passes it to its network plugin from table v10 on.
pub(super) fn profiles(plan: &Plan, release: &Release) -> bool {
    plan.variant.profiler && release.table >= 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING      OK
";

    #[test]
    fn every_rank_must_be_in_the_communicator() {
        assert_eq!(judge(STATUS, 2).unwrap(), "RAS has one communicator of 2 ranks");
        assert!(judge(STATUS, 3).is_err());
        assert!(judge(&STATUS.replace("      OK", "INCOMPLETE"), 2).is_err());
        assert!(judge("", 2).is_err());
    }

    #[test]
    fn every_event_of_the_profiler_must_end() {
        assert_eq!(check_profile("3 3 0"), Ok(()));
        for report in ["", "0 0 0", "3 2 0", "3 4 0", "3 3 1"] {
            assert!(check_profile(report).is_err(), "{report:?}");
        }
    }

    #[test]
    fn the_channels_are_those_of_collectives() {
        let log = "x NCCL INFO 32 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer\n";
        assert_eq!(check_channels(log, 32), Ok(()));
        assert!(check_channels(log, 16).is_err() && check_channels("", 32).is_err());
    }
}
