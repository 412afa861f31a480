//! NCCL's side of the handshake: `listen`, `connect` and `accept`, each called until it gives a comm.

mod attempts;
mod bringup;
mod commit;
mod endpoint;
mod handshake;
mod local_rails;
mod probe;
mod queue_depths;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nccl_net_versions::HandleBuf;
use parking_lot::Mutex;

use crate::connect::commit::Connecting;
use crate::connect::handshake::Handshake;
use crate::control::{Listener, Options};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::policy::{HintSource, Policy, Source};
use crate::proto::{Handle, STATE_OFFSET};
use crate::transport::Settings;
use crate::transport::recv::RecvComm;
use crate::transport::send::SendComm;

/// A connector between two calls of `connect`.
#[derive(Debug)]
struct PendingConnect {
    connecting: Connecting,
    /// The handle without the connector's own bytes: the number in those must belong to it.
    handle: [u8; STATE_OFFSET],
}

/// The connectors of one context that are between two calls of `connect`.
#[derive(Debug, Default)]
pub struct PendingConnects {
    /// By the number in the handle's last eight bytes.
    by_id: Mutex<HashMap<u64, PendingConnect>>,
    /// The last number. 0 is that of a handle without a connector.
    last: AtomicU64,
}

impl PendingConnects {
    /// Begins or continues a connection to the listener behind `handle`, whose last eight bytes are ours.
    pub fn connect(
        &self,
        settings: &Arc<Settings>,
        device: &Device,
        handle: &mut HandleBuf,
    ) -> Result<Option<SendComm>> {
        let mut state = [0; 8];
        state.copy_from_slice(&handle[STATE_OFFSET..]);
        let mut address = [0; STATE_OFFSET];
        address.copy_from_slice(&handle[..STATE_OFFSET]);
        let (id, mut entry) = match u64::from_le_bytes(state) {
            0 => {
                let listener = Handle::decode(handle).map_err(|e| Error::Argument(e.to_string()))?;
                let connecting = Connecting::new(Handshake::connect(settings, device, &listener)?);
                let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                (id, PendingConnect { connecting, handle: address })
            }
            id => (id, self.remove(id, &address)?),
        };
        let polled = entry.connecting.poll(settings);
        if let Ok(None) = polled {
            handle[STATE_OFFSET..].copy_from_slice(&id.to_le_bytes());
            self.by_id.lock().insert(id, entry);
            return Ok(None);
        }
        // Over: with the same handle another connection may begin.
        handle[STATE_OFFSET..].fill(0);
        let Some((comm, flow)) = polled? else { return Ok(None) };
        let speeds: Vec<_> = comm.rails.iter().map(|r| r.speeds).collect();
        let hints = flow.map(|flow| Box::new(flow) as Box<dyn HintSource>);
        let source = Source::new(comm.plan.split_mode(&settings.config), hints, &speeds);
        let policy = Policy::new(comm.plan, source, settings.config.bdp_threshold, &comm.roles());
        Ok(Some(SendComm::new(comm, policy, settings)))
    }

    fn remove(&self, id: u64, address: &[u8; STATE_OFFSET]) -> Result<PendingConnect> {
        let mut table = self.by_id.lock();
        let ours = table.get(&id).is_some_and(|p| p.handle == *address);
        ours.then(|| table.remove(&id)).flatten().ok_or_else(|| {
            Error::Argument(format!(
                "the handle says that connection attempt {id} of this process is under way, and there is none \
                 for this handle: was the handle copied from a connector, or damaged?"
            ))
        })
    }

    /// Drops the connections that NCCL has begun and will not continue.
    pub fn abandon(self) {
        let dropped = self.by_id.into_inner().len();
        if dropped > 0 {
            tracing::info!(target: "net", "{dropped} connection attempts were not carried to an end");
        }
    }
}

/// A listening end, and the peers whose handshake is under way.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    settings: Arc<Settings>,
    device: &'static Device,
    /// `None` while a call has it, and for good after a panic in that call.
    underway: Mutex<Option<Vec<Connecting>>>,
}

impl Listening {
    /// Opens it and writes its handle.
    pub fn open(settings: &Arc<Settings>, device: &'static Device, handle: &mut HandleBuf) -> Result<Self> {
        let sout = device.rails.first().filter(|_| device.is_sout_sup);
        let sout = sout.and_then(|nic| nic.now().ok()).and_then(|(_, gids)| Some(gids.first()?.addr()));
        let adapters = || settings.process.devices.addrs();
        let options = Options { sout, adapters: &adapters, ..Options::from(&*settings.config) };
        let listener = Listener::open(&settings.process.control, &options)?;
        *handle = listener.handle().encode();
        Ok(Self { listener, settings: Arc::clone(settings), device, underway: Mutex::new(Some(Vec::new())) })
    }

    /// The first peer whose handshake is done. One that fails does no harm to the others: it is told, and
    /// the log too. Another peer may come after it.
    ///
    /// # Errors
    /// A handshake has failed with a peer that knows the listener's nonce, and none is under way with another: NCCL makes one connector
    /// for each listener, so that nobody else would come.
    pub fn accept(&self) -> Result<Option<RecvComm>> {
        let mut place = self.underway.lock();
        let mut underway =
            place.take().ok_or_else(|| Error::Internal("the listener's state was left by a panic".into()))?;
        let accepted = self.poll(&mut underway);
        *place = Some(underway);
        accepted
    }

    fn poll(&self, underway: &mut Vec<Connecting>) -> Result<Option<RecvComm>> {
        let mut failed = self.listener.refused();
        let mut fail = |e| failed.replace(e).iter().for_each(warn);
        while let Some(channel) = self.listener.try_accept()? {
            match Handshake::accept(&self.settings, self.device, channel) {
                Ok(handshake) => underway.push(Connecting::new(handshake)),
                Err(e) => fail(e),
            }
        }
        let mut i = 0;
        while i < underway.len() {
            match underway[i].poll(&self.settings) {
                Ok(None) => i += 1,
                Ok(Some((comm, flow))) => {
                    underway.swap_remove(i);
                    failed.iter().for_each(warn);
                    return Ok(Some(RecvComm::new(comm, &self.settings, flow)));
                }
                Err(e) => {
                    underway.swap_remove(i);
                    fail(e);
                }
            }
        }
        match failed {
            Some(e) if underway.is_empty() => Err(e),
            failed => {
                failed.iter().for_each(warn);
                Ok(None)
            }
        }
    }
}

fn warn(e: &Error) {
    tracing::warn!(target: "net", "accept: a peer's handshake failed, others may still come: {e}");
}
