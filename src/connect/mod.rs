//! `listen`, `connect` and `accept`: NCCL calls each of the last two until it returns a comm.

mod again;
mod bringup;
mod endpoint;
mod formed;
mod handshake;
mod known_failures;
mod local_rails;
pub(crate) mod local_route;
mod local_work;
mod machine;
mod probe;
mod rebuild;
mod search;
#[cfg(test)]
pub(crate) mod tests;

#[cfg(any(test, feature = "simulation"))]
pub use machine::simulated;
use mpib_proto::{Handle, STATE_OFFSET};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nccl_net_versions::HandleBuf;
use parking_lot::Mutex;

use crate::clock;
use crate::connect::again::{Broken, Connecting};
use crate::connect::handshake::Handshake;
use crate::connect::local_work::LocalWork;
use crate::control::{Channel, Listener, Options};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::split::{HintSource, Splitter};
use crate::stats::Traffic;
use crate::transport::{RecvComm, SendComm, Settings};

/// A connection attempt between two calls of `connect`.
#[derive(Debug)]
struct PendingConnect {
    handshake: Connecting,
    /// The handle without the connector's bytes. The attempt's number in those is valid with this
    /// handle only.
    handle: [u8; STATE_OFFSET],
}

/// The connectors of one context that are between two calls of `connect`.
#[derive(Debug, Default)]
pub(crate) struct PendingConnects {
    /// By the number in the handle's last eight bytes.
    by_id: Mutex<HashMap<u64, Box<PendingConnect>>>,
    /// The last number. 0 is that of a handle without a connector.
    last: AtomicU64,
}

impl PendingConnects {
    /// Begins or continues a connection to the listener of `handle`. The last eight bytes of the
    /// handle hold the number of the attempt.
    pub(crate) fn connect(
        &self,
        settings: &Arc<Settings>,
        device: &'static Device,
        handle: &mut HandleBuf,
    ) -> Result<Option<SendComm>> {
        let mut state = [0; 8];
        state.copy_from_slice(&handle[STATE_OFFSET..]);
        let mut address = [0; STATE_OFFSET];
        address.copy_from_slice(&handle[..STATE_OFFSET]);
        let (id, mut entry) = match u64::from_le_bytes(state) {
            0 => {
                let listener = Handle::decode(handle).map_err(|e| {
                    if let Some(other) = Handle::of_other_version(handle) {
                        // The listener's end learns of it, or waits as for a peer that never comes.
                        let _ = Channel::report_version(&settings.process.control, &other);
                    }
                    Error::Argument(e.to_string())
                })?;
                let handshake = Connecting::start(settings, device, listener)?;
                let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                (id, Box::new(PendingConnect { handshake, handle: address }))
            }
            id => (id, self.remove(id, &address)?),
        };
        let polled = entry.handshake.poll(settings, device);
        if let Ok(None) = polled {
            handle[STATE_OFFSET..].copy_from_slice(&id.to_le_bytes());
            self.by_id.lock().insert(id, entry);
            return Ok(None);
        }
        // The attempt has ended. Another one may begin with the same handle.
        handle[STATE_OFFSET..].fill(0);
        let Some((comm, flow)) = polled? else { return Ok(None) };
        let speeds: Vec<_> = comm.rails.iter().map(|r| r.speeds).collect();
        let hints = flow.map(|flow| Box::new(flow.into_source()) as Box<dyn HintSource>);
        let (roles, ports) = (comm.roles(), comm.nics());
        let splitter =
            Splitter::open(comm.plan, &settings.config, hints, &roles, &speeds, &ports, clock::now());
        if let Some(reported) = splitter.reported() {
            settings.process.events.followers().add(reported, ports, speeds);
        }
        Ok(Some(SendComm::new(comm, splitter, settings)))
    }

    fn remove(&self, id: u64, address: &[u8; STATE_OFFSET]) -> Result<Box<PendingConnect>> {
        let mut table = self.by_id.lock();
        let ours = table.get(&id).is_some_and(|p| p.handle == *address);
        ours.then(|| table.remove(&id)).flatten().ok_or_else(|| {
            Error::Argument(format!(
                "the handle names connection attempt {id} of this process, and there is none for this \
                 handle: was the handle copied from a connector, or damaged?"
            ))
        })
    }

    /// Drops the connections that NCCL has begun and will not continue.
    pub(crate) fn abandon(self) {
        let dropped = self.by_id.into_inner().len();
        if dropped > 0 {
            tracing::info!(target: "net", "{dropped} connection attempts were abandoned");
        }
    }
}

/// The handshakes of a listener.
#[derive(Debug)]
struct UnderWay {
    handshakes: Vec<Handshake>,
    /// The last one that broke, whose connector tries again.
    broken: Option<Broken>,
    expected: Expected,
}

/// The queue pairs for the first peer, which usually has the same rails as this end.
#[derive(Debug)]
enum Expected {
    /// None yet: they are created when a call has nothing else to do.
    Unmade,
    Made(Box<LocalWork>),
    /// There are none, and none are created.
    Over,
}

/// A listening end, and the handshakes in progress.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    settings: Arc<Settings>,
    device: &'static Device,
    /// `None` while a call polls them, and for good after a panic in that call.
    handshakes: Mutex<Option<UnderWay>>,
}

impl Listening {
    /// Opens a listener and writes its handle.
    pub(crate) fn open(
        settings: &Arc<Settings>,
        device: &'static Device,
        handle: &mut HandleBuf,
    ) -> Result<Self> {
        let sout = device.rails.first().filter(|_| device.is_sout_sup);
        let sout = sout.and_then(|nic| nic.known().ok()).and_then(|(_, gids)| Some(gids.first()?.addr()));
        let adapters = || settings.process.devices.addrs();
        let options = Options { sout, adapters: &adapters, ..Options::from(&*settings.config) };
        let listener = Listener::open(&settings.process.control, &options)?;
        *handle = listener.handle().encode();
        let expected = match settings.traffic {
            Traffic::Messages => Expected::Unmade,
            // A peer comes with its first put, if there is one.
            Traffic::Windows => Expected::Over,
        };
        let handshakes = Mutex::new(Some(UnderWay { handshakes: Vec::new(), broken: None, expected }));
        Ok(Self { listener, settings: Arc::clone(settings), device, handshakes })
    }

    /// Returns the comm of the first peer whose handshake has succeeded. A failed handshake does
    /// not affect the others: its peer is sent the reason, and the log has it.
    ///
    /// # Errors
    /// The handshake with a peer that knows the listener's secret has failed, and no other is in
    /// progress. NCCL makes one connector for each listener: no other peer would come. If the control
    /// connection broke, its connector may come again for a while.
    pub(crate) fn accept(&self) -> Result<Option<RecvComm>> {
        let mut place = self.handshakes.lock();
        let mut under_way =
            place.take().ok_or_else(|| Error::Internal("a panic has interrupted the listener".into()))?;
        let accepted = self.poll(&mut under_way);
        *place = Some(under_way);
        accepted
    }

    fn poll(&self, UnderWay { handshakes, broken, expected }: &mut UnderWay) -> Result<Option<RecvComm>> {
        let mut failed = self.listener.refused();
        let mut fail = |e| failed.replace(e).iter().for_each(warn);
        // The next one follows at the next call.
        if let Some(channel) = self.listener.try_accept_unflushed()? {
            make_room(handshakes, self.settings.process.control.handshakes.limit(UNDER_WAY_MAX));
            let expected = match std::mem::replace(expected, Expected::Over) {
                Expected::Made(work) => Some(*work),
                Expected::Unmade | Expected::Over => None,
            };
            match Handshake::accept(&self.settings, self.device, channel, expected) {
                Ok(handshake) => handshakes.push(handshake),
                Err(e) => fail(e),
            }
        } else if let Expected::Unmade = expected {
            let made = Handshake::expect(&self.settings, self.device);
            *expected = made.map_or(Expected::Over, |work| Expected::Made(Box::new(work)));
        }
        let mut i = 0;
        while i < handshakes.len() {
            match handshakes[i].poll() {
                Ok(None) => i += 1,
                Ok(Some((comm, flow))) => {
                    handshakes.swap_remove(i);
                    handshakes.iter().for_each(Handshake::flush);
                    failed.iter().for_each(warn);
                    *broken = None;
                    return Ok(Some(RecvComm::new(comm, &self.settings, flow)));
                }
                Err(e) => {
                    let failed = handshakes.swap_remove(i);
                    match (failed.is_proved(), failed.broke_at()) {
                        (false, _) => note_unproved(&e),
                        // The peer may live, and its connector tries again.
                        (true, Some(_)) => *broken = Some(Broken::new(e, &self.settings.config)),
                        (true, None) => fail(e),
                    }
                }
            }
        }
        let over = broken.take_if(|broken| handshakes.is_empty() && broken.is_over());
        match failed.or(over.map(Broken::into_error)) {
            Some(e) if handshakes.is_empty() => Err(e),
            failed => {
                failed.iter().for_each(warn);
                Ok(None)
            }
        }
    }
}

/// Most handshakes of a listener at once: each has queue pairs and registered memory. NCCL makes
/// one connector for each listener.
const UNDER_WAY_MAX: usize = 8;

/// Ends a handshake if there are as many as may be, `limit`: one whose peer has proved nothing,
/// else the one whose peer has been silent for longest. A connector goes on, and somebody who only
/// holds a permit does not.
fn make_room(handshakes: &mut Vec<Handshake>, limit: usize) {
    while handshakes.len() >= limit {
        let rank = |(_, handshake): &(usize, &Handshake)| (handshake.is_proved(), handshake.last_heard());
        let Some((worst, _)) = handshakes.iter().enumerate().min_by_key(rank) else { return };
        let count = handshakes.len();
        let dropped = handshakes.swap_remove(worst);
        tracing::info!(
            target: "net",
            "accept: a handshake with {} is given up for a new peer: {count} are in progress at this listener{}",
            dropped.peer(),
            if limit < UNDER_WAY_MAX { ", and the process has too many" } else { "" }
        );
    }
}

/// Reports the end of a handshake with somebody who may have copied a connector's HELLO: the
/// connector itself may still come.
fn note_unproved(e: &Error) {
    tracing::info!(target: "net", "accept: a handshake ended before its peer had proved itself: {e}");
}

fn warn(e: &Error) {
    tracing::warn!(target: "net", "accept: a peer's handshake failed, others may still come: {e}");
}
