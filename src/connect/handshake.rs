//! The driver of a handshake: it gives the [`Machine`] the messages of the control connection, the time and the results of local work, and
//! carries out the machine's actions. It decides nothing itself. Advanced by polling.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use crate::agent::{Flow, Options};
use crate::connect::bringup::Bringup;
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::formed::Formed;
use crate::connect::local_rails::{LocalRail, prepare, turn};
use crate::connect::machine::{Action, Machine, Outcome, Report};
use crate::connect::probe::ProbeRun;
use crate::connect::registration::unhinted;
use crate::control::{Channel, State};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::proto::{Handle, Hello, Message, Role};
use crate::transport::Settings;
use crate::transport::comm::Comm;

/// A handshake in progress.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    settings: Arc<Settings>,
    /// Name of the device that NCCL requested.
    device: String,
    /// `None` after the end of the handshake.
    channel: Option<Channel>,
    local_rails: Vec<LocalRail>,
    machine: Machine,
    work: Work,
}

/// The local objects, at the stage that the machine has requested.
#[derive(Debug)]
enum Work {
    None,
    Local(LocalEndpoint),
    BringUp(Bringup),
    Joined(Endpoint),
    Probe(ProbeRun),
    Formed(Formed),
    /// As [`Formed`](Self::Formed), until the agent has given a hint.
    Hint(Formed),
}

impl Handshake {
    /// Begins as the connecting end, which becomes the sender.
    pub(crate) fn connect(settings: &Arc<Settings>, device: &Device, handle: &Handle) -> Result<Self> {
        let (local_rails, hello) = prepare(&settings.config, device, turn(device, handle))?;
        let config = &settings.config;
        let channel = Channel::connect(handle, &hello, config.connect_timeout, config.peer_timeout)?;
        Ok(Self::new(Role::Connector, settings, device, channel, (local_rails, hello)))
    }

    /// Begins as the listening end, on a control connection whose peer has sent its HELLO.
    pub(crate) fn accept(settings: &Arc<Settings>, device: &Device, channel: Channel) -> Result<Self> {
        match prepare(&settings.config, device, 0) {
            Ok(local) => Ok(Self::new(Role::Acceptor, settings, device, channel, local)),
            Err(e) => {
                // The peer may be gone, which changes nothing.
                let _ = channel.send(&Message::Refuse { reason: e.to_string() });
                channel.close();
                Err(e)
            }
        }
    }

    fn new(
        role: Role,
        settings: &Arc<Settings>,
        device: &Device,
        channel: Channel,
        (local_rails, hello): (Vec<LocalRail>, Hello),
    ) -> Self {
        let device = device.name.to_string_lossy().into_owned();
        let patience = Options::from(&*settings.config).patience();
        let machine = Machine::new(role, Instant::now(), &settings.config, device.clone(), hello, patience);
        let settings = Arc::clone(settings);
        Self { role, settings, device, channel: Some(channel), local_rails, machine, work: Work::None }
    }

    /// Goes as far as possible without waiting; returns the comm once both ends use it. An error has been sent to the peer.
    pub(crate) fn poll(&mut self) -> Result<Option<(Comm, Option<Flow>)>> {
        loop {
            while let Some(action) = self.machine.poll_action() {
                match action {
                    Action::Established => return self.established().map(Some),
                    Action::Fail(e) => {
                        self.channel.take().into_iter().for_each(Channel::close);
                        return Err(e);
                    }
                    action => {
                        if let Err(e) = self.perform(action) {
                            self.machine.on_done(Instant::now(), Outcome::Failed(e));
                        }
                    }
                }
            }
            if !self.advance()? {
                return Ok(None);
            }
        }
    }

    /// Gives the machine one input; returns whether there was one. Finished work and messages come before time limits: a rank that
    /// polls late has not necessarily waited in vain.
    fn advance(&mut self) -> Result<bool> {
        let now = Instant::now();
        if let Some(outcome) = self.finished() {
            self.machine.on_done(now, outcome);
            return Ok(true);
        }
        let channel = channel(&self.channel)?;
        match channel.try_recv() {
            Ok(None) => {
                if channel.peer().is_some() {
                    self.machine.on_connected(now);
                }
                if self.machine.deadline().is_none_or(|deadline| now < deadline) {
                    return Ok(false);
                }
                self.machine.set_peer(channel.describe());
                self.machine.on_timer(now);
            }
            Ok(Some(message)) => {
                self.machine.set_peer(channel.describe());
                self.machine.on_message(now, message);
            }
            Err(e) => self.machine.on_lost(e),
        }
        Ok(true)
    }

    /// Advances the work in progress; returns its outcome if it has ended.
    fn finished(&mut self) -> Option<Outcome> {
        let ended = match &mut self.work {
            Work::BringUp(bringup) => bringup.poll(self.role, &self.settings, &self.local_rails),
            Work::Probe(probe) => probe.poll(),
            Work::Hint(formed) => formed.flow.as_ref().is_some_and(Flow::hinted),
            Work::None | Work::Local(_) | Work::Joined(_) | Work::Formed(_) => false,
        };
        if !ended {
            return None;
        }
        let (work, outcome) = match std::mem::replace(&mut self.work, Work::None) {
            Work::BringUp(bringup) => {
                let endpoint = bringup.finish();
                let eces = endpoint.eces.clone();
                (Work::Joined(endpoint), Outcome::BroughtUp(eces))
            }
            Work::Probe(probe) => {
                let results = probe.results();
                (Work::Joined(probe.endpoint), Outcome::Probed(results))
            }
            Work::Hint(formed) => (Work::Formed(formed), Outcome::Hinted),
            work => (work, Outcome::Failed(out_of_place())),
        };
        self.work = work;
        Some(outcome)
    }

    fn perform(&mut self, action: Action) -> Result<()> {
        let channel = channel(&self.channel)?;
        let work = std::mem::replace(&mut self.work, Work::None);
        let (work, outcome) = match (action, work) {
            (Action::Send(message), work) => {
                let sent = channel.send(&message);
                // The loss of the peer comes to light after the peer's last messages, which may give the reason.
                sent.or_else(|e| if channel.state() == State::Open { Err(e) } else { Ok(()) })?;
                (work, None)
            }
            (Action::Await(step), work) => {
                step.map_or_else(|| channel.settled(), |step| channel.expect(step));
                (work, None)
            }
            (Action::Warn(text), work) => {
                tracing::warn!(target: "net", "{text}");
                (work, None)
            }
            (Action::Report(report), work) => {
                log_first(&report, &self.device, channel.peer().map(|peer| peer.ip()));
                (work, None)
            }
            (Action::MakeEndpoint(stripes), work) => {
                drop(work);
                let local = LocalEndpoint::new(self.role, &self.settings, &self.local_rails, &stripes)?;
                let wiring = local.message(self.role, &self.settings)?;
                (Work::Local(local), Some(Outcome::Made(wiring)))
            }
            (Action::BringUp(peer), Work::Local(local)) => {
                let bringup = local.join(self.role, &self.local_rails, channel.describe(), peer);
                (Work::BringUp(bringup), None)
            }
            (Action::Probe, Work::Joined(endpoint)) => (Work::Probe(ProbeRun::start(endpoint)), None),
            (Action::Stop, Work::Probe(mut probe)) => {
                probe.stop();
                (Work::Probe(probe), None)
            }
            (Action::Keep(keep), Work::Joined(endpoint)) => {
                let formed = Formed::new(self.role, &self.settings, channel, endpoint, &keep)?;
                let registered = formed.flow.is_some();
                (Work::Formed(formed), Some(Outcome::Kept { registered }))
            }
            (Action::AwaitHint, Work::Formed(formed)) => (Work::Hint(formed), None),
            (Action::Stop, Work::Hint(Formed { flow: Some(flow), .. })) => {
                return Err(unhinted(&channel.describe(), &flow, &self.settings.config));
            }
            _ => return Err(out_of_place()),
        };
        self.work = work;
        if let Some(outcome) = outcome {
            self.machine.on_done(Instant::now(), outcome);
        }
        Ok(())
    }

    fn established(&mut self) -> Result<(Comm, Option<Flow>)> {
        match (self.channel.take(), std::mem::replace(&mut self.work, Work::None)) {
            (Some(channel), Work::Formed(formed)) => Ok(formed.into_comm(channel)),
            _ => Err(out_of_place()),
        }
    }
}

fn channel(channel: &Option<Channel>) -> Result<&Channel> {
    channel.as_ref().ok_or_else(|| Error::Internal("the handshake is over".into()))
}

fn out_of_place() -> Error {
    Error::Internal("a handshake's action does not fit its work".into())
}

fn log_first(report: &Report, device: &str, host: Option<IpAddr>) {
    let Report { fault, text } = report;
    match first_time(device, host) {
        true if *fault => tracing::warn!(target: "net", "{text}"),
        true => tracing::info!(target: "net", "{text}"),
        false => {}
    }
}

/// Devices, and hosts that they do not reach as asked for.
type Told = HashSet<(String, Option<IpAddr>)>;

/// Whether nothing was told yet of this device and this host. Hosts beyond a number that no job has are not told of.
fn first_time(device: &str, host: Option<IpAddr>) -> bool {
    const MOST: usize = 1 << 16;
    static TOLD: LazyLock<Mutex<Told>> = LazyLock::new(Mutex::default);
    // The set is whole after a panic: each use is one insertion.
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    told.len() < MOST && told.insert((device.to_owned(), host))
}
