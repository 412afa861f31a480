//! docs/internals/topologies.md: what was compared, the explained differences, and what NCCL makes
//! of each tree in each release.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use super::{facts::Facts, judge::Verdict, known::KNOWN, trees};
use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
    report::{Version, cell},
};

const HEAD: &str = "\
# What NCCL makes of PCI trees

`make topologies WRITE=1` writes this page; `make topologies` compares it with a new run. How a run
works, and how to read a difference: [compat-matrix.md](compat-matrix.md#topologies).

On each tree NCCL runs twice, with this plugin and with its own InfiniBand transport (`net_ib`), on
the same simulated adapters ([softverbs](../guide/softverbs.md)) and the same GPUs
([softcuda](softcuda.md)), with the CPU that `NCCL_TOPO_FILE` names. Everything in its dump of the
topology, in its dump of the graphs and the paths in its log is compared.

The column `bytes` is what a host sends by each adapter in an all-reduce of 8 MiB with this plugin,
on all channels that NCCL plans, with `NCCL_ALGO=RING` and `MPIB_SPLIT=speed`; on hosts of few GPUs.
";

/// What was seen on a tree.
pub(super) struct Row {
    pub(super) tree: &'static str,
    pub(super) plugin: Facts,
    pub(super) verdict: Verdict,
    /// Bytes of an all-reduce that the first host has sent by each adapter.
    pub(super) bytes: Option<BTreeMap<String, u64>>,
}

/// The page's path, relative to the root of the repository.
pub(super) fn path() -> PathBuf {
    PathBuf::from("docs/internals/topologies.md")
}

/// The page as text: what does not depend on a run, and a section for each release.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    head: String,
    releases: BTreeMap<Version, String>,
}

impl Page {
    /// Returns the page without releases, as this program writes it.
    fn empty() -> Self {
        Self { head: head(), releases: BTreeMap::new() }
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::empty()),
            text => text.cannot(format!("read {}", path.display()))?,
        };
        let mut parts = text.split("\n## NCCL ");
        let head = parts.next().unwrap_or_default().to_owned();
        let release = |part: &str| {
            let (version, rest) = part.split_once('\n')?;
            Some((Version::parse(version)?, rest.trim().to_owned()))
        };
        let releases = parts.map(release).collect::<Option<_>>();
        let releases = releases
            .ok_or_else(|| Failure::tool(format!("{}: a heading without a release", path.display())))?;
        Ok(Self { head, releases })
    }

    /// Returns the page with the rows of a run.
    pub(super) fn with(self, ran: &[(&Release, Vec<Row>)]) -> Self {
        let mut releases = self.releases;
        for (release, rows) in ran {
            releases.extend(Version::parse(&release.version).map(|version| (version, section(rows))));
        }
        Self { head: head(), releases }
    }

    pub(super) fn text(&self) -> String {
        let mut text = self.head.clone();
        for (version, section) in self.releases.iter().rev() {
            let _ = write!(text, "\n## NCCL {version}\n\n{section}\n");
        }
        text
    }
}

fn head() -> String {
    let mut text = HEAD.to_owned();
    text +=
        "\n## Trees\n\nA communicator has a rank for each GPU of such a host, and one on a second host.\n";
    for tree in trees::all() {
        let _ = write!(
            text,
            "\n| {} | {} |\n|---|---|\n\n```text\n{}```\n",
            tree.name,
            tree.what,
            tree.picture()
        );
    }
    text += "\n## Known differences\n\n";
    text += "A run fails if it sees another difference, or does not see one of these.\n\n";
    text += "| | facts | plugin | `net_ib` | tables and trees | reason |\n|---|---|---|---|---|---|\n";
    for (number, known) in KNOWN.iter().enumerate() {
        let _ = writeln!(text, "| {} | {} |", number + 1, known.describe());
    }
    text
}

/// Returns the table of a release.
fn section(rows: &[Row]) -> String {
    let mut text = String::from(
        "| tree | devices | paths from GPU 0 | ring | bytes | same facts | known differences |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for Row { tree, plugin, verdict, bytes } in rows {
        let known: Vec<_> = verdict.explained.keys().map(|place| (place + 1).to_string()).collect();
        let _ = writeln!(
            text,
            "| {tree} | {} | {} | {} | {} | {} | {} |",
            cell(&devices(plugin)),
            cell(&from_gpu(plugin)),
            cell(&ring(plugin)),
            bytes.as_ref().map_or_else(|| "-".into(), shares),
            verdict.same,
            known.join(", ")
        );
    }
    text.trim_end().to_owned()
}

/// Returns the devices that NCCL uses: those that have a path.
fn devices(facts: &Facts) -> String {
    let used = |index: &str| {
        facts.keys().any(|name| {
            name.ends_with(&format!(" to NET/0-{index}")) || name.ends_with(&format!(" to NET/{index}"))
        })
    };
    let name = |(name, device): (&String, &String)| {
        let index = name.strip_prefix("device ")?;
        used(index).then(|| device.clone())
    };
    facts.iter().filter_map(name).collect::<Vec<_>>().join("; ")
}

/// Returns the kinds and bandwidths of the paths from the first GPU to the devices.
fn from_gpu(facts: &Facts) -> String {
    let mut paths =
        facts.iter().filter(|(name, _)| name.starts_with("path GPU/") && name.contains(" to NET/"));
    let Some((first, _)) = paths.clone().next() else { return "none".into() };
    let gpu = first.split(" to ").next().unwrap_or_default();
    let of_gpu = paths.by_ref().filter(|(name, _)| name.split(" to ").next() == Some(gpu));
    let path = |(_, path): (&String, &String)| {
        path.rsplit_once('/')
            .map(|(before, kind)| format!("{kind} {}", before.rsplit('/').next().unwrap_or_default()))
    };
    of_gpu.filter_map(path).collect::<Vec<_>>().join("; ")
}

/// Returns the share of each adapter, in steps of 1/24: shares of two, three, four and eight are in the
/// middle of a step.
fn shares(bytes: &BTreeMap<String, u64>) -> String {
    const STEPS: f64 = 24.0;
    let all = bytes.values().sum::<u64>().max(1) as f64;
    let share = |(name, bytes): (&String, &u64)| {
        let steps = (*bytes as f64 / all * STEPS).round();
        format!("{name} {:.0} %", steps * 100.0 / STEPS)
    };
    bytes.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// Returns the ring's channels and speeds.
fn ring(facts: &Facts) -> String {
    let of = |name: &str| facts.get(&format!("graph 0 {name}")).map_or("?", String::as_str);
    format!(
        "{} channels, {} GB/s by {}, inside {} GB/s by {}",
        of("nchannels"),
        of("speedinter"),
        of("typeinter"),
        of("speedintra"),
        of("typeintra")
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Page, head, path};

    #[test]
    fn the_committed_page_has_these_trees_and_known_differences() {
        let committed = Page::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path())).unwrap();
        let same = committed.head.trim_end() == head().trim_end();
        assert!(same, "docs/internals/topologies.md: run make topologies RELEASE=2.32.3 WRITE=1");
    }
}
