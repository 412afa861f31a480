//! State per process and plugin: the context of v6 to v10, and the logger.

use core::any::{Any, TypeId};
use core::fmt::Display;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Failure, Init, Level, Logger, NetPlugin, Plugin, Refusal, in_callback};

/// The state of one plugin.
#[derive(Debug)]
struct State {
    logger: Mutex<Option<Logger>>,
    /// The refusals since the latest `init` that are reported once: the call, and the argument.
    reported: Mutex<BTreeSet<(&'static str, &'static str)>>,
    context: OnceLock<&'static (dyn Any + Send + Sync)>,
    /// Held while the context is made.
    init: Mutex<()>,
}

/// The state of each plugin by its type: a `static` cannot be generic.
static STATES: Mutex<BTreeMap<TypeId, &'static State>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are consistent after a panic in `init`: each is written in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state<P: Plugin>() -> &'static State {
    lock(&STATES).entry(TypeId::of::<P>()).or_insert_with(|| {
        // Leaked on purpose: there is one state per plugin type.
        Box::leak(Box::new(State {
            logger: Mutex::default(),
            reported: Mutex::default(),
            context: OnceLock::new(),
            init: Mutex::default(),
        }))
    })
}

/// Wraps the context in a type of its plugin: several plugins may use the same context type.
struct ProcessContext<P: NetPlugin>(P::Context);

/// Returns the context of the process; `None` before the first successful `init`.
pub(crate) fn context<P: NetPlugin>() -> Option<&'static P::Context> {
    state::<P>().context.get()?.downcast_ref::<ProcessContext<P>>().map(|c| &c.0)
}

/// Creates the context of the process, or passes the call to [`NetPlugin::reinit`] if there is one.
/// A call after a failure tries again.
pub(crate) fn init_once<P: NetPlugin>(args: &Init) -> Result<(), Failure> {
    let state = state::<P>();
    let init = lock(&state.init);
    if let Some(existing) = context::<P>() {
        drop(init);
        return P::reinit(existing, args);
    }
    let made: &'static ProcessContext<P> = Box::leak(Box::new(ProcessContext(P::init(args)?)));
    // Nobody else sets it: `init` is locked.
    let _ = state.context.set(made);
    Ok(())
}

/// Stores the logger of the latest `init`. An earlier logger may belong to an unloaded library.
pub(crate) fn set_logger<P: Plugin>(logger: Logger) {
    let state = state::<P>();
    *lock(&state.logger) = Some(logger);
    lock(&state.reported).clear();
}

/// Returns whether a refusal is to be reported: a wrong handle and a call from within a callback are
/// reported once.
pub(crate) fn is_new<P: Plugin>(call: &'static str, refusal: &Refusal) -> bool {
    let what = match refusal {
        Refusal::WrongHandle { what, .. } => what,
        Refusal::InCallback => "",
        _ => return true,
    };
    lock(&state::<P>().reported).insert((call, what))
}

/// Logs one WARN line, `NET/NAME : call: why`, to the logger of the latest `init`.
///
/// NCCL keeps a WARN line as its last error. Does nothing before the first `init`, and from within a
/// callback: NCCL's logger holds its own lock.
pub fn warn<P: Plugin>(call: &str, why: &dyn Display) {
    let logger = *lock(&state::<P>().logger);
    let Some(logger) = logger.filter(|_| !in_callback()) else { return };
    let text = format!("NET/{} : {call}: {why}", P::NAME.to_string_lossy());
    let text = CString::new(text).unwrap_or_default();
    logger.log(Level::Warn, FILE, 0, &text);
}

/// The file name in a WARN line.
const FILE: &core::ffi::CStr = c"nccl-net-versions";
