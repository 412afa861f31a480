//! State per process and plugin: the context of v6 to v10, and the logger.

use core::any::{Any, TypeId};
use core::fmt::Display;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Failure, Init, Level, Logger, NetPlugin, Refusal};

/// The state of one plugin.
#[derive(Debug)]
struct State {
    logger: Mutex<Option<Logger>>,
    /// The calls with a wrong handle since the latest `init`, and the argument.
    wrong_handles: Mutex<BTreeSet<(&'static str, &'static str)>>,
    context: Mutex<Option<&'static (dyn Any + Send + Sync)>>,
}

/// The state of each plugin by its type: a `static` cannot be generic.
static STATES: Mutex<BTreeMap<TypeId, &'static State>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are consistent after a panic in `init`: each is written in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state<P: NetPlugin>() -> &'static State {
    lock(&STATES).entry(TypeId::of::<P>()).or_insert_with(|| {
        // Leaked on purpose: there is one state per plugin type.
        Box::leak(Box::new(State {
            logger: Mutex::default(),
            wrong_handles: Mutex::default(),
            context: Mutex::default(),
        }))
    })
}

/// Wraps the context in a type of its plugin: several plugins may use the same context type.
struct ProcessContext<P: NetPlugin>(P::Context);

/// Returns the context of the process; `None` before the first successful `init`.
pub(crate) fn context<P: NetPlugin>() -> Option<&'static P::Context> {
    let context = *lock(&state::<P>().context);
    context?.downcast_ref::<ProcessContext<P>>().map(|c| &c.0)
}

/// Creates the context of the process, or passes the call to [`NetPlugin::reinit`] if there is one.
/// A call after a failure tries again.
pub(crate) fn init_once<P: NetPlugin>(args: &Init) -> Result<(), Failure> {
    let mut context = lock(&state::<P>().context);
    match context.and_then(|context| context.downcast_ref::<ProcessContext<P>>()) {
        Some(existing) => P::reinit(&existing.0, args),
        None => {
            *context = Some(Box::leak(Box::new(ProcessContext::<P>(P::init(args)?))));
            Ok(())
        }
    }
}

/// Stores the logger of the latest `init`. An earlier logger may belong to an unloaded library.
pub(crate) fn set_logger<P: NetPlugin>(logger: Logger) {
    let state = state::<P>();
    *lock(&state.logger) = Some(logger);
    lock(&state.wrong_handles).clear();
}

/// Returns whether a refusal is to be reported: a wrong handle is reported once.
pub(crate) fn is_new<P: NetPlugin>(call: &'static str, refusal: &Refusal) -> bool {
    match refusal {
        Refusal::WrongHandle { what, .. } => lock(&state::<P>().wrong_handles).insert((call, what)),
        _ => true,
    }
}

/// Logs one WARN line, `NET/NAME : call: why`, to the logger of the latest `init`.
///
/// NCCL keeps a WARN line as its last error. Does nothing before the first `init`.
pub fn warn<P: NetPlugin>(call: &str, why: &dyn Display) {
    let logger = *lock(&state::<P>().logger);
    let Some(logger) = logger else { return };
    let text = format!("NET/{} : {call}: {why}", P::NAME.to_string_lossy());
    let text = CString::new(text).unwrap_or_default();
    logger.log(Level::Warn, FILE, 0, &text);
}

/// The file name in a WARN line.
const FILE: &core::ffi::CStr = c"nccl-net-versions";
