//! Starts the ranks of a communicator as processes and follows them to their ends.

mod hub;
mod process;
mod shared_files;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

pub use self::process::{ends_with_us, on_host};
use self::{
    hub::{Event, Listener},
    process::Process,
};
use crate::rank::{Job, Message, Outcome, Reply};

/// Names under which programs open libraries that softcuda stands for.
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"];
/// How long the other ranks may go on after one has failed.
const MOMENT: Duration = Duration::from_secs(5);
/// How often ended processes are looked for.
const TICK: Duration = Duration::from_millis(50);

/// Follows ranks that repeat their tests (laps).
pub trait Director {
    /// Every rank has finished a lap and waits. `processes` has the id of each rank's process.
    /// Returns whether the ranks repeat their tests.
    fn lap(&mut self, processes: &[u32]) -> io::Result<bool>;

    /// Is called again and again while ranks run.
    fn tick(&mut self, processes: &[u32]) -> io::Result<()>;
}

/// Lets ranks run their tests once.
struct Once;

impl Director for Once {
    fn lap(&mut self, _: &[u32]) -> io::Result<bool> {
        Ok(false)
    }

    fn tick(&mut self, _: &[u32]) -> io::Result<()> {
        Ok(())
    }
}

/// What the ranks of any communicator need.
#[derive(Debug)]
pub struct World {
    program: PathBuf,
    /// `None`: the ranks run on this machine's GPUs.
    softcuda: Option<PathBuf>,
    scratch: PathBuf,
    silence: Duration,
}

/// A rank to start.
#[derive(Debug, Clone)]
pub struct Start {
    /// What the rank does. [`World::run`] sets its socket and `libsoftcuda.so`.
    pub job: Job,
    /// The complete environment. [`World::run`] puts softcuda, if used, first on `LD_LIBRARY_PATH`.
    pub environment: BTreeMap<String, String>,
    /// The name that the rank's process has for its host; `None`: this host's. Needs CAP_SYS_ADMIN.
    pub host_name: Option<String>,
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// As it should.
    Done(Outcome),
    /// With a failure that it reported itself.
    Failed {
        /// The last step that began.
        at: String,
        /// The failure.
        why: String,
    },
    /// Without a report: by a signal, or by `end_rank`.
    Died {
        /// The last step that began.
        at: String,
        /// The exit status.
        status: String,
        /// The last lines on stderr.
        last_words: String,
    },
    /// Killed, since no rank had made progress for too long or another one had failed.
    Killed {
        /// The last step that began.
        at: String,
        /// Why it was killed.
        why: String,
    },
}

impl End {
    /// Returns the outcome of a rank that ended as it should, or what happened.
    pub fn outcome(&self) -> Result<&Outcome, String> {
        match self {
            Self::Done(outcome) => Ok(outcome),
            Self::Failed { at, why } => Err(format!("failed at {at}: {why}")),
            Self::Died { at, status, last_words } => Err(format!("died at {at} ({status}): {last_words}")),
            Self::Killed { at, why } => Err(format!("killed at {at}: {why}")),
        }
    }
}

/// One rank of a run.
struct Member {
    process: Process,
    step: String,
    /// What the rank sent for an exchange that is not complete.
    exchanged: Option<Vec<u8>>,
    /// Whether the rank waits for the end of a lap.
    lap: bool,
    reply: Option<hub::Sender>,
    /// Whether the rank's end of the connection is closed: all its messages have arrived.
    closed: bool,
    report: Option<Message>,
    end: Option<End>,
}

impl World {
    /// Prepares for ranks. `program` and `softcuda` are the files `collective-rank` and
    /// `libsoftcuda.so`; without the latter, ranks run on this machine's GPUs. `scratch` is an empty
    /// folder that stays as long as ranks run. Ranks are killed if none makes progress for
    /// `silence`.
    pub fn new(
        program: &Path,
        softcuda: Option<&Path>,
        scratch: &Path,
        silence: Duration,
    ) -> io::Result<Self> {
        let built = |path: &Path| {
            fs::canonicalize(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        let (program, softcuda) = (built(program)?, softcuda.map(built).transpose()?);
        if let Some(softcuda) = &softcuda {
            NAMES.iter().try_for_each(|name| symlink(softcuda, scratch.join(name)))?;
        }
        Ok(Self { program, softcuda, scratch: scratch.to_owned(), silence })
    }

    /// Runs the ranks of a communicator. Returns how each has ended, in the order of `starts`.
    pub fn run(&self, starts: Vec<Start>) -> io::Result<Vec<End>> {
        self.direct(starts, &mut Once)
    }

    /// As [`Self::run`], with a director of the laps.
    pub fn direct(&self, starts: Vec<Start>, director: &mut dyn Director) -> io::Result<Vec<End>> {
        let begun = SystemTime::now();
        let ends = self.follow(starts, director);
        // All processes have ended.
        shared_files::remove_unused(Path::new(shared_files::FOLDER), begun)?;
        ends
    }

    fn follow(&self, starts: Vec<Start>, director: &mut dyn Director) -> io::Result<Vec<End>> {
        let listener = Listener::new(&self.scratch)?;
        let mut members = Vec::new();
        for start in starts {
            let Start { mut job, mut environment, host_name } = start;
            job.hub = listener.path().to_owned();
            job.softcuda.clone_from(&self.softcuda);
            if self.softcuda.is_some() {
                let path = environment.entry("LD_LIBRARY_PATH".into()).or_default();
                *path = format!("{}:{path}", self.scratch.display());
            }
            let process =
                Process::start(&self.program, &job, &environment, host_name.as_deref(), &self.scratch)?;
            let step = "start".to_owned();
            members.push(Member {
                process,
                step,
                exchanged: None,
                lap: false,
                reply: None,
                closed: false,
                report: None,
                end: None,
            });
        }
        let run = Run { members, silence: self.silence, progress: Instant::now(), failed: None, director };
        run.follow(&listener)
    }
}

/// The state of a run.
struct Run<'a> {
    members: Vec<Member>,
    silence: Duration,
    /// When a rank last sent something.
    progress: Instant,
    /// When the first rank failed.
    failed: Option<Instant>,
    director: &'a mut dyn Director,
}

impl Run<'_> {
    fn follow(mut self, listener: &Listener) -> io::Result<Vec<End>> {
        while self.members.iter().any(|member| member.end.is_none()) {
            if let Some(event) = listener.next(TICK) {
                self.progress = Instant::now();
                self.handle(event)?;
            }
            (0..self.members.len()).try_for_each(|rank| self.collect(rank))?;
            self.watch();
            let processes = self.processes();
            self.director.tick(&processes)?;
        }
        Ok(self.members.into_iter().filter_map(|member| member.end).collect())
    }

    fn handle(&mut self, (rank, event): (u32, Event)) -> io::Result<()> {
        let Some(member) = self.members.get_mut(rank as usize) else {
            return Err(io::Error::other(format!("a process reported as rank {rank}, which does not exist")));
        };
        match event {
            Event::Connected(sender) => member.reply = Some(sender),
            Event::Closed => member.closed = true,
            Event::Message(Message::Hello(_)) => {}
            Event::Message(Message::Step(step)) => member.step = step,
            Event::Message(Message::Exchange(bytes)) => {
                member.exchanged = Some(bytes);
                return self.exchange();
            }
            Event::Message(Message::Lap) => {
                member.lap = true;
                return self.lap();
            }
            Event::Message(report) => member.report = Some(report),
        }
        Ok(())
    }

    /// Replies to all ranks once each has sent its part.
    fn exchange(&mut self) -> io::Result<()> {
        if self.members.iter().any(|member| member.exchanged.is_none()) {
            return Ok(());
        }
        let all = self.members.iter_mut().filter_map(|member| member.exchanged.take()).collect();
        self.reply(&Reply::Exchanged(all));
        Ok(())
    }

    /// Lets the director decide once each rank has finished the lap.
    fn lap(&mut self) -> io::Result<()> {
        if self.members.iter().any(|member| !member.lap) {
            return Ok(());
        }
        self.members.iter_mut().for_each(|member| member.lap = false);
        let processes = self.processes();
        let repeat = self.director.lap(&processes)?;
        self.reply(&Reply::Repeat(repeat));
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.process.id()).collect()
    }

    fn reply(&mut self, reply: &Reply) {
        for sender in self.members.iter_mut().filter_map(|member| member.reply.as_mut()) {
            // A rank that died meanwhile is found by its closed socket.
            let _ = sender.send(reply);
        }
    }

    /// Takes the end of a rank whose process has ended.
    fn collect(&mut self, rank: usize) -> io::Result<()> {
        let member = &mut self.members[rank];
        // A connected rank's messages come before its end.
        if member.end.is_some() || (member.reply.is_some() && !member.closed) {
            return Ok(());
        }
        let Some(status) = member.process.status()? else { return Ok(()) };
        let at = member.step.clone();
        let end = match member.report.take() {
            Some(Message::Done(outcome)) => End::Done(outcome),
            Some(Message::Failed(why)) => End::Failed { at, why },
            _ => End::Died { at, status: status.to_string(), last_words: member.process.last_words() },
        };
        if !matches!(end, End::Done(_)) && !member.process.may_die() {
            self.failed.get_or_insert_with(Instant::now);
        }
        member.end = Some(end);
        Ok(())
    }

    /// Kills the ranks that make no progress, or that go on after another one has failed.
    fn watch(&mut self) {
        let why = if self.failed.is_some_and(|when| when.elapsed() > MOMENT) {
            "another rank had failed".to_owned()
        } else if self.progress.elapsed() > self.silence {
            format!("no rank made progress for {:?}", self.silence)
        } else {
            return;
        };
        for member in self.members.iter_mut().filter(|member| member.end.is_none()) {
            member.process.kill();
            let lines = member.process.last_words();
            let why = if lines.is_empty() { why.clone() } else { format!("{why}; last on stderr: {lines}") };
            member.end = Some(End::Killed { at: member.step.clone(), why });
        }
    }
}
