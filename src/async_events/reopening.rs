//! Adapters that were removed, or that failed as a whole: their contexts are dead for good. When an
//! adapter is there again, its ports move to a new context, and failback brings their rails back.

use std::sync::{Arc, Weak};

use crate::async_events::state::EventState;
use crate::device::Nic;
use crate::error::Result;
use crate::failover::{Happening, Moment};
use crate::verbs::Context;
use crate::worker::{Steps, Urgency};

/// Tries to open the adapter of a port again. Registers all memory of NCCL on it, which may take
/// seconds.
#[derive(Debug)]
struct Reopening {
    nic: Arc<Nic>,
    state: Weak<EventState>,
}

impl EventState {
    /// Tries on a separate thread to open the adapter of a port again, unless that is in progress, or
    /// a connection goes on with the dead context: its memory must be registered on that.
    pub(super) fn reopen(&self, nic: &Arc<Nic>) {
        let former = nic.context().id();
        if self.comms().iter().any(|comm| comm.stays_on(former)) {
            return;
        }
        let mut tried = self.reopening.tried.lock();
        if tried.contains(&former) {
            return;
        }
        let steps = Reopening { nic: Arc::clone(nic), state: self.this.clone() };
        match self.reopening.worker.add(Arc::new(steps), Urgency::Low) {
            Ok(()) => tried.push(former),
            Err(e) => tracing::debug!(target: "net", "{}: {e}", nic.name()),
        }
    }

    /// Returns the contexts that were opened since the last call.
    pub(super) fn take_opened(&self) -> Vec<Arc<Context>> {
        std::mem::take(&mut self.reopening.opened.lock())
    }

    /// Returns whether any port uses a context.
    pub(super) fn is_in_use(&self, context: &Context) -> bool {
        self.nics().iter().any(|nic| nic.context().id() == context.id())
    }

    /// Opens the adapter of a port again if it is there. Returns the new context.
    fn open_again(&self, of: &Nic) -> Result<Option<Arc<Context>>> {
        let former = of.context();
        let nics = self.nics();
        let taken =
            |name: &str| nics.iter().any(|nic| !nic.health().is_removed() && nic.context().name() == name);
        let Some(context) = former.open_again(taken)? else { return Ok(None) };
        if context.is_dead(of.port().number) {
            return Ok(None);
        }
        let ports: Vec<_> = nics.iter().filter(|nic| nic.context().id() == former.id()).collect();
        Nic::move_all(&ports.iter().map(|nic| &***nic).collect::<Vec<_>>(), &context)?;
        for nic in ports {
            nic.health().happened(Moment::now(), Happening::Reopened);
        }
        Ok(Some(context))
    }

    /// Logs each reason once per outage.
    fn report_reopening(&self, nic: &Nic, result: &Result<Option<Arc<Context>>>) {
        let mut failed = self.reopening.failed.lock();
        match result {
            Ok(None) => {}
            Ok(Some(context)) => {
                failed.remove(nic.adapter());
                tracing::info!(target: "net", "{} is there again and was opened as {}", nic.adapter(), context.name());
            }
            Err(e) => {
                let why = e.to_string();
                if failed.get(nic.adapter()) != Some(&why) {
                    tracing::warn!(target: "net", "{} is there again and cannot be used yet: {why}", nic.adapter());
                    failed.insert(nic.adapter().to_owned(), why);
                }
            }
        }
    }
}

impl Steps for Reopening {
    fn step(&self) -> bool {
        let Some(state) = self.state.upgrade() else { return true };
        let former = self.nic.context().id();
        let result = state.open_again(&self.nic);
        state.report_reopening(&self.nic, &result);
        if let Ok(Some(context)) = result {
            state.reopening.opened.lock().push(context);
        }
        state.reopening.tried.lock().retain(|tried| *tried != former);
        state.housekeeping.wake_thread();
        true
    }
}
