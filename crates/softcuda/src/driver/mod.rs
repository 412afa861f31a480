//! The functions of the CUDA driver that NCCL looks up, by subject.
//!
//! NCCL 2.21 and later look them up by `cudaGetDriverEntryPoint`; up to 2.20 they open `libcuda.so`
//! and use `cuGetProcAddress`. The functions that `exported` lists are symbols of this library, for
//! those releases and for the rank program.

pub(crate) mod context;
mod device;
mod exported;
mod kernel;
mod memory;
mod stream;
mod vmm;

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{
    patch::{self, EntryPoint},
    unknown::{Unknown, end_rank},
};

/// Functions that NCCL looks up and that a driver may lack. NCCL does without them.
const ABSENT: &[&str] = &[
    // NVLink SHARP; the devices report no support (attribute 132).
    "cuMulticastAddDevice",
    "cuMulticastBindAddr",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuMulticastGetGranularity",
    "cuMulticastUnbind",
];

/// Returns all functions by name.
fn functions() -> impl Iterator<Item = EntryPoint> {
    let groups: [&[EntryPoint]; 6] = [
        context::FUNCTIONS,
        device::FUNCTIONS,
        memory::FUNCTIONS,
        vmm::FUNCTIONS,
        stream::FUNCTIONS,
        kernel::FUNCTIONS,
    ];
    groups.concat().into_iter()
}

/// Returns the entry point of a function, or `None` if a driver may lack it. The entry point of any
/// other function ends the rank when it is called.
pub(crate) fn entry_point(name: &str) -> Option<*const ()> {
    if ABSENT.contains(&name) {
        return None;
    }
    let own = functions().find(|(known, _)| *known == name).map(|(_, function)| function);
    own.or_else(|| Some(unknown(name)))
}

/// Returns an entry point that ends the rank with this name.
fn unknown(name: &str) -> *const () {
    /// Addresses, since pointers cannot move between threads.
    static ENDING: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let mut ending = ENDING.lock();
    if let Some(address) = ending.get(name) {
        return std::ptr::with_exposed_provenance(*address);
    }
    let function = patch::ending_function(name).unwrap_or_else(|e| {
        end_rank(&Unknown::new("driver function", name).found(format!("no memory for its entry: {e}")))
    });
    ending.insert(name.to_owned(), function.expose_provenance());
    function
}

/// Returns how many functions there are.
pub(crate) fn count() -> usize {
    functions().count()
}
