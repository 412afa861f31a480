//! `mpib enable` and `mpib disable`: the names under which NCCL and RCCL open a plugin without any
//! setting. `mpib path`: the plugin's own file.

use std::{
    fmt::Display,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;

use self::record::Record;
use crate::{
    failure::{Context, Failure, Kind},
    output, plugin,
};

mod record;

/// The name that NCCL opens without `NCCL_NET_PLUGIN`.
const NCCL: &str = "libnccl-net.so";
/// The name that RCCL opens without `NCCL_NET_PLUGIN`.
const RCCL: &str = "librccl-net.so";

/// Makes every NCCL that searches a folder use the plugin without NCCL_NET_PLUGIN: links
/// libnccl-net.so to it there. Never replaces another plugin
#[derive(Debug, Args)]
pub(crate) struct EnableArgs {
    /// Where to make the link [default: the plugin's folder]
    folder: Option<PathBuf>,
    /// Link librccl-net.so instead, the name that RCCL opens
    #[arg(long)]
    rccl: bool,
    #[command(flatten)]
    record: RecordArgs,
}

/// Removes the links that "mpib enable" made
#[derive(Debug, Args)]
pub(crate) struct DisableArgs {
    /// Where the links are [default: the plugin's folder]
    folder: Option<PathBuf>,
    /// Remove the links to this plugin in all folders, the plugin's included
    #[arg(long, conflicts_with = "folder")]
    all: bool,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Debug, Args)]
struct RecordArgs {
    /// File that remembers the links outside of the plugin's folder [default: /var/lib/mpib/links for
    /// root, $XDG_STATE_HOME/mpib/links or ~/.local/state/mpib/links for other users]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// What a link's place holds.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A link to a file of this project's plugin, existing or not.
    Link(PathBuf),
    /// Another file, in words.
    Foreign(String),
}

/// Prints the plugin's file, for `NCCL_NET_PLUGIN`.
pub(crate) fn path() -> Result<(), Failure> {
    say(&own_file()?.display())
}

pub(crate) fn enable(args: &EnableArgs) -> Result<(), Failure> {
    let file = own_file()?;
    let (folder, target) = place(args.folder.as_deref(), &file)?;
    let link = folder.join(if args.rccl { RCCL } else { NCCL });
    let found = found(&link)?;
    if let Found::Foreign(what) = found {
        let text = format!(
            "{} is {what}, not a link to {}: it stays. Remove it first if no job needs it, name another \
             folder, or set NCCL_NET_PLUGIN={} for the job",
            link.display(),
            plugin::NAME,
            file.display()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    if target == file {
        Record::at(args.record.record.as_deref())?.add(&link)?;
    }
    match found {
        Found::Link(old) if old == target => {
            return say(&format_args!("{} was already a link to {}", link.display(), target.display()));
        }
        Found::Link(_) => replace(&target, &link).tool(format!("replace {}", link.display()))?,
        _ => symlink(&target, &link).tool(format!("make {}", link.display()))?,
    }
    renew_cache();
    say(&format_args!("{} -> {}", link.display(), target.display()))
}

pub(crate) fn disable(args: &DisableArgs) -> Result<(), Failure> {
    let file = own_file()?;
    let (folder, _) = place(args.folder.as_deref(), &file)?;
    let record = Record::at(args.record.record.as_deref())?;
    let remembered = record.links()?;
    let mut links = [NCCL, RCCL].map(|name| folder.join(name)).to_vec();
    if args.all {
        // Another installation may have made its links there since.
        let leads_here = |link: &&PathBuf| fs::read_link(link).is_ok_and(|target| target == file);
        links.extend(remembered.iter().filter(leads_here).cloned());
    }
    let (mut removed, mut report, mut failed) = (Vec::new(), String::new(), Vec::new());
    for link in links {
        match remove(&link) {
            Ok(Found::Nothing) => {}
            Ok(Found::Foreign(what)) => report += &format!("{} is {what}: it stays\n", link.display()),
            Ok(Found::Link(_)) => {
                report += &format!("removed {}\n", link.display());
                removed.push(link);
            }
            Err(e) => failed.push((link, e)),
        }
    }
    let stays = |link: &&PathBuf| match args.all {
        // The others are not there, and nothing is left of the installation that could remove them.
        true => failed.iter().any(|(failed, _)| failed == *link) || matches!(found(link), Ok(Found::Link(_))),
        // What is not there now may be in a file system that is not mounted.
        false => !removed.contains(link),
    };
    let left: Vec<_> = remembered.iter().filter(stays).collect();
    record.keep(&remembered, &left)?;
    if removed.is_empty() {
        report += &format!("{} has no link to {}\n", folder.display(), plugin::NAME);
    } else {
        renew_cache();
    }
    output::print(&report)?;
    failed.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
}

/// Removes a link to the plugin. Returns what was there.
fn remove(link: &Path) -> Result<Found, Failure> {
    let found = found(link)?;
    if let Found::Link(_) = found {
        fs::remove_file(link).tool(format!("remove {}", link.display()))?;
    }
    // ldconfig makes a link of the plugin's name to the link, in a folder without the plugin.
    let soname = link.with_file_name(plugin::NAME);
    if fs::read_link(&soname).is_ok_and(|target| Some(target.as_os_str()) == link.file_name()) {
        fs::remove_file(&soname).tool(format!("remove {}", soname.display()))?;
    }
    Ok(found)
}

fn say(line: &dyn Display) -> Result<(), Failure> {
    output::print(&format!("{line}\n"))
}

fn own_file() -> Result<PathBuf, Failure> {
    let file = plugin::default_path()?;
    file.canonicalize().tool(format!("resolve {}", file.display()))
}

/// Returns the folder of the link, and what the link holds there: a bare name in the plugin's own
/// folder, because the prefix may move.
fn place(folder: Option<&Path>, file: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let own = file.parent().unwrap_or(Path::new("/"));
    let folder = match folder {
        None => own.to_owned(),
        Some(folder) => {
            let found = folder.canonicalize().ok().filter(|path| path.is_dir());
            found.ok_or_else(|| Failure::new(Kind::Usage, format!("{} is not a folder", folder.display())))?
        }
    };
    let target = if folder == own { plugin::NAME.into() } else { file.to_owned() };
    Ok((folder, target))
}

fn found(link: &Path) -> Result<Found, Failure> {
    let metadata = match link.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        other => other.tool(format!("look at {}", link.display()))?,
    };
    if !metadata.is_symlink() {
        let what = if metadata.is_dir() { "a folder" } else { "a file" };
        return Ok(Found::Foreign(what.into()));
    }
    let target = fs::read_link(link).tool(format!("read {}", link.display()))?;
    // Another release or prefix of this project is no other plugin.
    if target.file_name().is_some_and(|name| name == plugin::NAME) {
        return Ok(Found::Link(target));
    }
    Ok(Found::Foreign(format!("a link to {}", target.display())))
}

/// Replaces a link by rename: a job that starts meanwhile finds the old one or the new one.
fn replace(target: &Path, link: &Path) -> io::Result<()> {
    let new = link.with_extension(format!("so.{}", std::process::id()));
    symlink(target, &new)?;
    fs::rename(&new, link).inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Renews the dynamic linker's cache, which lists links by name. Only root may; for other users the
/// linker finds the folder by `LD_LIBRARY_PATH`.
fn renew_cache() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    match Command::new("/sbin/ldconfig").status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("mpib: ldconfig ended with {status}"),
        Err(why) => eprintln!("mpib: cannot run /sbin/ldconfig: {why}"),
    }
}
