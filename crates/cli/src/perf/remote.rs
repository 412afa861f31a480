//! Runs between two machines. Each supervises its own worker; the workers use the machines' TCP
//! connection while a table runs.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{Setting, args::PORT, control::Channel, link::Role, plan::Plan, report::Report, table};
use crate::failure::{Context, Failure, Kind};

/// First word of a connection, by which other clients are recognised.
const MAGIC: &str = "mpib perf";
/// Changes with the messages of `link` and of this file.
pub(crate) const PROTOCOL: u32 = 5;
/// How long a peer may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two attempts of `--wait`.
const PAUSE: Duration = Duration::from_millis(100);

/// A message of the connecting end.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Hello {
        magic: String,
        protocol: u32,
        plan: Plan,
    },
    /// Run through this table; the workers own the connection until they end.
    Table(u32),
    Bye,
}

/// A message of the listening end.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome { magic: String, protocol: u32, exported: Vec<u32> },
    Refused(Failure),
}

/// Splits `HOST`, `HOST:PORT`, `[v6]:PORT`, `:PORT`, or nothing.
pub(crate) fn split(address: &str) -> Result<(&str, u16), Failure> {
    let bad = || {
        let text = format!(
            "{address:?} is not an address; expected HOST, HOST:PORT, 10.0.0.1:{PORT} or [fd00::1]:{PORT}"
        );
        Failure::new(Kind::Usage, text)
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")).ok_or_else(bad)?)
        }
        // More than one colon and no brackets: an IPv6 address without a port.
        None => match address.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, port),
            _ => (address, ""),
        },
    };
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| bad())? };
    Ok((host, port))
}

fn channel(stream: TcpStream) -> Result<Channel, Failure> {
    stream.set_nodelay(true).tool("set TCP_NODELAY")?;
    Channel::new(stream.into(), "the other machine")
}

/// Serves one run.
pub(super) fn listen(setting: &Setting, address: &str, report: &mut Report) -> Result<(), Failure> {
    let (host, port) = split(address)?;
    let listener = bind(host, port).map_err(|e| {
        let place = if host.is_empty() { "every address" } else { host };
        let text =
            format!("cannot listen on {place}, port {port}: {e}; to use another port: --listen {host}:PORT");
        Failure::new(Kind::Tool, text)
    })?;
    let here = listener.local_addr().tool("read the listening address")?;
    setting.ui.note(&format!("listening on {here}"));
    loop {
        let (stream, from) = listener.accept().tool("accept a connection")?;
        let from = canonical(from);
        let mut channel = channel(stream)?;
        // A client that is not mpib costs a log line, not the run.
        match receive_plan(setting, &mut channel) {
            Ok(plan) => {
                setting.ui.note(&format!("{from} leads the run"));
                drop(listener);
                return serve(setting, channel, &plan, report);
            }
            Err(failure) => {
                setting.ui.note(&format!("refused {from}: {failure}; still listening"));
                // The peer may have closed already.
                let _ = channel.send(&Answer::Refused(failure));
            }
        }
    }
}

pub(crate) fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    if host.is_empty() {
        // One socket for both families, or IPv4 alone if IPv6 is disabled.
        return TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    }
    TcpListener::bind((host, port))
}

fn receive_plan(setting: &Setting, channel: &mut Channel) -> Result<Plan, Failure> {
    let plan = match channel.first(PATIENCE, MAGIC)? {
        Request::Hello { magic, protocol: PROTOCOL, plan } if magic == MAGIC => plan.validate()?,
        Request::Hello { protocol, .. } => {
            let text = format!("protocol {protocol}, expected {PROTOCOL}; use the same release at both ends");
            return Err(Failure::new(Kind::Peer, text));
        }
        Request::Table(_) | Request::Bye => {
            return Err(Failure::new(Kind::Peer, "its first message was not a hello"));
        }
    };
    let (ours, theirs) = (setting.args.operation.chosen(), plan.operation);
    if ours.family() != theirs.family() {
        let text = format!(
            "this end has tables for {}, the other one moves {}; give --put, --signal or --get to both ends, or to none",
            ours.plural(),
            theirs.plural()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let exported = setting.exported.clone();
    channel.send(&Answer::Welcome { magic: MAGIC.into(), protocol: PROTOCOL, exported })?;
    Ok(plan)
}

fn serve(setting: &Setting, mut channel: Channel, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    report.plan = Some(plan.clone());
    loop {
        let version = match channel.recv(PATIENCE, || Ok(()))? {
            Request::Table(version) => version,
            Request::Bye => return Ok(()),
            Request::Hello { .. } => {
                return Err(Failure::new(Kind::Peer, "the other machine sent a second hello"));
            }
        };
        if !setting.exported.contains(&version) {
            return Err(Failure::new(
                Kind::Load,
                format!("the other machine requested v{version}, which this plugin does not export"),
            ));
        }
        let peer = channel.share().tool("share the control connection")?;
        let jobs = vec![(setting.job(version, Role::B, plan), peer)];
        table(setting, jobs, plan, &mut report.tables)?;
    }
}

/// Sends the plan and leads the run.
pub(super) fn connect(setting: &Setting, address: &str, report: &mut Report) -> Result<(), Failure> {
    let plan = setting.args.plan()?;
    report.plan = Some(plan.clone());
    let (host, port) = split(address)?;
    let end = Instant::now() + setting.args.wait.unwrap_or_default();
    let stream = loop {
        match dial(host, port, "mpib perf --listen") {
            Err(failure) if failure.kind == Kind::Peer && Instant::now() < end => thread::sleep(PAUSE),
            dialled => break dialled?,
        }
    };
    let mut channel = channel(stream)?;
    channel.send(&Request::Hello { magic: MAGIC.into(), protocol: PROTOCOL, plan: plan.clone() })?;
    let theirs = match channel.first(PATIENCE, MAGIC)? {
        Answer::Welcome { magic, protocol: PROTOCOL, exported } if magic == MAGIC => exported,
        Answer::Welcome { protocol, .. } => {
            let text =
                format!("{address} speaks protocol {protocol}, expected {PROTOCOL}; use the same release");
            return Err(Failure::new(Kind::Peer, text));
        }
        Answer::Refused(failure) => return Err(failure.at(format!("{address} refused"))),
    };
    let both: Vec<u32> = setting.exported.iter().copied().filter(|v| theirs.contains(v)).collect();
    if both.is_empty() {
        let text =
            format!("the plugins have no table in common: {:?} here, {theirs:?} there", setting.exported);
        return Err(Failure::new(Kind::Load, text));
    }
    let versions = setting.args.abi.choose(&both, "one of the two plugins, or both")?;
    setting.ui.expect(versions.len() * plan.sizes.len());
    for version in versions {
        channel.send(&Request::Table(version))?;
        let peer = channel.share().tool("share the control connection")?;
        table(setting, vec![(setting.job(version, Role::A, &plan), peer)], &plan, &mut report.tables)?;
    }
    channel.send(&Request::Bye)
}

/// Connects to a machine on which `command` waits.
pub(crate) fn dial(host: &str, port: u16, command: &str) -> Result<TcpStream, Failure> {
    if host.is_empty() {
        return Err(Failure::new(Kind::Usage, "the address names no host; expected HOST or HOST:PORT"));
    }
    let addresses = (host, port).to_socket_addrs().map_err(|e| {
        let text =
            format!("cannot find the address of {host}: {e}; is the name right, and known to this host?");
        Failure::new(Kind::Peer, text)
    })?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    let hint = match last.kind() {
        io::ErrorKind::TimedOut => "a firewall drops the packets, or the host is down".to_owned(),
        _ => format!("is \"{command}\" running there?"),
    };
    let text = format!("cannot connect to {host} port {port}: {last}; {hint}");
    Err(Failure::new(Kind::Peer, text))
}

/// Returns an IPv4 address that a socket of both families has as an IPv6 one.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let split = |text| split(text).map_err(|f| f.kind);
        assert_eq!(split(""), Ok(("", PORT)));
        assert_eq!(split("node1"), Ok(("node1", PORT)));
        assert_eq!(split("10.0.0.1:99"), Ok(("10.0.0.1", 99)));
        assert_eq!(split(":99"), Ok(("", 99)));
        assert_eq!(split("fd00::1"), Ok(("fd00::1", PORT)));
        assert_eq!(split("[fd00::1]:99"), Ok(("fd00::1", 99)));
        assert_eq!(split("[fd00::1]"), Ok(("fd00::1", PORT)));
        for bad in ["node1:port", "[fd00::1", "[fd00::1]x", "node1:70000"] {
            assert_eq!(split(bad), Err(Kind::Usage), "{bad}");
        }
    }

    #[test]
    fn ipv4_peers_have_ipv4_addresses() {
        let shown = |text: &str| canonical(text.parse().unwrap()).to_string();
        assert_eq!(shown("[::ffff:192.0.2.1]:99"), "192.0.2.1:99");
        assert_eq!(shown("[2001:db8::1]:99"), "[2001:db8::1]:99");
    }

    #[test]
    fn a_name_without_an_address_is_not_a_missing_listener() {
        let failure = dial("", 99, "mpib perf --listen").unwrap_err();
        assert_eq!((failure.kind, failure.message.contains("names no host")), (Kind::Usage, true));
        let failure = dial("no such host", 99, "mpib perf --listen").unwrap_err();
        let text = failure.message;
        assert!(
            text.starts_with("cannot find the address of no such host: ") && !text.contains("--listen"),
            "{text}"
        );
    }
}
