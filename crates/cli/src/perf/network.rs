//! Measures one size while the network between the two workers is silent. No message of theirs arrives
//! meanwhile: rounds follow each other without any, and a shorter message ends the last one.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    process::Child,
    thread::{self, JoinHandle},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    breaker::{Guard, ended, take_out},
    flow::{Round, Tail},
    link::{Link, Message, expect_message},
    measure::Measurement,
    report::{Stage, StageKind},
    session::Session,
};
use crate::failure::{Failure, Kind};

/// Longest wait for an answer that must not come.
const ANSWER: Duration = Duration::from_secs(5);

/// Commands that silence the network between the workers, and restore it. Only the operator of this
/// machine names them: they are no part of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NetworkOutage {
    pub(crate) down: String,
    pub(crate) up: String,
    /// Seconds after which it is restored: nobody can be reached to request that.
    pub(crate) seconds: f64,
    /// Seconds after which it is restored in any case.
    pub(crate) at_most: f64,
}

impl Measurement<'_> {
    /// Leads as end A: rounds before, without and after the network.
    pub(super) fn lead_in_silence(
        &mut self,
        session: &mut Session<'_>,
        mut round: Round,
        most: usize,
        outage: &NetworkOutage,
    ) -> Result<Vec<Stage>, Failure> {
        round.groups = most.min(8 * round.depth);
        self.lead_round(session, &round)?;
        self.reset();
        let before = self.attended(session, &mut round, StageKind::Before)?;
        let without = self.lead_unattended(session, &mut round, outage)?;
        let after = self.attended(session, &mut round, StageKind::After)?;
        Ok(vec![before, without, after])
    }

    /// Leads rounds for the time of a stage.
    fn attended(
        &mut self,
        session: &mut Session<'_>,
        round: &mut Round,
        kind: StageKind,
    ) -> Result<Stage, Failure> {
        let since = self.begin();
        loop {
            round.first += round.messages() as u64;
            self.lead_round(session, round)?;
            if since.time.elapsed() >= session.plan.time {
                return Ok(self.end(kind, &since, round.size));
            }
        }
    }

    fn lead_unattended(
        &mut self,
        session: &mut Session<'_>,
        round: &mut Round,
        outage: &NetworkOutage,
    ) -> Result<Stage, Failure> {
        let since = self.begin();
        round.first += round.messages() as u64;
        session.link.send(&Message::Unattended { first: round.first, groups: round.groups })?;
        expect_message!(session.link, Message::Ready => ());
        let mut silence = Silence::begin(session.link, outage)?;
        self.stall = Duration::ZERO;
        while round.tail != Tail::Short {
            if silence.is_over()? {
                round.tail = Tail::Short;
            }
            self.prepare(session, round)?;
            self.transfer_alone(session, round)?;
            round.first += round.messages() as u64;
        }
        round.tail = Tail::Whole;
        self.meet(session, Duration::ZERO)?;
        Ok(self.end(StageKind::Without, &since, round.size))
    }

    /// Follows as end B the rounds that nothing but data announces.
    pub(super) fn follow_unattended(
        &mut self,
        session: &mut Session<'_>,
        mut round: Round,
    ) -> Result<(), Failure> {
        round.tail = Tail::Open;
        session.link.send(&Message::Ready)?;
        loop {
            self.prepare(session, &round)?;
            if self.transfer_alone(session, &round)? == Tail::Short {
                return self.meet(session, Duration::ZERO).map(drop);
            }
            round.first += round.messages() as u64;
        }
    }
}

/// A time without the network. However this process ends, the network is restored.
struct Silence<'a> {
    outage: &'a NetworkOutage,
    there: SocketAddr,
    down: Child,
    guard: Guard,
    stage: Progress,
}

enum Progress {
    /// The command runs.
    Begins,
    /// The command has ended. The thread returns whether the other host answers nevertheless.
    Lasts(JoinHandle<bool>),
    /// It does not answer.
    Shown,
}

impl<'a> Silence<'a> {
    fn begin(link: &Link, outage: &'a NetworkOutage) -> Result<Self, Failure> {
        let no_network = || Failure::new(Kind::Usage, "both ends are on this machine");
        let [here, there] = link.addresses().ok_or_else(no_network)?;
        if link.siblings() == 0 {
            let text = format!(
                "no TCP connection of the plugin is between {} and {}: it uses another network (MPIB_OOB_IF, \
                 NCCL_SOCKET_IFNAME), or none",
                here.ip(),
                there.ip()
            );
            return Err(Failure::new(Kind::Usage, text));
        }
        let (down, guard) = take_out(&outage.down, &outage.up, outage.seconds, outage.at_most)?;
        Ok(Self { outage, there, down, guard, stage: Progress::Begins })
    }

    /// Returns whether the network is restored. Fails if a command has failed, or has no effect.
    fn is_over(&mut self) -> Result<bool, Failure> {
        match &self.stage {
            Progress::Begins if ended(&self.outage.down, &mut self.down)? => {
                // From now on the guard counts the time.
                self.guard.restore();
                let (there, time) = (self.there, Duration::from_secs_f64(self.outage.seconds));
                self.stage = Progress::Lasts(thread::spawn(move || {
                    thread::sleep(time / 2);
                    answers(there, ANSWER.min(time / 4))
                }));
                Ok(false)
            }
            Progress::Lasts(thread) if thread.is_finished() => {
                if let Progress::Lasts(thread) = std::mem::replace(&mut self.stage, Progress::Shown)
                    && thread.join().unwrap_or(true)
                {
                    let text = format!("{} still answers after {:?}", self.there, self.outage.down);
                    return Err(Failure::new(Kind::Timeout, text));
                }
                Ok(false)
            }
            Progress::Shown => ended(&self.outage.up, &mut self.guard.child),
            Progress::Begins | Progress::Lasts(_) => Ok(false),
        }
    }
}

/// Returns whether a host accepts or refuses a connection in this time.
fn answers(there: SocketAddr, time: Duration) -> bool {
    match TcpStream::connect_timeout(&there, time) {
        Ok(_) => true,
        Err(e) => matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
    }
}
