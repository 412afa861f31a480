//! The addresses at which other hosts were reached.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::proto::Addr;

/// Hosts that are remembered. One more forgets all: their addresses are found again.
const HOSTS_MAX: usize = 4096;

/// By the addresses of a host's handles, the one that was the first to answer.
#[derive(Debug, Default)]
pub(super) struct KnownAddresses(Mutex<HashMap<Box<[Addr]>, IpAddr>>);

impl KnownAddresses {
    /// Returns the address of a host that was the first to answer the last time.
    pub(super) fn of(&self, host: &[Addr]) -> Option<IpAddr> {
        self.0.lock().get(host).copied()
    }

    /// Prefers the address of a host that follows this one: a connection to it broke.
    pub(super) fn prefer_next(&self, host: &[Addr], broke: IpAddr) {
        let at = host.iter().position(|addr| addr.ip() == broke);
        let next = at.and_then(|at| host.get((at + 1) % host.len()));
        next.into_iter().for_each(|next| self.add(host, next.ip()));
    }

    /// Remembers the address of a host that was the first to answer.
    pub(super) fn add(&self, host: &[Addr], answered: IpAddr) {
        let mut hosts = self.0.lock();
        if let Some(known) = hosts.get_mut(host) {
            *known = answered;
            return;
        }
        if hosts.len() == HOSTS_MAX {
            hosts.clear();
        }
        hosts.insert(host.into(), answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_of_each_host_is_known_and_memory_is_bounded() {
        let addr = |n: u32| Addr::new(IpAddr::from(n.to_be_bytes()), 24).unwrap();
        let (known, ip) = (KnownAddresses::default(), |n| addr(n).ip());
        let (one, two) = ([addr(1), addr(2)], [addr(1), addr(3)]);
        assert_eq!(known.of(&one), None);
        known.add(&one, ip(1));
        known.add(&one, ip(2));
        known.add(&two, ip(1));
        assert_eq!((known.of(&one), known.of(&two)), (Some(ip(2)), Some(ip(1))));
        known.prefer_next(&one, ip(2));
        known.prefer_next(&two, ip(9));
        assert_eq!((known.of(&one), known.of(&two)), (Some(ip(1)), Some(ip(1))));
        known.prefer_next(&one, ip(1));
        assert_eq!(known.of(&one), Some(ip(2)));
        for n in 0..2 * HOSTS_MAX as u32 {
            known.add(&[addr(n + 10)], ip(n + 10));
            assert!(known.0.lock().len() <= HOSTS_MAX);
        }
    }
}
