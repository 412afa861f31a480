//! The local part of a handshake: queue pairs, probes and the registration with the agent, at the
//! stage that the machine requests.

use std::sync::Arc;

use crate::agent::Subscription;
use crate::connect::bringup::Bringup;
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::formed::Formed;
use crate::connect::known_failures::KnownFailures;
use crate::connect::local_rails::{LocalRail, add_others, prepare};
use crate::connect::machine::{Action, Member, Outcome, Report, Stripes};
use crate::connect::probe::ProbeRun;
use crate::connect::registration::unhinted;
use crate::connect::substitutes::check_distance;
use crate::control::Channel;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::proto::{PORT_CHANGED, Role, Wiring};
use crate::route::Route;
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::warned::Subject;

/// The local objects of one end.
#[derive(Debug)]
pub(crate) struct LocalWork {
    role: Role,
    settings: Arc<Settings>,
    rails: Vec<LocalRail>,
    /// The device that NCCL requested.
    device: &'static Device,
    /// The routes of the attempt in progress, one for each stripe.
    stripes: Vec<Route>,
    known: KnownFailures,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    None,
    Local(LocalEndpoint),
    BringUp(Bringup),
    Joined(Endpoint),
    Probe(Box<ProbeRun>),
    Formed(Formed),
    /// As [`Formed`](Self::Formed), until the agent has given a hint.
    Hint(Formed),
}

impl LocalWork {
    pub(crate) fn new(
        role: Role,
        settings: &Arc<Settings>,
        device: &'static Device,
        rails: Vec<LocalRail>,
    ) -> Self {
        Self {
            role,
            settings: Arc::clone(settings),
            rails,
            device,
            stripes: Vec::new(),
            known: KnownFailures::new(),
            stage: Stage::None,
        }
    }

    /// Creates the queue pairs of the stripes that a connector expects, and describes them.
    pub(crate) fn offer(&mut self, stripes: &Stripes) -> Result<Wiring> {
        let (local, wiring) = self.make(stripes)?;
        self.stage = Stage::Local(local);
        Ok(wiring)
    }

    fn make(&self, stripes: &Stripes) -> Result<(LocalEndpoint, Wiring)> {
        let local = LocalEndpoint::new(self.role, &self.settings, &self.rails, stripes)?;
        let wiring = local.message(self.role, &self.settings)?;
        Ok((local, wiring))
    }

    /// Starts, ends or carries out the work of an action; returns the outcome of work that takes no
    /// time.
    pub(crate) fn perform(&mut self, action: Action, channel: &Channel) -> Result<Option<Outcome>> {
        let (role, settings) = (self.role, &self.settings);
        let stage = std::mem::replace(&mut self.stage, Stage::None);
        let (stage, outcome) = match (action, stage) {
            (Action::MakeEndpoint(stripes), stage) => {
                // The queue pairs of the attempt before are destroyed first.
                drop(stage);
                self.known.remember();
                let (local, wiring) = self.make(&stripes)?;
                self.stripes = stripes.each.iter().map(|(route, _)| *route).collect();
                (Stage::Local(local), Some(Outcome::Made(wiring)))
            }
            (Action::Adopt(stripes), Stage::Local(mut local)) => {
                self.stripes = stripes.each.iter().map(|(route, _)| *route).collect();
                local.adopt(&self.stripes);
                (Stage::Local(local), None)
            }
            (Action::ListPorts(first), stage) => {
                let hello = add_others(settings, self.device, &mut self.rails, &first)?;
                (stage, Some(Outcome::Listed(hello)))
            }
            (Action::ListAgain(rotation), stage) => {
                // Nothing is learnt from ports that were down.
                drop(stage);
                self.known = KnownFailures::new();
                let (rails, hello) = prepare(settings, self.device, rotation)?;
                self.rails = rails;
                (Stage::None, Some(Outcome::Listed(hello)))
            }
            (Action::BringUp(peer), Stage::Local(local)) => {
                self.known.begin(&peer);
                let name = channel.describe();
                let known = |route: &Route| self.known.of(role, &self.rails, route);
                (Stage::BringUp(Bringup::start(local, role, &self.rails, name, peer, known)), None)
            }
            (Action::Probe, Stage::Joined(endpoint)) => {
                (Stage::Probe(Box::new(ProbeRun::start(endpoint, None))), None)
            }
            (Action::Stop, Stage::Probe(mut probe)) => {
                probe.stop(settings);
                (Stage::Probe(probe), None)
            }
            (Action::Abandon(mask), Stage::Probe(mut probe)) => {
                probe.abandon(mask);
                (Stage::Probe(probe), None)
            }
            (Action::PeerFailed(mask), Stage::Probe(mut probe)) => {
                probe.peer_failed(mask);
                (Stage::Probe(probe), None)
            }
            (Action::Forget(routes), stage) => {
                self.known.forget(&routes);
                (stage, None)
            }
            (Action::Keep(keep), Stage::Joined(endpoint)) => {
                self.known.remember();
                if keep.substitute {
                    let nic = |member: &Member| &self.rails[*member.route().rails.local(role)].nic;
                    let used: Vec<_> = keep.members.iter().map(nic).collect();
                    check_distance(settings, &self.device.rails, &used)?;
                }
                let formed = Formed::new((role, settings), channel, &self.rails, endpoint, keep)?;
                let registered = formed.flow.is_some();
                (Stage::Formed(formed), Some(Outcome::Kept { registered }))
            }
            (Action::AwaitHint, Stage::Formed(formed)) => (Stage::Hint(formed), None),
            (Action::Stop, Stage::Hint(Formed { flow: Some(flow), .. })) => {
                return Err(unhinted(&channel.describe(), &flow, &settings.config));
            }
            _ => return Err(out_of_place()),
        };
        self.stage = stage;
        Ok(outcome)
    }

    /// Advances the work in progress; returns its outcome once it has ended.
    pub(crate) fn poll(&mut self) -> Option<Outcome> {
        let ended = match &mut self.stage {
            Stage::BringUp(bringup) => bringup.poll(self.role, &self.settings, &self.rails),
            Stage::Probe(probe) => probe.poll(&self.settings),
            Stage::Hint(formed) => formed.flow.as_ref().is_some_and(Subscription::hinted),
            Stage::None | Stage::Local(_) | Stage::Joined(_) | Stage::Formed(_) => false,
        };
        if !ended {
            return None;
        }
        let (stage, outcome) = match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::BringUp(bringup) => {
                let endpoint = bringup.finish();
                let eces = endpoint.eces.clone();
                (Stage::Joined(endpoint), Outcome::BroughtUp(eces))
            }
            Stage::Probe(probe) => {
                let mut results = self.known.learn(self.role, &self.rails, &self.stripes, &probe.endpoint);
                for (route, result) in self.stripes.iter().zip(&mut results) {
                    let rail = &self.rails[*route.rails.local(self.role)];
                    if rail.has_changed() {
                        *result =
                            std::mem::replace(result, Ok(())).map_err(|why| format!("{PORT_CHANGED}{why}"));
                    }
                }
                // What the HELLO had may be out of date.
                if results.iter().any(Result::is_err) {
                    self.rails.iter().for_each(|rail| rail.nic.forget());
                }
                (Stage::Joined(probe.endpoint), Outcome::Probed(results))
            }
            Stage::Hint(formed) => (Stage::Formed(formed), Outcome::Hinted),
            stage => (stage, Outcome::Failed(out_of_place())),
        };
        self.stage = stage;
        Some(outcome)
    }

    /// Logs a report if it is the first on its device and host.
    pub(crate) fn log_first(&self, report: &Report, device: &str, channel: &Channel) {
        let Report { fault, text } = report;
        let host = channel.peer().map(|peer| peer.ip());
        match self.settings.process.warned.once(Subject::Substituted(device.to_owned(), host)) {
            true if *fault => tracing::warn!(target: "net", "{text}"),
            true => tracing::info!(target: "net", "{text}"),
            false => {}
        }
    }

    /// Returns the comm of the connection and its registration with the agent.
    pub(crate) fn take_comm(&mut self, channel: Channel) -> Result<(Comm, Option<Subscription>)> {
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Formed(formed) => Ok(formed.into_comm(&self.settings.process, channel)),
            _ => Err(out_of_place()),
        }
    }
}

fn out_of_place() -> Error {
    Error::Internal("an action of a handshake does not fit its local work".into())
}
