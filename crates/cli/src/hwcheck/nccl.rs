//! The step in which nccl-tests run over both hosts: over NCCL's own transport, and over the plugin. A
//! launcher of MPI starts their processes.

use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use nccl_net_mpib_agent_iface::environment::is_setting;

use super::{bench::Bench, nccl_table::Table, step::Findings};
use crate::failure::Failure;
use crate::output::units::giga;
use crate::perf::split;
use crate::tool::{Running, find};

const PROGRAMS: [&str; 3] = ["all_reduce_perf", "alltoall_perf", "sendrecv_perf"];
/// Every size from 8 bytes to 1 GiB. Each process has one GPU.
const ARGUMENTS: &str = "-b 8 -e 1G -f 2 -g 1";
/// How often the other host hears from this one meanwhile: it ends a session that is silent.
const SIGN: Duration = Duration::from_secs(20);
/// The variables that choose a transport, and the amount of log.
const CHOSEN: [&str; 3] = ["NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_DEBUG"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Own,
    Plugin,
}

impl Transport {
    const fn words(self) -> &'static str {
        match self {
            Self::Own => "NCCL's own transport",
            Self::Plugin => "the plugin",
        }
    }
}

/// Compares each program over both transports.
pub(super) fn nccl(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let [here, there] = bench.tools()?;
    let host = bench.theirs()?.host;
    let lacks = |why: Option<String>, host: &str| why.map(|why| format!("no GPU {host}: {why}"));
    if let Some(why) = lacks(here.no_gpu, "here").or_else(|| lacks(there.no_gpu, &format!("on {host}"))) {
        found.not_run("nccl", why);
        return Ok(());
    }
    let (launcher, no_launcher) = launcher(bench);
    let folder = bench.args.nccl_tests.as_deref();
    for (number, program) in PROGRAMS.into_iter().enumerate() {
        let file = find(program, folder);
        let no_program = || match folder {
            Some(folder) => format!("{} has no {program}", folder.display()),
            None => format!("there is no {program} in PATH: name the folder of nccl-tests with --nccl-tests"),
        };
        let shown = file.as_deref().unwrap_or(Path::new(program)).display().to_string();
        let commands = [Transport::Own, Transport::Plugin].map(|t| command(bench, &launcher, t, &shown));
        if let Some(why) = file.is_none().then(no_program).or_else(|| no_launcher.clone()) {
            let [own, plugin] = commands;
            found.not_run(
                program,
                format!("{why}. By hand, over the plugin: {plugin} — over NCCL's own transport: {own}"),
            );
            continue;
        }
        // Those that are left share the time.
        let left = u32::try_from(PROGRAMS.len() - number).unwrap_or(1);
        let limit = bench.left() / left / 2;
        let mut run = |command: &str| run(bench, command, limit);
        let [own, plugin] = [run(&commands[0])?, run(&commands[1])?];
        judge(found, program, bench.args.least_of_nccl, own, plugin);
    }
    Ok(())
}

/// Returns the command that starts the processes, and why it cannot.
fn launcher(bench: &Bench<'_>) -> (String, Option<String>) {
    if let Some(launcher) = &bench.args.launcher {
        return (launcher.clone(), None);
    }
    let here = bench.document.report.as_ref().map_or("localhost", |report| &report.host);
    let there = bench.args.peer.as_deref().and_then(|peer| Some(split(peer).ok()?.0)).unwrap_or_default();
    if env::var_os("SLURM_JOB_ID").is_some() && find("srun", None).is_some() {
        let hosts = quoted(&format!("{here},{there}"));
        return (format!("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist={hosts}"), None);
    }
    let missing = find("mpirun", None).is_none();
    let why =
        "there is no mpirun in PATH: install Open MPI at both ends, or name another launcher with --launcher";
    (format!("mpirun -np 2 -H {}", quoted(&format!("{here}:1,{there}:1"))), missing.then(|| why.into()))
}

/// Returns the command line of a program over a transport. The processes at the other host get the
/// settings of this one.
fn command(bench: &Bench<'_>, launcher: &str, transport: Transport, program: &str) -> String {
    let plugin = bench.document.plugin.as_deref();
    let mut sets: Vec<(String, String)> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    sets.retain(|(name, _)| is_setting(name) && !CHOSEN.contains(&name.as_str()));
    sets.sort();
    let folder = plugin.and_then(Path::parent).map(|folder| folder.display().to_string());
    let libraries =
        folder.into_iter().chain(env::var("LD_LIBRARY_PATH").ok().filter(|path| !path.is_empty()));
    sets.insert(0, ("LD_LIBRARY_PATH".into(), libraries.collect::<Vec<_>>().join(":")));
    let (name, net) = match transport {
        Transport::Own => ("none".into(), "IB"),
        Transport::Plugin => (plugin.map_or_else(|| "mpib".into(), by_name), "MPIB"),
    };
    let values = [name, net.to_owned(), "WARN".to_owned()];
    sets.extend(CHOSEN.into_iter().map(str::to_owned).zip(values));
    let sets: Vec<String> =
        sets.into_iter().map(|(name, value)| format!("{name}={}", quoted(&value))).collect();
    format!("{launcher} env {} {} {ARGUMENTS}", sets.join(" "), quoted(program))
}

/// Returns what NCCL_NET_PLUGIN has for this file.
fn by_name(plugin: &Path) -> String {
    let name = plugin.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let short = name.strip_prefix("libnccl-net-").and_then(|name| name.strip_suffix(".so"));
    short.map_or_else(|| plugin.display().to_string(), str::to_owned)
}

/// Quotes a word for the shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@%^".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Runs a command. The inner error is why it has no table.
fn run(bench: &mut Bench<'_>, command: &str, limit: Duration) -> Result<Result<Table, String>, Failure> {
    if limit < Duration::from_secs(1) {
        return Ok(Err("there is no time left for it".into()));
    }
    eprintln!("mpib: {command}");
    let mut shell = Command::new("/bin/sh");
    // The launcher itself is the child, and ends with this process.
    shell.arg("-c").arg(format!("exec {command}"));
    let mut sign = Instant::now();
    let ended = Running::start(shell)?.end(limit, || {
        if sign.elapsed() >= SIGN {
            sign = Instant::now();
            bench.reading()?;
        }
        Ok(())
    })?;
    // A program that finds wrong values fails.
    Ok(match (Table::parse(&ended.output), &ended.failure) {
        (Some(table), None) => Ok(table),
        (Some(table), Some(_)) if table.wrong > 0 => Ok(table),
        (_, Some(failure)) => Err(format!("{command:?} {failure}; {}", ended.last_lines())),
        (None, None) => Err(format!(
            "{command:?} printed no table of nccl-tests with messages of 64M; {}",
            ended.last_lines()
        )),
    })
}

fn judge(
    found: &mut Findings,
    program: &str,
    least: u32,
    own: Result<Table, String>,
    plugin: Result<Table, String>,
) {
    let over = |transport: Transport| format!("over {}", transport.words());
    let wrong = |table: &Table| format!("{} results have wrong values", table.wrong);
    let own = own.and_then(|table| if table.wrong > 0 { Err(wrong(&table)) } else { Ok(table) });
    let plugin = match (plugin, &own) {
        (Ok(table), _) => table,
        (Err(why), Ok(_)) => {
            let remedy =
                "NCCL's own transport does it: look at the plugin's log of that command with NCCL_DEBUG=INFO";
            return found.fail(program, format!("{}: {why}", over(Transport::Plugin)), Some(remedy));
        }
        // Without one good run it may be the launcher.
        (Err(why), Err(_)) => {
            return found.not_run(
                program,
                format!("neither transport has a result; {}: {why}", over(Transport::Plugin)),
            );
        }
    };
    if plugin.wrong > 0 {
        let remedy = "the step gpu and GPUDirect: mpib doctor at both ends, ACS and IOMMU";
        return found.fail(program, format!("{}: {}", over(Transport::Plugin), wrong(&plugin)), Some(remedy));
    }
    let text = format!(
        "{} {} GB/s (busbw from 64M on), every value right",
        over(Transport::Plugin),
        giga(plugin.busbw)
    );
    match own {
        Err(why) => {
            found.ok(program, text);
            found.not_run(program, format!("nothing to compare with, {}: {why}", over(Transport::Own)));
        }
        Ok(own) if plugin.busbw < own.busbw * f64::from(least) / 100.0 => {
            let text = format!("{text}; expected {least} % of {}, {}", giga(own.busbw), over(Transport::Own));
            let remedy = "run both commands several times in turns; then send the bundle, with the log of NCCL_DEBUG=INFO";
            found.fail(program, text, Some(remedy));
        }
        Ok(own) => found.ok(program, format!("{text}; {} {}", over(Transport::Own), giga(own.busbw))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell_where_needed() {
        assert_eq!(quoted("/a/b_1.so:c,d=e"), "/a/b_1.so:c,d=e");
        assert_eq!([quoted(""), quoted("a b"), quoted("it's $x")], ["''", "'a b'", r"'it'\''s $x'"]);
    }

    #[test]
    fn nccl_finds_the_plugin_by_its_name_or_its_path() {
        assert_eq!(by_name(Path::new("/opt/lib/libnccl-net-mpib.so")), "mpib");
        assert_eq!(by_name(Path::new("/opt/lib/mpib.so")), "/opt/lib/mpib.so");
    }
}
