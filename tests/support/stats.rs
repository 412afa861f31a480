//! Statistics as another process reads them.

use std::collections::HashMap;
use std::fmt::Write as _;

use nccl_net_mpib_agent_iface::stats::{Connection, Summary, pages_of};

use crate::peer::{Peer, answer, commands};
use crate::process::Role;

/// The process that reads, seen from the one that counts.
pub struct Reader(Peer);

/// What a process shows.
#[derive(Debug)]
pub struct Seen {
    /// Numbers of the header.
    pub process: Fields,
    /// Numbers and words of each connection, in the order of their entries.
    pub connections: Vec<Fields>,
}

/// By name; those of rail i begin with "i.".
#[derive(Debug, Clone, PartialEq)]
pub struct Fields(HashMap<String, String>);

impl Fields {
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|e| panic!("{name}: {e} in {self:?}"))
    }

    pub fn numbers<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.number(name))
    }

    /// The sum over both rails.
    pub fn rails(&self, name: &str) -> u64 {
        self.number(&format!("0.{name}")) + self.number(&format!("1.{name}"))
    }
}

impl Reader {
    pub fn start() -> Self {
        Self(Peer::start_as(Role::StatsReader, &[]))
    }

    /// What process `pid` shows, or why it shows nothing.
    pub fn ask(&mut self, pid: u32) -> Result<Seen, String> {
        let answer = self.0.ask(&pid.to_string());
        let mut records = answer.split('\u{1e}');
        let fields = |record: &str| {
            let pair = |field: &str| field.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
            Fields(record.split('\t').filter_map(pair).collect())
        };
        match records.next().unwrap().strip_prefix("no: ") {
            Some(why) => Err(why.to_owned()),
            None => {
                let process = fields(answer.split('\u{1e}').next().unwrap());
                Ok(Seen { process, connections: records.map(fields).collect() })
            }
        }
    }

    /// What this process shows.
    pub fn here(&mut self) -> Seen {
        self.ask(std::process::id()).expect("this process has a page")
    }

    /// This process's only connection with this direction.
    pub fn one(&mut self, direction: &str) -> Fields {
        let seen = self.here();
        let mut all: Vec<_> =
            seen.connections.into_iter().filter(|c| c.text("direction") == direction).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }
}

/// The process that reads: answers until its input ends.
pub fn serve() {
    for pid in commands() {
        let shown = match pages_of(pid.parse().unwrap()) {
            Err(e) => format!("no: {e}"),
            Ok(pages) => {
                let all: Vec<_> = pages.iter().flat_map(|p| p.connections()).map(|c| record(&c)).collect();
                let Summary { pid, plugin, job, opened, open, hidden, .. } = pages[0].summary();
                let n = pages.len();
                let head = format!(
                    "pages={n}\tpid={pid}\tplugin={plugin}\tjob={job}\topened={opened}\topen={open}\thidden={hidden}"
                );
                std::iter::once(head).chain(all).collect::<Vec<_>>().join("\u{1e}")
            }
        };
        answer(&shown);
    }
}

fn record(c: &Connection) -> String {
    let word = |word: Option<&'static str>| word.unwrap_or("?");
    let mut out = format!(
        "index={}\tgeneration={}\tstate={}\tdirection={}\tislands={}\tdata={}\ttraffic={}\tpeer={}\trequests={}\tdone={}\t\
         messages={}\tbytes={}\twaits_peer={}\twaits_queue={}\twait={}\tsince={}\terrors={}\tshare={}\treason={}",
        c.index,
        c.generation,
        word(c.state.map(|s| s.word())),
        word(c.direction.map(|d| d.word())),
        word(c.islands.map(|i| i.word())),
        word(c.data.map(|d| d.word())),
        word(c.traffic.map(|t| t.word())),
        c.peer,
        c.totals.requests,
        c.totals.done,
        c.totals.messages,
        c.totals.bytes,
        c.totals.waits_peer,
        c.totals.waits_queue,
        c.wait.map_or("none", |wait| wait.what.word()),
        c.wait.map_or(0, |wait| wait.since_ms),
        c.totals.errors,
        c.share.map_or("none".into(), |s| s.to_string()),
        c.reason.as_deref().unwrap_or_default(),
    );
    for (i, r) in c.rails.iter().enumerate() {
        let bytes = r.bytes.map_or("none".into(), |b| b.to_string());
        let _ = write!(
            out,
            "\t{i}.name={}\t{i}.role={}\t{i}.bytes={bytes}\t{i}.parts={}\t{i}.posted={}\t{i}.done={}\t{i}.errors={}",
            r.name, r.role, r.parts, r.posted, r.done, r.errors
        );
    }
    out
}
