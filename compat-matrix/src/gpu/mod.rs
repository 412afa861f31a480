//! Runs real collectives on a GPU, through the plugin and through NCCL's sockets. Two ranks share
//! one device, and each rank sees the other as another host.

mod cuda;
mod rank;

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

pub(crate) use rank::run;

use crate::{
    child::Runner,
    facts,
    failure::{Failure, Result},
    fetch::Cache,
    matrix::Matrix,
    script::{Account, Collected, Job, Step, Told},
    stage::{Folder, RAILS, Stage},
};

/// Bytes that each rank sends.
const SIZES: [usize; 4] = [4 << 10, 256 << 10, 4 << 20, 32 << 20];

/// Options of a run on a GPU.
#[derive(Debug, Args)]
pub(crate) struct GpuArgs {
    /// A release of matrix.toml; the newest if none is named.
    release: Option<String>,
    /// Limit for two ranks, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    deadline: u64,
    /// The folder in which "make build" put the plugin and softverbs.
    #[arg(long, value_name = "FOLDER", default_value = "build")]
    build: PathBuf,
}

/// Runs the command. Without a GPU, only prints that there is none.
pub(crate) fn main(args: &GpuArgs) -> Result<ExitCode> {
    match cuda::Cuda::load().and_then(|cuda| cuda.devices()) {
        Ok(1..) => {}
        Ok(_) => return none("the driver has no device"),
        Err(failure) => return none(&failure.message),
    }
    let matrix = Matrix::read()?;
    let release = matrix.one(args.release.as_ref())?;
    let library = Cache::of_user(&matrix.package)?.fetch(&release)?;
    let stage = Stage::set(&args.build)?;
    let (facts, _) = facts::read(&library, &release)?;
    let job = Job {
        library,
        facts,
        table: release.table,
        opens: release.opens,
        closes: release.closes,
        steps: vec![Step::Collectives(SIZES.to_vec())],
        peer: None,
    };
    let measure = |net: &str| collectives(&stage, &job, net, Duration::from_secs(args.deadline));
    let (ours, sockets) = (measure("MPIB")?, measure("Socket")?);
    for rail in RAILS {
        if ours.rails.get(rail).is_none_or(|bytes| *bytes == 0) {
            return Err(Failure::wrong(format!("rail {rail} carried nothing: {:?}", ours.rails)));
        }
    }
    println!(
        "NCCL {}, two ranks on one GPU, every value checked; GB/s by what a rank sends",
        release.version
    );
    println!("{:12} {:>10} {:>10} {:>10}", "", "bytes", "MPIB", "Socket");
    for (a, b) in ours.times.iter().zip(&sockets.times) {
        let rate = |seconds: f64| a.bytes as f64 / seconds / 1e9;
        println!("{:12} {:>10} {:>10.3} {:>10.3}", a.operation, a.bytes, rate(a.seconds), rate(b.seconds));
    }
    Ok(ExitCode::SUCCESS)
}

fn none(why: &str) -> Result<ExitCode> {
    println!("no GPU ({why}): nothing was run");
    Ok(ExitCode::SUCCESS)
}

/// Runs both ranks through one network; returns rank 0's measurement.
fn collectives(stage: &Stage, job: &Job, net: &str, deadline: Duration) -> Result<Collected> {
    let mut environment = stage.environment(&Folder::Whole)?;
    let mut set = |name: &str, value: String| environment.insert(name.to_owned(), value);
    set("NCCL_NET", net.to_owned());
    // The rails are simulated: they access host memory only.
    set("NCCL_NET_GDR_LEVEL", "LOC".to_owned());
    if let Ok(chosen) = env::var("CUDA_VISIBLE_DEVICES") {
        set("CUDA_VISIBLE_DEVICES", chosen);
    }
    // The driver's library may be on the user's path only.
    if let (Ok(path), Some(ours)) = (env::var("LD_LIBRARY_PATH"), environment.get_mut("LD_LIBRARY_PATH")) {
        *ours += &format!(":{path}");
    }
    let at = |e: Failure| Failure { message: format!("NCCL_NET={net}: {}", e.message), ..e };
    let [first, _]: [Account; 2] =
        Runner { scratch: &stage.home, environment, deadline }.pair(job).map_err(at)?;
    let collected = first.told.into_iter().find_map(|told| match told {
        Told::Collected(collected) => Some(collected),
        _ => None,
    });
    collected.ok_or_else(|| Failure::tool("rank 0's account has no collectives"))
}
