//! A worker on each host, connected.

use crate::host::{Outcome, Talk};
use crate::world::{Worker, World};

/// The workers of host 1 and host 2.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) a: Worker,
    pub(crate) b: Worker,
}

/// The data of a transfer: see [`crate::transfer::Spec`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) sizes: &'a str,
    pub(crate) group: usize,
    pub(crate) depth: usize,
    pub(crate) rounds: usize,
}

impl Load<'_> {
    /// `n` messages of 1 MiB.
    pub(crate) const fn mebibytes(n: usize) -> Self {
        Self { sizes: "1048576", group: 1, depth: 4, rounds: n.div_ceil(4) }
    }

    pub(crate) fn command(&self, way: &str) -> String {
        let Self { sizes, group, depth, rounds } = self;
        format!("move way={way} sizes={sizes} group={group} depth={depth} rounds={rounds} seed=1")
    }
}

/// Answers of both ends to one step: first the connecting or sending end, then the other.
pub(crate) type Both = (Outcome, Outcome);

/// Returns the first end's answer if both ends succeeded, else the errors.
pub(crate) fn good(both: Both) -> Outcome {
    match both {
        (Ok(a), Ok(_)) => Ok(a),
        (Err(a), Err(b)) => Err(format!("{a}; {b}")),
        (Err(e), Ok(_)) | (Ok(_), Err(e)) => Err(e),
    }
}

/// Makes `n` connections from one worker to another, and returns the answers of both.
pub(crate) fn connect(from: &mut Talk, to: &mut Talk, n: usize) -> Outcome<Both> {
    let handles = to.ask(&format!("listen n={n}"))?;
    to.say("accept")?;
    from.say(&format!("connect {handles}"))?;
    Ok((from.answer(), to.answer()))
}

impl Pair {
    /// Starts both workers with the same settings.
    pub(crate) fn start(world: &World, abi: u32, env: &[(&str, &str)]) -> Outcome<Self> {
        Ok(Self { a: world.worker(0, abi, env)?, b: world.worker(1, abi, env)? })
    }

    /// Starts both workers and connects host 1 to host 2.
    pub(crate) fn connected(world: &World, abi: u32, env: &[(&str, &str)]) -> Outcome<Self> {
        let mut pair = Self::start(world, abi, env)?;
        good(pair.connect()?)?;
        Ok(pair)
    }

    /// Connects host 1 to host 2.
    pub(crate) fn connect(&mut self) -> Outcome<Both> {
        connect(&mut self.a.talk, &mut self.b.talk, 1)
    }

    /// Connects host 2 to host 1.
    pub(crate) fn connect_back(&mut self) -> Outcome<Both> {
        connect(&mut self.b.talk, &mut self.a.talk, 1)
    }

    /// Sends from host 1 to host 2, over every connection.
    pub(crate) fn send(&mut self, load: Load<'_>) -> Outcome {
        self.a.talk.say(&load.command("send"))?;
        self.b.talk.say(&load.command("recv"))?;
        good((self.a.talk.answer(), self.b.talk.answer()))
    }

    /// Sends in both directions at the same time, over every connection.
    pub(crate) fn exchange(&mut self, load: Load<'_>) -> Outcome {
        self.a.talk.say(&load.command("both"))?;
        self.b.talk.say(&load.command("both"))?;
        good((self.a.talk.answer(), self.b.talk.answer()))
    }

    /// Starts a transfer from host 1 to host 2 that does not end by itself.
    pub(crate) fn stream(&mut self) -> Outcome<()> {
        self.begin(Load { sizes: "262144", group: 1, depth: 4, rounds: 1_000_000 })
    }

    /// Starts a transfer from host 1 to host 2, and returns while it is under way.
    pub(crate) fn begin(&mut self, load: Load<'_>) -> Outcome<()> {
        self.b.talk.say(&load.command("recv"))?;
        self.a.talk.say(&format!("{} tell=1", load.command("send")))?;
        match self.a.talk.line()?.as_str() {
            "moving" => Ok(()),
            other => Err(format!("the sender said {other:?}")),
        }
    }

    /// Returns the bytes that host 1 sends on each rail while `f` runs.
    pub(crate) fn carried(
        &mut self,
        world: &World,
        f: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome<[u64; 2]> {
        let before = world.sent(&mut self.a)?;
        f(self)?;
        let after = world.sent(&mut self.a)?;
        Ok([0, 1].map(|rail| after[rail] - before[rail]))
    }

    /// Closes all comms of both workers.
    pub(crate) fn close(mut self) -> Outcome<()> {
        self.a.talk.ask("close")?;
        self.b.talk.ask("close")?;
        Ok(())
    }
}
