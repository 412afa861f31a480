//! Injected failures: verbs calls that must fail although nothing is wrong.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::abi::border::Errno;

/// A number of calls that must fail.
struct Fault {
    /// The device; `None` for all devices.
    device: Option<String>,
    errno: c_int,
    /// How many calls are left.
    times: u32,
}

impl Fault {
    const NONE: Self = Self { device: None, errno: 0, times: 0 };

    /// Returns the error of a call on this device, if it must fail, and counts it.
    fn next(&mut self, device: &str) -> Result<(), Errno> {
        if self.times == 0 || self.device.as_deref().is_some_and(|name| name != device) {
            return Ok(());
        }
        self.times -= 1;
        Err(Errno(self.errno))
    }
}

/// Calls of `ibv_modify_qp` that must fail.
struct ModifyQp {
    fault: Fault,
    /// The requested state.
    state: u32,
    /// How long each failing call takes.
    duration: Duration,
}

static MODIFY_QP: Mutex<ModifyQp> =
    Mutex::new(ModifyQp { fault: Fault::NONE, state: 0, duration: Duration::ZERO });
/// An object of an adapter, for [`fail_creation`](crate::fail_creation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A queue pair.
    Qp,
}

/// A kind of post, for [`fail_post`](crate::fail_post).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Post {
    /// `ibv_post_send`
    Send,
    /// `ibv_post_recv` and `ibv_post_srq_recv`
    Recv,
}

/// Work requests whose post must fail.
struct FailedPost {
    post: Post,
    fault: Fault,
    /// How many are posted before.
    after: u32,
}

static POST: Mutex<Option<FailedPost>> = Mutex::new(None);
/// Whether `POST` may have an entry.
static FAILS_POSTS: AtomicBool = AtomicBool::new(false);
static CREATION: Mutex<Option<(Object, Fault)>> = Mutex::new(None);
static REGISTRATION: Mutex<Fault> = Mutex::new(Fault::NONE);
static LOOPBACK: Mutex<Fault> = Mutex::new(Fault::NONE);
static DESTRUCTION: Mutex<Fault> = Mutex::new(Fault::NONE);

/// See [`crate::fail_creation`].
pub(crate) fn fail_creation(object: Object, errno: c_int, times: u32) {
    *CREATION.lock().unwrap_or_else(PoisonError::into_inner) =
        Some((object, Fault { device: None, errno, times }));
}

/// Returns the injected error of a call that makes an object, if any.
pub(crate) fn creation(object: Object) -> Result<(), Errno> {
    match &mut *CREATION.lock().unwrap_or_else(PoisonError::into_inner) {
        Some((of, fault)) if *of == object => fault.next(""),
        _ => Ok(()),
    }
}

/// See [`crate::fail_post`].
pub(crate) fn fail_post(post: Post, device: &str, errno: c_int, after: u32, times: u32) {
    let fault = Fault { device: Some(device.to_owned()), errno, times };
    *POST.lock().unwrap_or_else(PoisonError::into_inner) = Some(FailedPost { post, fault, after });
    FAILS_POSTS.store(true, Relaxed);
}

/// Returns the injected error of the post of a work request, if any.
pub(crate) fn posted(post: Post, device: &str) -> Result<(), Errno> {
    if !FAILS_POSTS.load(Relaxed) {
        return Ok(());
    }
    match &mut *POST.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(failed) if failed.post == post && failed.fault.device.as_deref() == Some(device) => {
            if failed.after > 0 {
                failed.after -= 1;
                return Ok(());
            }
            failed.fault.next(device)
        }
        _ => Ok(()),
    }
}

/// See [`crate::fail_modify_qp_of`].
pub(crate) fn fail_modify_qp(device: Option<&str>, state: u32, errno: c_int, times: u32, duration: Duration) {
    let fault = Fault { device: device.map(str::to_owned), errno, times };
    *MODIFY_QP.lock().unwrap_or_else(PoisonError::into_inner) = ModifyQp { fault, state, duration };
}

/// See [`crate::fail_registration`].
pub(crate) fn fail_registration(device: &str, errno: c_int, times: u32) {
    let fault = Fault { device: Some(device.to_owned()), errno, times };
    *REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner) = fault;
}

/// See [`crate::fail_loopback`].
pub(crate) fn fail_loopback(device: &str, errno: c_int, times: u32) {
    let fault = Fault { device: Some(device.to_owned()), errno, times };
    *LOOPBACK.lock().unwrap_or_else(PoisonError::into_inner) = fault;
}

/// See [`crate::fail_destruction`].
pub(crate) fn fail_destruction(device: &str, errno: c_int, times: u32) {
    let fault = Fault { device: Some(device.to_owned()), errno, times };
    *DESTRUCTION.lock().unwrap_or_else(PoisonError::into_inner) = fault;
}

/// Returns the injected error of a call of `ibv_destroy_qp`, if any.
pub(crate) fn destruction(device: &str) -> Result<(), Errno> {
    DESTRUCTION.lock().unwrap_or_else(PoisonError::into_inner).next(device)
}

/// Returns the injected error of a call of `ibv_modify_qp` that connects a QP to itself, if any.
pub(crate) fn loopback(device: &str) -> Result<(), Errno> {
    LOOPBACK.lock().unwrap_or_else(PoisonError::into_inner).next(device)
}

/// Returns the injected error of a call of `ibv_modify_qp`, if any.
pub(crate) fn modify_qp(device: &str, to: u32) -> Result<(), Errno> {
    let mut next = MODIFY_QP.lock().unwrap_or_else(PoisonError::into_inner);
    if next.state != to {
        return Ok(());
    }
    let (result, duration) = (next.fault.next(device), next.duration);
    drop(next);
    if result.is_err() {
        std::thread::sleep(duration);
    }
    result
}

/// Returns the injected error of a memory registration, if any.
pub(crate) fn registration(device: &str) -> Result<(), Errno> {
    REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner).next(device)
}
