//! Compares what NCCL makes of the plugin's adapters with what it makes of those that
//! NCCL's InfiniBand transport has, on the same PCI trees.

mod facts;
mod judge;
mod known;
mod page;
mod run;
mod trees;

use std::{fs, path::PathBuf, process::ExitCode, time::Instant};

use clap::Args;

use self::{
    facts::Facts,
    judge::{Verdict, judge},
    page::{Page, Row},
    run::{Bench, Net},
};
use crate::{
    failure::{Context, Result},
    fetch::Cache,
    matrix::{Matrix, Release},
    pci::Tree,
    stage::Stage,
};

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct TopologiesArgs {
    /// Releases of matrix.toml; one for each table version if none is named
    releases: Vec<String>,
    /// The newest release only
    #[arg(long, conflicts_with = "releases")]
    newest: bool,
    /// The folder that scripts/with-sysfs.sh was given
    #[arg(long, value_name = "FOLDER")]
    sysfs: PathBuf,
    /// The folder in which "make build" put the plugin and softverbs
    #[arg(long, value_name = "FOLDER", default_value = "build")]
    build: PathBuf,
    /// Write the page if the run differs from it, instead of failing
    #[arg(long)]
    write: bool,
    /// Keep NCCL's dumps and logs in this folder
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
}

/// Runs the command. The exit code is 0 if every difference is a known one, every known one was
/// seen, and the page agrees.
pub(crate) fn main(args: &TopologiesArgs) -> Result<ExitCode> {
    let matrix = Matrix::read()?;
    let releases = if args.newest {
        vec![matrix.one(None)?]
    } else {
        let chosen = matrix.choose(&args.releases)?.into_iter();
        chosen.filter(|release| release.short || !args.releases.is_empty()).collect()
    };
    let stage = Stage::set(&args.build)?;
    let cache = Cache::of_user(&matrix.package)?;
    let mut ran = Vec::new();
    for release in &releases {
        let library = cache.fetch(release)?;
        let bench = Bench { stage: &stage, library: &library, sysfs: &args.sysfs };
        let row = |tree: &Tree| one(args, release, &bench, tree);
        ran.push((release, trees::all().iter().map(row).collect::<Result<Vec<_>>>()?));
    }
    let mut good = ran.iter().flat_map(|(_, rows)| rows).all(|row| row.verdict.is_good());
    let path = page::path();
    let committed = Page::read(&path)?;
    let before = committed.text();
    let text = committed.with(&ran).text();
    if text != before {
        if args.write {
            fs::write(&path, text).cannot(format!("write {}", path.display()))?;
            println!("\nwritten: {}", path.display());
        } else {
            let new = text.lines().filter(|line| !before.lines().any(|old| old == *line));
            println!("\nother than in {}:", path.display());
            new.for_each(|line| println!("  + {line}"));
            good = false;
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares a tree in a release.
fn one(args: &TopologiesArgs, release: &Release, bench: &Bench<'_>, tree: &Tree) -> Result<Row> {
    let begun = Instant::now();
    bench.plant(tree)?;
    let view = |net: Net| -> Result<Facts> {
        let name = format!("{release}-{}-{net:?}", tree.name.replace(' ', "-"));
        bench.run(tree, net, args.logs.as_ref().map(|to| to.join(name)).as_deref())
    };
    let (plugin, net_ib) = (view(Net::Plugin)?, view(Net::NetIb)?);
    let verdict = if plugin.get(run::STATE) == net_ib.get(run::STATE) {
        judge(release, tree.name, &plugin, &net_ib)
    } else {
        // The facts of the one that came up have nothing to be compared with.
        let state =
            |facts: &Facts| facts.clone().into_iter().filter(|(name, _)| name == run::STATE).collect();
        judge(release, tree.name, &state(&plugin), &state(&net_ib))
    };
    let bytes = bench.bytes(tree)?;
    print(release, tree, &verdict, begun.elapsed().as_secs_f32());
    Ok(Row { tree: tree.name, plugin, verdict, bytes })
}

fn print(release: &Release, tree: &Tree, verdict: &Verdict, seconds: f32) {
    let word = if verdict.is_good() { "ok" } else { "FAILED" };
    let (same, explained) = (verdict.same, verdict.explained.values().map(Vec::len).sum::<usize>());
    println!(
        "NCCL {release:13} {:18} {word:6} {seconds:5.1} s  {same} facts are the same, {explained} differ as known",
        tree.name
    );
    for difference in &verdict.unexplained {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        let (plugin, net_ib) = (value(&difference.plugin), value(&difference.net_ib));
        println!("  {}: plugin {plugin}, net_ib {net_ib}: no known difference", difference.fact);
    }
    for known in &verdict.stale {
        println!("  expected and not seen: {}", known.describe());
    }
}
