//! What a plugin has once per process: the context of v6 to v10, and the logger for refusals.

use core::any::{Any, TypeId};
use core::fmt::Display;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nccl_net_abi::NCCL_NET;

use crate::{Failure, Init, Level, Logger, NetPlugin};

/// One plugin's. A `static` cannot be generic, hence the map by type.
#[derive(Debug)]
struct State {
    logger: Mutex<Option<Logger>>,
    context: Mutex<Option<&'static (dyn Any + Send + Sync)>>,
}

static STATES: Mutex<BTreeMap<TypeId, &'static State>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these guard is whole at every step, so a panic in an `init` under the lock leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state<P: NetPlugin>() -> &'static State {
    lock(&STATES).entry(TypeId::of::<P>()).or_insert_with(|| {
        // Lives as long as the process: one per plugin type, of which there are as many as there are sources.
        Box::leak(Box::new(State { logger: Mutex::new(None), context: Mutex::new(None) }))
    })
}

/// Gives the context its own type, since an implementation's may be any, shared by several plugins.
struct ProcessContext<P: NetPlugin>(P::Context);

/// The process's context; `None` before an init that succeeded.
pub(crate) fn context<P: NetPlugin>() -> Option<&'static P::Context> {
    let context = *lock(&state::<P>().context);
    context?.downcast_ref::<ProcessContext<P>>().map(|c| &c.0)
}

/// Makes the process's context unless there is one, which learns of the call then. After a failure the next call tries again.
pub(crate) fn init_once<P: NetPlugin>(args: &Init) -> Result<(), Failure> {
    let mut context = lock(&state::<P>().context);
    match context.and_then(|context| context.downcast_ref::<ProcessContext<P>>()) {
        Some(made) => P::init_again(&made.0, args),
        None => {
            *context = Some(Box::leak(Box::new(ProcessContext::<P>(P::init(args)?))));
            Ok(())
        }
    }
}

/// Keeps the logger of the latest `init`: an earlier one may belong to a library that is gone.
pub(crate) fn keep_logger<P: NetPlugin>(logger: Logger) {
    *lock(&state::<P>().logger) = Some(logger);
}

/// One WARN line about a call that failed, if any `init` brought a logger.
pub(crate) fn warn<P: NetPlugin>(call: &str, why: &dyn Display) {
    let logger = *lock(&state::<P>().logger);
    let Some(logger) = logger else { return };
    let text = format!("NET/{} : {call}: {why}", P::NAME.to_string_lossy());
    let text = CString::new(text).unwrap_or_default();
    logger.log(Level::Warn, NCCL_NET, FILE, 0, &text);
}

/// The place in a WARN line.
const FILE: &core::ffi::CStr = c"nccl-net-versions";
