//! The border to C: stops panics and turns every fault into a result code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nccl_net_abi::{ncclResult_t, ncclSuccess};

use crate::callback::UnderWay;
use crate::{Failure, Plugin, Refusal, in_callback, state};

/// Why a call failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The implementation failed, and has logged why.
    Plugin(Failure),
    /// The adapters refused the call. This is not logged yet.
    Refused(Refusal),
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Plugin(failure)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The result of one call of the interface.
pub(crate) type Outcome = Result<(), Fault>;

/// Runs one call of the C interface.
pub(crate) fn guard<P: Plugin>(call: &'static str, body: impl FnOnce() -> Outcome) -> ncclResult_t {
    if in_callback() {
        return failed::<P>(call, Refusal::InCallback.into());
    }
    let under_way = UnderWay::call();
    let code = guard_data::<P>(call, body);
    leave::<P>();
    drop(under_way);
    code
}

/// Runs one call of the data path: nothing else costs an instruction if it succeeds.
#[inline]
pub(crate) fn guard_data<P: Plugin>(call: &'static str, body: impl FnOnce() -> Outcome) -> ncclResult_t {
    // Only a number crosses `catch`: a larger value would be passed through memory in each call.
    let code = catch(|| match body() {
        Ok(()) => ncclSuccess,
        Err(fault) => failed::<P>(call, fault),
    });
    match code {
        Some(code) => code,
        None => panicked::<P>(call),
    }
}

/// Ends a call that holds no lock any more.
fn leave<P: Plugin>() {
    // A panic there does not change the result.
    let _ = catch(P::leaving);
}

/// Runs `body`. Returns `None` if it panicked.
#[inline]
fn catch<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Dropping the payload may panic too. The second payload is leaked, not dropped.
            if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
                core::mem::forget(second);
            }
            None
        }
    }
}

#[cold]
#[inline(never)]
fn failed<P: Plugin>(call: &'static str, fault: Fault) -> ncclResult_t {
    match fault {
        Fault::Plugin(failure) => {
            leave::<P>();
            failure.into()
        }
        Fault::Refused(refusal) => {
            if state::is_new::<P>(call, &refusal) {
                // A panic in the report does not change the result.
                let _ = catch(|| P::on_refused(call, &refusal));
                leave::<P>();
            }
            refusal.failure().into()
        }
    }
}

#[cold]
#[inline(never)]
fn panicked<P: Plugin>(call: &'static str) -> ncclResult_t {
    // A panic in the report does not change the result.
    let _ = catch(|| P::on_panic(call));
    leave::<P>();
    Failure::Internal.into()
}
