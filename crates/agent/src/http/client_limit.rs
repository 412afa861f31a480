//! How many clients are served at a time. A client that comes is always admitted; beyond the limit one
//! that has not sent a request that is served is dropped, or else the one that came first.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The clients of one listener.
#[derive(Debug, Clone)]
pub(super) struct ClientLimit {
    most: usize,
    admitted: Arc<Mutex<Clients>>,
}

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    /// By the order in which they came.
    clients: BTreeMap<u64, Admitted>,
}

#[derive(Debug)]
struct Admitted {
    is_entitled: bool,
    /// Dropped when another client is admitted in its place.
    _alive: oneshot::Sender<()>,
}

/// One client that is served, until this is dropped.
#[derive(Debug)]
pub(super) struct Admission {
    number: u64,
    limit: ClientLimit,
}

impl ClientLimit {
    pub(super) fn new(most: usize) -> Self {
        Self { most, admitted: Arc::default() }
    }

    /// Admits a client. The receiver ends when another one is admitted in its place.
    pub(super) fn admit(&self) -> (Admission, oneshot::Receiver<()>) {
        let mut admitted = self.admitted.lock();
        if admitted.clients.len() >= self.most {
            let idle = admitted.clients.iter().find(|(_, client)| !client.is_entitled);
            if let Some(number) = idle.or(admitted.clients.iter().next()).map(|(number, _)| *number) {
                admitted.clients.remove(&number);
            }
        }
        let (alive, ends) = oneshot::channel();
        let number = admitted.next;
        admitted.next += 1;
        admitted.clients.insert(number, Admitted { is_entitled: false, _alive: alive });
        (Admission { number, limit: self.clone() }, ends)
    }
}

impl Admission {
    /// Notes that the client has sent a request that it may send.
    pub(super) fn is_entitled(&self) {
        if let Some(client) = self.limit.admitted.lock().clients.get_mut(&self.number) {
            client.is_entitled = true;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.limit.admitted.lock().clients.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_sent_nothing_gives_way_first() {
        let limit = ClientLimit::new(2);
        let gives_way = |ends: &mut oneshot::Receiver<()>| {
            !matches!(ends.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        let (first, mut first_ends) = limit.admit();
        let (_second, mut second_ends) = limit.admit();
        first.is_entitled();
        let (third, mut third_ends) = limit.admit();
        assert!(!gives_way(&mut first_ends) && gives_way(&mut second_ends));
        third.is_entitled();
        let (_fourth, mut fourth_ends) = limit.admit();
        assert!(gives_way(&mut first_ends) && !gives_way(&mut third_ends), "the one that came first");
        drop(third);
        let (_fifth, _) = limit.admit();
        assert!(!gives_way(&mut fourth_ends), "there was room");
    }
}
