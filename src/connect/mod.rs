//! `listen`, `connect` and `accept`: NCCL calls each of the last two until it returns a comm.

mod bringup;
mod endpoint;
mod formed;
mod handshake;
mod local_rails;
mod local_work;
mod machine;
mod probe;
mod queue_depths;
mod registration;
#[cfg(test)]
mod tests;

pub(crate) use local_rails::{host_name, prefix_len, rail_info};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nccl_net_versions::HandleBuf;

use crate::connect::handshake::Handshake;
use crate::control::{Listener, Options};
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::policy::{HintSource, Policy, Source};
use crate::proto::{Handle, STATE_OFFSET};
use crate::transport::Settings;
use crate::transport::recv::RecvComm;
use crate::transport::send::SendComm;

/// A connection attempt between two calls of `connect`.
struct Pending {
    handshake: Handshake,
    /// The communicator that began it.
    context: u64,
    /// The handle without the connector's bytes. The attempt's number in those is valid with this
    /// handle only.
    handle: [u8; STATE_OFFSET],
}

/// Attempts by the number in the last eight bytes of the handle.
static PENDING: LazyLock<Mutex<HashMap<u64, Pending>>> = LazyLock::new(Mutex::default);

fn pending() -> MutexGuard<'static, HashMap<u64, Pending>> {
    // Each use is one insertion or removal, which a panic does not interrupt.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins or continues a connection to the listener of `handle`. The last eight bytes of the handle
/// hold the number of the attempt.
pub fn connect(
    settings: &Arc<Settings>,
    context: u64,
    device: &Device,
    handle: &mut HandleBuf,
) -> Result<Option<SendComm>> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut state = [0; 8];
    state.copy_from_slice(&handle[STATE_OFFSET..]);
    let mut address = [0; STATE_OFFSET];
    address.copy_from_slice(&handle[..STATE_OFFSET]);
    let (id, mut entry) = match u64::from_le_bytes(state) {
        0 => {
            let listener = Handle::decode(handle).map_err(|e| Error::Argument(e.to_string()))?;
            let handshake = Handshake::connect(settings, device, &listener)?;
            (NEXT.fetch_add(1, Ordering::Relaxed), Pending { handshake, context, handle: address })
        }
        id => {
            let mut table = pending();
            let ours = table.get(&id).is_some_and(|p| p.handle == address);
            let Some(entry) = ours.then(|| table.remove(&id)).flatten() else {
                return Err(Error::Argument(format!(
                    "the handle names connection attempt {id} of this process, and there is none for this handle: was the \
                     handle copied from a connector, or damaged?"
                )));
            };
            (id, entry)
        }
    };
    let polled = entry.handshake.poll();
    if let Ok(None) = polled {
        handle[STATE_OFFSET..].copy_from_slice(&id.to_le_bytes());
        pending().insert(id, entry);
        return Ok(None);
    }
    // The attempt has ended. Another one may begin with the same handle.
    handle[STATE_OFFSET..].fill(0);
    let Some((comm, flow)) = polled? else { return Ok(None) };
    let speeds: Vec<_> = comm.rails.iter().map(|r| r.speeds).collect();
    let hints = flow.map(|flow| Box::new(flow) as Box<dyn HintSource>);
    let source = Source::new(comm.plan.split_mode(&settings.config), hints, &speeds);
    let policy = Policy::new(comm.plan, source, settings.config.bdp_threshold, &comm.roles());
    Ok(Some(SendComm::new(comm, policy, settings)))
}

/// Drops the connection attempts of a communicator that NCCL will not continue.
pub fn abandon(context: u64) {
    let dropped: Vec<Pending> = pending().extract_if(|_, p| p.context == context).map(|(_, p)| p).collect();
    if !dropped.is_empty() {
        tracing::info!(target: "net", "{} connection attempts were abandoned", dropped.len());
    }
}

/// A listening end, and the handshakes in progress.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    settings: Arc<Settings>,
    device: &'static Device,
    handshakes: Mutex<Vec<Handshake>>,
}

impl Listening {
    /// Opens a listener and writes its handle.
    pub fn open(settings: &Arc<Settings>, device: &'static Device, handle: &mut HandleBuf) -> Result<Self> {
        let sout = device.rails.first().filter(|_| device.is_mpib);
        let sout = sout.and_then(|nic| nic.now().ok()).and_then(|(_, gids)| Some(gids.first()?.addr()));
        let options = Options { sout, adapters: device::addrs, ..Options::from(&*settings.config) };
        let listener = Listener::open(&options)?;
        *handle = listener.handle().encode();
        Ok(Self { listener, settings: Arc::clone(settings), device, handshakes: Mutex::default() })
    }

    /// Returns the comm of the first peer whose handshake has succeeded. A failed handshake does
    /// not affect the others: its peer is sent the reason, and the log has it.
    ///
    /// # Errors
    /// The handshake with a peer that knows the listener's nonce has failed, and no other is in
    /// progress. NCCL makes one connector for each listener: no other peer would come.
    pub fn accept(&self) -> Result<Option<RecvComm>> {
        let handshakes = self.handshakes.lock();
        let mut handshakes =
            handshakes.map_err(|_| Error::Internal("a panic has interrupted the listener".into()))?;
        let mut failed = self.listener.refused();
        let mut fail = |e| failed.replace(e).iter().for_each(warn);
        while let Some(channel) = self.listener.try_accept()? {
            match Handshake::accept(&self.settings, self.device, channel) {
                Ok(handshake) => handshakes.push(handshake),
                Err(e) => fail(e),
            }
        }
        let mut i = 0;
        while i < handshakes.len() {
            match handshakes[i].poll() {
                Ok(None) => i += 1,
                Ok(Some((comm, flow))) => {
                    handshakes.swap_remove(i);
                    failed.iter().for_each(warn);
                    return Ok(Some(RecvComm::new(comm, &self.settings, flow)));
                }
                Err(e) => {
                    handshakes.swap_remove(i);
                    fail(e);
                }
            }
        }
        match failed {
            Some(e) if handshakes.is_empty() => Err(e),
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
