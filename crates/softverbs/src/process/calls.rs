//! The beginning of a call of libibverbs: the time that it takes, and the errno if it is to fail.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use crate::abi::border::Errno;
use crate::api::device::Device;
use crate::config::call::{CALLS, Call, NEVER};
use crate::fault::failure;
use crate::log::fault;
use crate::process;
use crate::shm::layout::LinkSlot;

/// How often a call that hangs looks whether its device was healed.
const LOOK: Duration = Duration::from_millis(1);

/// How often this process has made each call that is a command to an adapter.
static MADE: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];

/// Returns how often this process has given a command to an adapter, also if it failed. Posts and polls
/// are no commands.
pub fn commands_made(call: Call) -> u64 {
    MADE[call as usize].load(Relaxed)
}

/// Lets a call on a device take its time. Fails if a fault says so; the call then has no effect.
pub(crate) fn begin(device: &'static Device, call: Call) -> Result<(), Errno> {
    if call.is_command() {
        MADE[call as usize].fetch_add(1, Relaxed);
    }
    // A call without a fabric fails later, by itself.
    let Ok(process) = process::get() else { return Ok(()) };
    let device = device.adapter();
    let Some(shared) = process.own.header().devices.get(device.index) else { return Ok(()) };
    let Some(link) = process.fabric.link(shared.link.load(Relaxed)) else { return Ok(()) };
    pass(link, device.spec.verb_time.of(call));
    let slot = shared.calls.get(call as usize).filter(|slot| slot.times.load(Relaxed) > 0);
    let Some(slot) = slot else { return Ok(()) };
    let struck = {
        let _guard = process.fabric.lock();
        failure::next(slot)
    };
    let Some((errno, takes)) = struck else { return Ok(()) };
    shared.struck.fetch_add(1, Relaxed);
    pass(link, takes);
    if errno == 0 {
        return Ok(());
    }
    fault!("{} on {}: errno {errno}, as injected", call.name(), device.spec.name);
    Err(Errno(errno))
}

fn pass(link: &LinkSlot, ns: u64) {
    match ns {
        0 => {}
        NEVER => {
            let heals = link.heals.load(Acquire);
            while link.heals.load(Acquire) == heals {
                std::thread::sleep(LOOK);
            }
        }
        ns => std::thread::sleep(Duration::from_nanos(ns)),
    }
}
