//! Which host this is.
//!
//! The boot id names the running kernel: unlike a host name, an address or a machine id, no two
//! running hosts share it, not even clones of one disk image. Containers of a host have the same
//! boot id, and may have another network: the inode of the network namespace distinguishes them.
//! NCCL hashes the same two for its own question whether two ranks share a host.

use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

use crate::proto::HostId;

/// Reads the id of this host. A part that cannot be read is unknown.
pub(super) fn here() -> HostId {
    let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return HostId::default() };
    let network = std::fs::metadata("/proc/self/ns/net").map(|meta| meta.ino().to_le_bytes());
    HostId { boot: hash(&[&boot]), network: network.map_or(0, |inode| hash(&[&boot, &inode])) }
}

/// Returns a hash that is never 0.
fn hash(parts: &[&[u8]]) -> u32 {
    let mut sha = Sha256::new();
    parts.iter().for_each(|part| sha.update(part));
    let digest: [u8; 32] = sha.finalize().into();
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_an_id_that_stays() {
        let host = here();
        assert_eq!(host, here());
        assert!(host.boot != 0 && host.network != 0 && host.boot != host.network, "{host:?}");
    }

    #[test]
    fn unknown_hosts_may_be_the_same_and_others_are_not() {
        let id = |boot, network| HostId { boot, network };
        let share = |a: HostId, b: HostId| (a.may_share_kernel(b), a.may_share_network(b));
        assert_eq!(share(id(1, 2), id(1, 2)), (true, true));
        assert_eq!(share(id(1, 2), id(1, 3)), (true, false));
        assert_eq!(share(id(1, 2), id(4, 2)), (false, false));
        assert_eq!(share(id(1, 2), id(0, 0)), (true, true));
        assert_eq!(share(id(1, 0), id(1, 3)), (true, true));
    }
}
