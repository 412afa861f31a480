//! The border: nothing unwinds past it, every fault becomes a code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nccl_net_abi::{ncclResult_t, ncclSuccess};

use crate::{Failure, NetPlugin, Refusal};

/// Why a call did not succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The implementation says so, and has logged why.
    Plugin(Failure),
    /// The adapters say so; nobody has logged it yet.
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

/// What a call of the interface comes to.
pub(crate) type Outcome = Result<(), Fault>;

/// Runs one call of the C interface.
#[inline]
pub(crate) fn guard<P: NetPlugin>(call: &'static str, body: impl FnOnce() -> Outcome) -> ncclResult_t {
    // What has to cross the catch is a number: anything larger would go through memory, in each call.
    let code = catch(|| match body() {
        Ok(()) => ncclSuccess,
        Err(fault) => failed::<P>(call, fault),
    });
    match code {
        Some(code) => code,
        None => panicked::<P>(call),
    }
}

/// Runs `body`; `None` if it panicked. The one place that stops a panic.
#[inline]
fn catch<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // A payload may panic again when it is dropped; the second one is leaked rather than tried.
            if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
                core::mem::forget(again);
            }
            None
        }
    }
}

#[cold]
#[inline(never)]
fn failed<P: NetPlugin>(call: &'static str, fault: Fault) -> ncclResult_t {
    match fault {
        Fault::Plugin(failure) => failure.into(),
        Fault::Refused(refusal) => {
            // A panic in a report changes nothing about the answer.
            let _ = catch(|| P::refused(call, &refusal));
            refusal.failure().into()
        }
    }
}

#[cold]
#[inline(never)]
fn panicked<P: NetPlugin>(call: &'static str) -> ncclResult_t {
    // As above.
    let _ = catch(|| P::panicked(call));
    Failure::Internal.into()
}
