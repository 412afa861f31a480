//! One end of an exchange between two machines, each with the release's core. `tests/vm` runs it in
//! its guests. Reading a library needs more memory and time than a guest has, and is done before.

use std::{
    env, fs,
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    checks::{loading, with_exchange},
    child::Runner,
    facts::{self, Facts},
    failure::{Context, Failure, Result},
    fetch::Cache,
    matrix::{Matrix, Release},
    script::{Job, Plan, Role, StepResult},
    stage::Scratch,
};

/// Everything that an end needs to know about a release.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    release: Release,
    facts: Facts,
}

/// Options of one end.
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    role: Role,
    /// Address of the receiver.
    address: SocketAddr,
    /// The release's libnccl.so.2.
    #[arg(long)]
    library: PathBuf,
    /// The file that "facts" has written.
    #[arg(long)]
    facts: PathBuf,
    /// Limit of the whole exchange, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    deadline: u64,
}

/// Writes the file for both ends.
pub(crate) fn facts(file: &Path, release: Option<&String>) -> Result<ExitCode> {
    let matrix = Matrix::read()?;
    let release = matrix.one(release)?;
    let library = Cache::of_user(&matrix.package)?.fetch(&release)?;
    let facts = facts::read(&library, &release)?.facts;
    let text = serde_json::to_vec(&Known { release, facts }).cannot("write facts")?;
    fs::write(file, text).cannot(format!("write {}", file.display()))?;
    println!("{}", library.display());
    Ok(ExitCode::SUCCESS)
}

/// Prints which table the core uses and what was moved. The other end must start within the
/// deadline.
pub(crate) fn main(args: &EndArgs) -> Result<ExitCode> {
    let text = fs::read(&args.facts).cannot(format!("read {}", args.facts.display()))?;
    let Known { release, facts } = serde_json::from_slice(&text).cannot("understand the facts")?;
    let deadline = Duration::from_secs(args.deadline);
    let peer = meet(args.role, args.address, deadline)
        .map_err(|e| Failure::tool(format!("{:?} at {}: {e}", args.role, args.address)))?;
    let job = Job {
        library: args.library.clone(),
        facts,
        table: release.table,
        opens: release.opens.clone(),
        closes: release.closes.clone(),
        steps: with_exchange(Plan::whole()),
        peer: None,
    };
    let scratch = Scratch::new()?;
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let environment = env::vars_os().filter_map(text).collect();
    let account = Runner { scratch: &scratch, environment, deadline }.end(&job, args.role, peer.into())?;
    let table = loading::in_place(&release, &account)?;
    let tally = account.results.iter().find_map(|result| match result {
        StepResult::Exchanged(tally) => Some(tally),
        _ => None,
    });
    let tally = tally.ok_or_else(|| Failure::tool("the account has no exchange"))?;
    println!("NCCL {release}: {table}; {} messages, {} bytes", tally.messages, tally.bytes);
    Ok(ExitCode::SUCCESS)
}

/// Connects to the other end, which may start later.
fn meet(role: Role, address: SocketAddr, deadline: Duration) -> std::io::Result<TcpStream> {
    let end = Instant::now() + deadline;
    let mut attempt: Box<dyn FnMut() -> std::io::Result<TcpStream>> = match role {
        Role::Receiver => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Box::new(move || listener.accept().map(|(stream, _)| stream))
        }
        Role::Sender => Box::new(move || TcpStream::connect(address)),
    };
    loop {
        match attempt() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) if Instant::now() > end => {
                return Err(std::io::Error::new(ErrorKind::TimedOut, format!("no other end: {e}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
