//! Loads any other plugin into a release's core and moves data through it between two processes.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;

use crate::{
    checks::{loading, with_exchange},
    child::Runner,
    facts,
    failure::{Context, Failure, Result},
    fetch::Cache,
    matrix::Matrix,
    script::{Job, Plan, StepResult},
    stage::Scratch,
};

/// The name that NCCL_NET_PLUGIN selects the plugin by. Every release completes it to [`FILE`].
const NAME: &str = "loaded";
const FILE: &str = "libnccl-net-loaded.so";

/// Options of a plugin's run in one core.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The plugin's shared library.
    plugin: PathBuf,
    /// A release of matrix.toml; the newest if none is named.
    release: Option<String>,
    /// How long the two processes may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    deadline: u64,
}

/// Prints which table the core took and what was moved.
pub(crate) fn main(args: &LoadArgs) -> Result<ExitCode> {
    let plugin = fs::canonicalize(&args.plugin)
        .map_err(|e| Failure::usage(format!("{}: {e}", args.plugin.display())))?;
    let matrix = Matrix::read()?;
    let release = matrix.one(args.release.as_ref())?;
    let library = Cache::of_user(&matrix.package)?.fetch(&release)?;
    let facts = facts::read(&library, &release)?.facts;
    let job = Job {
        library,
        facts,
        table: release.table,
        opens: release.opens.clone(),
        closes: release.closes.clone(),
        steps: with_exchange(Plan::alone()),
        peer: None,
    };
    let scratch = Scratch::new()?;
    let environment = environment(&scratch, &plugin)?;
    let deadline = Duration::from_secs(args.deadline);
    let [sender, receiver] = Runner { scratch: &scratch, environment, deadline }.pair(&job)?;
    let name = sender.opened().first().and_then(|(_, net)| *net).unwrap_or_default();
    let table = loading::in_place_of(&release, &sender, name)?;
    loading::in_place_of(&release, &receiver, name)?;
    let tally = sender.results.iter().find_map(|result| match result {
        StepResult::Exchanged(tally) => Some(tally),
        _ => None,
    });
    let tally = tally.ok_or_else(|| Failure::tool("the sender reported no exchange"))?;
    println!("NCCL {release}: {name}: {table}; {} messages, {} bytes", tally.messages, tally.bytes);
    Ok(ExitCode::SUCCESS)
}

/// Returns the whole environment of a process: the plugin under [`FILE`], and nothing of the
/// user's.
fn environment(scratch: &Scratch, plugin: &Path) -> Result<BTreeMap<String, String>> {
    let folder = scratch.file("plugin");
    fs::create_dir(&folder).cannot(format!("make {}", folder.display()))?;
    symlink(plugin, folder.join(FILE)).cannot(format!("make {FILE}"))?;
    let conf = scratch.file("nccl.conf");
    fs::write(&conf, "").cannot("write an empty nccl.conf")?;
    let path = |path: &Path| path.display().to_string();
    let set = [
        ("PATH", env::var("PATH").unwrap_or_default()),
        ("HOME", path(&folder)),
        ("NCCL_CONF_FILE", path(&conf)),
        ("LD_LIBRARY_PATH", path(&folder)),
        ("NCCL_DEBUG", "INFO".into()),
        ("NCCL_DEBUG_FILE", path(&scratch.file("nccl-log"))),
        ("NCCL_NET_PLUGIN", NAME.into()),
        ("NCCL_IB_DISABLE", "1".into()),
    ];
    Ok(set.map(|(name, value)| (name.to_owned(), value)).into())
}
