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
mod versions;
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

/// Returns the entry point of a function as of a version of CUDA, or `None` if a driver may lack it.
/// The entry point of any other function ends the rank when it is called. Without a version, the
/// caller means the one of the CUDA runtime in its library, whose header has the signature.
///
/// Ends the rank if the function has another signature in that version.
pub(crate) fn entry_point(name: &str, version: Option<u32>) -> Option<*const ()> {
    if ABSENT.contains(&name) {
        return None;
    }
    let Some((_, function)) = functions().find(|(known, _)| *known == name) else {
        return Some(unknown(name));
    };
    let Some(version) = version else { return Some(function) };
    let own = versions::of(name).filter(|versions| versions.contains(&version)).map(|_| function);
    Some(own.or_else(|| older(name, version)).unwrap_or_else(|| {
        let found = format!("as of version {version} of CUDA");
        end_rank(&Unknown::new("signature of driver function", name).found(found))
    }))
}

/// Returns the entry point of a function with an older signature.
fn older(name: &str, version: u32) -> Option<*const ()> {
    (name == "cuCtxCreate" && (3_020..11_040).contains(&version)).then_some(context::create_v2 as *const ())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_the_versions_of_its_signature() {
        for (name, _) in functions() {
            assert!(versions::of(name).is_some_and(|versions| !versions.is_empty()), "{name}");
        }
        assert_eq!(versions::of("cuNoSuchFunction"), None);
    }

    #[test]
    fn a_version_chooses_the_signature() {
        let create = |version| entry_point("cuCtxCreate", version);
        assert_eq!(create(Some(11_040)), create(None));
        assert_eq!(create(Some(3_020)), Some(context::create_v2 as *const ()));
        assert_ne!(create(Some(3_020)), create(Some(11_040)));
    }
}
