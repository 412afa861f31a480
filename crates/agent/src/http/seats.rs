//! Who is served at a time. A client that comes always gets a seat; if none is free, that of a client
//! which has not sent its request, or else of the one that came first.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The seats of one listener.
#[derive(Debug, Clone)]
pub(super) struct Seats {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By the order in which they came.
    clients: BTreeMap<u64, Sitting>,
}

#[derive(Debug)]
struct Sitting {
    has_asked: bool,
    /// Dropped when another client gets the seat.
    _stays: oneshot::Sender<()>,
}

/// One client's seat. Free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    seats: Seats,
}

impl Seats {
    pub(super) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Takes a seat. The receiver ends when another client gets it.
    pub(super) fn take(&self) -> (Seat, oneshot::Receiver<()>) {
        let mut taken = self.taken.lock();
        if taken.clients.len() >= self.most {
            let idle = taken.clients.iter().find(|(_, client)| !client.has_asked);
            if let Some(number) = idle.or(taken.clients.iter().next()).map(|(number, _)| *number) {
                taken.clients.remove(&number);
            }
        }
        let (stays, ends) = oneshot::channel();
        let number = taken.next;
        taken.next += 1;
        taken.clients.insert(number, Sitting { has_asked: false, _stays: stays });
        (Seat { number, seats: self.clone() }, ends)
    }
}

impl Seat {
    /// Notes that the client has sent the head of its request.
    pub(super) fn has_asked(&self) {
        if let Some(client) = self.seats.taken.lock().clients.get_mut(&self.number) {
            client.has_asked = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.lock().clients.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_sent_nothing_gives_way_first() {
        let seats = Seats::new(2);
        let gives_way = |ends: &mut oneshot::Receiver<()>| {
            !matches!(ends.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        let (first, mut first_ends) = seats.take();
        let (_second, mut second_ends) = seats.take();
        first.has_asked();
        let (third, mut third_ends) = seats.take();
        assert!(!gives_way(&mut first_ends) && gives_way(&mut second_ends));
        third.has_asked();
        let (_fourth, mut fourth_ends) = seats.take();
        assert!(gives_way(&mut first_ends) && !gives_way(&mut third_ends), "the one that came first");
        drop(third);
        let (_fifth, _) = seats.take();
        assert!(!gives_way(&mut fourth_ends), "a seat was free");
    }
}
