//! Kernels as jobs of a stream.

use std::sync::OnceLock;

use crate::{
    kernel::{self, Kernel, Launch, Program},
    layout::Layout,
    state::state,
    stream::{Job, Progress, Steps},
    unknown::{Unknown, end_rank},
};

/// Returns a job that does what a kernel does.
pub(crate) fn job(launch: Launch) -> Job {
    Job::Steps(Box::new(Running::Launched(launch)))
}

/// A kernel. Its works are read when the stream has come to it.
enum Running {
    Launched(Launch),
    Started(Kernel),
}

impl Steps for Running {
    fn step(&mut self) -> Progress {
        self.advance().unwrap_or_else(|unknown| end_rank(&unknown))
    }
}

impl Running {
    fn advance(&mut self) -> Result<Progress, Unknown> {
        let kernel = match self {
            Self::Started(kernel) => kernel,
            Self::Launched(launch) => {
                *self = Self::Started(program()?.start(launch)?);
                return Ok(Progress::Moved);
            }
        };
        Ok(match kernel.step()? {
            kernel::Progress::Done => Progress::Done,
            kernel::Progress::Moved => Progress::Moved,
            kernel::Progress::Waiting => Progress::Waiting,
        })
    }
}

/// Returns what the kernels of the attached library do.
fn program() -> Result<&'static Program, Unknown> {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let image = &state().image;
    let layout = Layout::of(image.path())
        .map_err(|error| Unknown::new("layout of", image.path().display()).found(error))?;
    let program = Program::new(layout, image)?;
    Ok(PROGRAM.get_or_init(|| program))
}
