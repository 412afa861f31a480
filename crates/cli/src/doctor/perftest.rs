//! `ib_write_bw` of perftest between two ports: what they carry without the plugin. Each end starts it
//! with arguments that this file makes, for one of the host's ports.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, TcpListener},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nccl_net_mpib_agent_iface::doctor::{Link, Port};
use serde::{Deserialize, Serialize};

use super::{
    Document,
    peer::{MEASURED, PATIENCE},
    session::{Request, Session, ports},
};
use crate::failure::{Context, Failure, Kind};
use crate::perf::{Channel, no_cuda};
use crate::tool::{Ended, Running, find};

const PROGRAM: &str = "ib_write_bw";
/// How long its server may take until it listens.
const LISTENS: Duration = Duration::from_secs(10);
/// How long the two ends may take on top of the measurement: for memory, the connection and its end.
const AROUND: Duration = Duration::from_secs(10);
/// How long a server may run after its client has ended.
const AFTER: Duration = Duration::from_secs(3);
/// Longest measurement, and longest message, that another machine may request.
const MOST_SECONDS: u32 = 60;
const MOST_BYTES: usize = 64 << 20;
/// No port is faster, in Gb/s.
const FASTEST: f64 = 1e5;

/// What this host has of the programs and devices that checks need beside the plugin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tools {
    pub(crate) has_perftest: bool,
    /// Why no GPU can be used; `None` if one may.
    pub(crate) no_gpu: Option<String>,
}

impl Tools {
    pub(crate) fn here() -> Self {
        Self { has_perftest: find(PROGRAM, None).is_some(), no_gpu: no_cuda() }
    }
}

/// One end of a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct End {
    /// `hca:port` of the host that starts it.
    port: String,
    size: usize,
    seconds: u32,
    /// The TCP port on which the server listens at the other host, for its client. The server takes a
    /// free one.
    server: Option<u16>,
}

/// A measurement that the leading end requests.
#[derive(Debug, Clone)]
pub(crate) struct Measure {
    /// Ports as `hca:port`, of this host and the other one.
    pub(crate) ours: String,
    pub(crate) theirs: String,
    /// Whether this host sends.
    pub(crate) out: bool,
    pub(crate) size: usize,
    pub(crate) seconds: u32,
    /// How long it may take in all.
    pub(crate) limit: Duration,
}

impl End {
    /// Checks what another machine may have sent. Returns the port.
    fn checked<'a>(&self, mut ports: impl Iterator<Item = &'a Port>) -> Result<&'a Port, Failure> {
        let fail = |text: String| Failure::new(Kind::Peer, text);
        let Self { size, seconds, .. } = *self;
        if !(1..=MOST_BYTES).contains(&size) || !(1..=MOST_SECONDS).contains(&seconds) {
            let text = format!(
                "a measurement of {seconds} s with messages of {size} bytes is requested, expected 1 to {MOST_SECONDS} s and 1 to {MOST_BYTES} bytes"
            );
            return Err(fail(text));
        }
        let port = ports.find(|port| port.name() == self.port);
        port.ok_or_else(|| fail(format!("a port is requested that is not here: {}", self.port)))
    }

    /// Starts this end. Returns it with the number of the server's TCP port.
    pub(super) fn start(&self, document: &Document, other: IpAddr) -> Result<(Running, u16), Failure> {
        let port = self.checked(ports(document))?;
        let fail = |text: String| Failure::new(Kind::Peer, text);
        let program = find(PROGRAM, None).ok_or_else(|| fail(format!("no {PROGRAM} is here")))?;
        let tcp = self.server.map_or_else(free_port, Ok)?;
        let mut command = Command::new(program);
        command.args(arguments(port, self.size, self.seconds, tcp));
        if self.server.is_some() {
            command.arg(other.to_string());
        }
        let running = Running::start(command)?;
        if self.server.is_none()
            && let Err(why) = listens(&running, tcp)
        {
            let ended = running.end(Duration::ZERO, || Ok(()))?;
            return Err(fail(format!("its server {why}; {}", ended.last_lines())));
        }
        Ok((running, tcp))
    }
}

fn arguments(port: &Port, size: usize, seconds: u32, tcp: u16) -> Vec<String> {
    let mut args: Vec<String> = ["-d", &port.hca, "-i"].map(str::to_owned).into();
    args.push(port.port.to_string());
    // On InfiniBand it reaches the other port by LID.
    let is_infiniband = port.state.as_ref().is_some_and(|state| state.link == Link::Infiniband);
    let gid = port.gids.iter().find(|gid| gid.rank == Some(0)).filter(|_| !is_infiniband);
    args.extend(gid.into_iter().flat_map(|gid| ["-x".to_owned(), gid.index.to_string()]));
    let numbers = [("-p", u64::from(tcp)), ("-s", size as u64), ("-D", seconds.into())];
    args.extend(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
    // The whole time counts. The clock of the processor is no concern.
    args.extend(["-f", "0", "-F", "--report_gbits"].map(str::to_owned));
    args
}

/// Returns a TCP port that nobody listens on.
fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).tool("find a free TCP port")?;
    Ok(listener.local_addr().tool("read the address of a socket")?.port())
}

/// Waits until a server listens. It waits for exactly one connection: a trial would end it.
fn listens(running: &Running, tcp: u16) -> Result<(), String> {
    let end = Instant::now() + LISTENS;
    loop {
        if is_listened_on(tcp) {
            return Ok(());
        }
        if running.has_ended() {
            return Err("ended before its client came".into());
        }
        if Instant::now() >= end {
            return Err(format!("did not listen within {LISTENS:?}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn is_listened_on(tcp: u16) -> bool {
    /// State of a socket that listens.
    const LISTEN: &str = "0A";
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().any(|file| {
        let table = fs::read_to_string(file).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().and_then(|address| address.rsplit(':').next());
            let number = local.and_then(|digits| u16::from_str_radix(digits, 16).ok());
            number == Some(tcp) && words.nth(1) == Some(LISTEN)
        })
    })
}

/// Returns the average in Gb/s of the row for messages of this size.
fn rate(output: &str, size: usize) -> Option<f64> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let is_row = words.next()?.parse::<usize>().ok()? == size && words.next()?.parse::<u64>().is_ok();
        let [_peak, average] = [words.next()?, words.next()?].map(|word| word.parse::<f64>().ok());
        average.filter(|rate| is_row && *rate > 0.0 && *rate < FASTEST)
    };
    output.lines().filter_map(row).next_back()
}

/// Waits for the end that a request has started. The end of the session ends it.
pub(super) fn ended(running: Option<Running>, seconds: f64, channel: &Channel) -> Result<Ended, Failure> {
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| *limit <= MEASURED);
    let (Some(running), Some(limit)) = (running, limit) else {
        let text = format!("the other end waits {seconds} s for a program that it has not started");
        return Err(Failure::new(Kind::Peer, text));
    };
    let lost = || Failure::new(Kind::Peer, "the other end left the session during a measurement");
    // It sends nothing before it has the answer.
    running.end(limit, || if channel.readable() { Err(lost()) } else { Ok(()) })
}

impl Session {
    /// Returns what the other host has.
    pub(crate) fn tools(&mut self) -> Result<Tools, Failure> {
        self.ask(&Request::Tools, PATIENCE)
    }

    /// Measures the rate of two ports in Gb/s. The inner error is why there is none; the outer one ends
    /// the session.
    pub(crate) fn perftest(
        &mut self,
        document: &Document,
        measure: &Measure,
    ) -> Result<Result<f64, String>, Failure> {
        let Measure { size, seconds, out, .. } = *measure;
        let limit = measure.limit.min(Duration::from_secs(seconds.into()) + AROUND);
        let here = |server| End { port: measure.ours.clone(), size, seconds, server };
        let there = |server| End { port: measure.theirs.clone(), size, seconds, server };
        let (client, server) = if out {
            let server = match self.start(there(None))? {
                Ok(server) => server,
                Err(failure) => return Ok(Err(format!("there: {failure}"))),
            };
            let client = here(Some(server)).start(document, self.addresses[1]);
            let client = client.and_then(|(running, _)| running.end(limit, || Ok(())));
            (client, self.ended(AFTER)?)
        } else {
            let (running, server) = match here(None).start(document, self.addresses[1]) {
                Ok(started) => started,
                Err(failure) => return Ok(Err(format!("here: {failure}"))),
            };
            let client = match self.start(there(Some(server)))? {
                Ok(_) => Ok(self.ended(limit)?),
                Err(failure) => Err(failure),
            };
            (client, running.end(AFTER, || Ok(()))?)
        };
        let ends = if out { ["here", "there"] } else { ["there", "here"] };
        let client = match client {
            Ok(client) => client,
            Err(failure) => return Ok(Err(format!("{}: {failure}", ends[0]))),
        };
        let why = match (rate(&client.output, size), &client.failure) {
            (Some(rate), None) => return Ok(Ok(rate)),
            (_, Some(failure)) => failure,
            (None, None) => "printed no rate",
        };
        let [client, server] = [client.last_lines(), server.last_lines()];
        Ok(Err(format!("its client {} {why}; {client}; its server {}: {server}", ends[0], ends[1])))
    }

    /// Starts an end at the other host.
    fn start(&mut self, end: End) -> Result<Result<u16, Failure>, Failure> {
        self.ask(&Request::Perftest(end), LISTENS + PATIENCE)
    }

    /// Waits for the end of what the other host has started.
    fn ended(&mut self, limit: Duration) -> Result<Ended, Failure> {
        self.ask(&Request::PerftestEnds(limit.as_secs_f64()), limit + PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sysfs::port;

    #[test]
    fn a_request_is_refused_unless_it_is_for_a_port_that_is_here() {
        let ports = [port("mlx5_0", 100_000, None)];
        let end = |port: &str, size, seconds| End { port: port.to_owned(), size, seconds, server: None };
        let of = |end: &End| end.checked(ports.iter()).map_err(|failure| failure.message);
        let port = of(&end("mlx5_0:1", 65536, 2)).unwrap();
        let args = arguments(port, 65536, 2, 4000).join(" ");
        assert_eq!(args, "-d mlx5_0 -i 1 -p 4000 -s 65536 -D 2 -f 0 -F --report_gbits");
        for bad in ["mlx5_0:2", "mlx5_0", "", "-R"] {
            assert!(of(&end(bad, 65536, 2)).unwrap_err().contains("not here"), "{bad}");
        }
        for (size, seconds) in [(0, 2), (MOST_BYTES + 1, 2), (1, 0), (1, MOST_SECONDS + 1)] {
            let why = of(&end("mlx5_0:1", size, seconds)).unwrap_err();
            assert!(why.contains("expected 1 to 60 s"), "{why}");
        }
    }

    #[test]
    fn the_average_is_read_from_the_row_of_the_size() {
        let of = |rows: &str| {
            let head = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]";
            rate(&format!("---\n {head}\n{rows}\n---"), 65536)
        };
        assert_eq!(of(" 65536      1525             0.00               391.42   0.746"), Some(391.42));
        // A line of the library may follow without a line end.
        assert_eq!(of(" 65536 1525 0.00 0.80 0.0015softverbs[12]: closed"), Some(0.8));
        for bad in
            ["", "65536", "65536 1 2", "4096 1 0 3 4", "65536 x 0 3 4", "65536 1 0 inf 4", "65536 1 0 NaN 4"]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
        for bad in ["0.00", "-3", "1e300"] {
            assert_eq!(of(&format!("65536 1525 0.00 {bad} 1")), None, "{bad}");
        }
    }
}
