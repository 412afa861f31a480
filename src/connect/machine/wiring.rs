//! The check of a peer's WIRING against the routes of the attempt.

use super::Stripes;
use crate::error::{Error, Result};
use crate::proto::{Role, Wiring, written_bytes};

/// Accepts a WIRING that has this end's routes in order, each with its number of queue pairs and a
/// remote key, and memory of the peer's role.
///
/// # Errors
/// The first difference, with the value found and the value expected.
pub(crate) fn check(role: Role, peer: &str, stripes: &Stripes, wiring: &Wiring) -> Result<()> {
    let refuse = |what: String| Err(Error::Protocol(format!("WIRING of {peer}: {what}")));
    if let Some(what) = difference(role.other(), stripes, wiring) {
        return refuse(what);
    }
    let (memory, needed) = (&wiring.memory, written_bytes(stripes.has_mailbox) as u64);
    if memory.len < needed || memory.addr.checked_add(needed).is_none() {
        return refuse(format!("{} bytes at {:#x}, expected {needed}", memory.len, memory.addr));
    }
    if memory.rkeys.len() != stripes.each.len() {
        return refuse(format!("{} remote keys for {} routes", memory.rkeys.len(), stripes.each.len()));
    }
    Ok(())
}

/// Returns how the routes of the WIRING of an end, `from`, differ from these stripes in their rails
/// or their numbers of queue pairs, if they do.
pub(super) fn difference(from: Role, stripes: &Stripes, wiring: &Wiring) -> Option<String> {
    if wiring.routes.len() != stripes.each.len() {
        return Some(format!("{} routes, expected {}", wiring.routes.len(), stripes.each.len()));
    }
    wiring.routes.iter().zip(&stripes.each).enumerate().find_map(|(i, (found, (route, qps)))| {
        let pair = (usize::from(found.remote_rail), usize::from(found.local_rail));
        let expected = (*route.rails.remote(from), *route.rails.local(from));
        if pair != expected {
            return Some(format!("route {i} joins our rail and its rail {pair:?}, expected {expected:?}"));
        }
        let n = found.qps.len();
        (n != *qps).then(|| format!("{n} queue pairs for route {i}, expected {qps}"))
    })
}
