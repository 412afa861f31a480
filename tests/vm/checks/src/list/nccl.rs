//! NCCL's own core between the hosts.

use std::net::SocketAddrV4;
use std::thread;

use super::policy::judge;
use crate::host::{LIMIT, Outcome};
use crate::world::World;

/// Port of this check, next to that of `follow`.
const PORT: u16 = 5556;

pub(super) fn lacks(world: &World) -> Option<&'static str> {
    world.nccl.is_none().then_some("NCCL's library is not there; what fetched it has said why")
}

/// NCCL's loader uses its newest table on both hosts, and data moves through this table.
pub(super) fn loader(world: &World) -> Outcome {
    let (library, facts) = world.nccl.as_ref().ok_or("no library")?;
    let (library, facts, seconds) = (library.display(), facts.display(), LIMIT.as_secs() / 2 - 5);
    let address = SocketAddrV4::new(world.other(), PORT);
    let args = format!("--library '{library}' --facts '{facts}' --deadline {seconds} {address}");
    // NCCL logs to the console.
    let env = [
        ("NCCL_NET_PLUGIN", "mpib"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_FILE", "/dev/console"),
        ("MPIB_SUP_SHARE", "512"),
    ];
    let end = |host, role| world.compat_matrix(host, &env, &format!("end {role} {args}"));
    let before = world.interfaces(0)?;
    let (sender, receiver) = thread::scope(|scope| {
        let receiver = scope.spawn(|| end(1, "receiver"));
        (end(0, "sender"), receiver.join())
    });
    let receiver = receiver.map_err(|_| "the receiver's thread panicked")?;
    let (sender, receiver) = match (sender, receiver) {
        (Ok(sender), Ok(receiver)) => (sender, receiver),
        (Err(a), Err(b)) => return Err(format!("{a}; {b}")),
        (Err(e), Ok(_)) | (Ok(_), Err(e)) => return Err(e),
    };
    let after = world.interfaces(0)?;
    if sender != receiver || !sender.contains("v12, called in place") {
        return Err(format!(
            "both were to take v12 and move the same, but host1: {sender}; host2: {receiver}"
        ));
    }
    let bytes = sender.strip_suffix(" bytes").and_then(|said| said.rsplit(' ').next()?.parse().ok());
    let bytes: u64 = bytes.ok_or_else(|| format!("no number of bytes in {sender:?}"))?;
    let carried = judge([0, 1].map(|rail| after[rail] - before[rail]), bytes, bytes / 2)?;
    Ok(format!("{sender}; {carried}"))
}
