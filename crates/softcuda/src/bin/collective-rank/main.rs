//! `collective-rank`: one rank of real NCCL collectives, on softcuda or on a GPU. Its only argument is a file
//! with a [`Job`]; the program that started it hears of every step through a Unix socket.

mod cuda;
mod library;
mod nccl;
mod one_sided;
mod run;

use std::{env, error::Error, fs, process::ExitCode};

use softcuda::rank::{Hub, Job, Message};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn job() -> Result<Job> {
    let path = env::args_os().nth(1).ok_or("expected a file with a job (see softcuda::rank::Job)")?;
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn main() -> ExitCode {
    let started = job().and_then(|job| {
        let hub = Hub::connect(&job.hub, job.rank)?;
        Ok((job, hub))
    });
    let (job, mut hub) = match started {
        Ok(started) => started,
        Err(e) => {
            eprintln!("collective-rank: {e}");
            return ExitCode::from(2);
        }
    };
    let (message, code) = match run::run(&job, &mut hub) {
        Ok(outcome) => (Message::Done(outcome), ExitCode::SUCCESS),
        Err(e) => (Message::Failed(e.to_string()), ExitCode::FAILURE),
    };
    if let Err(e) = hub.send(&message) {
        eprintln!("collective-rank: cannot report {message:?}: {e}");
        return ExitCode::FAILURE;
    }
    code
}
