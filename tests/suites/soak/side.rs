//! One process of the soak: its ends of eight connections, each driven by a thread, along a plan
//! that both processes draw from the same seed.

mod plan;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use mpib_tests::code::Success;
use mpib_tests::log::LOG;
use mpib_tests::pair::{HOST, init, pattern, until};
use mpib_tests::peer::{accepted, connected};
use mpib_tests::table::{Ptr, Table, newest};

pub(crate) use plan::CONNECTIONS;
use plan::{ARENA, GUARD, Group, LARGEST, Plan, SLACK, SOURCES};

/// What this process has done, in all.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) connections: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Memory that lives as long as the process, and its end of the plugin.
pub(crate) struct Side {
    table: &'static Table,
    ctx: Ptr,
    /// Kept open to keep the thread of the control connections.
    listen: Ptr,
    /// What is sent, and what must come: the same in both processes.
    data: Vec<u8>,
    /// Where the receiving connections of this process receive.
    arenas: Vec<Vec<u8>>,
    blank: Vec<u8>,
    /// Number of this process, 0 or 1. It decides who sends on which connections.
    number: usize,
    /// Whether rails fail: then the plugin warns.
    faulty: bool,
    pub(crate) done: Done,
}

// SAFETY: the plugin's handles may be used from any thread.
unsafe impl Sync for Side {}

/// What a thread is doing; printed if it fails.
struct Doing {
    seed: u64,
    round: u64,
    connection: usize,
    life: usize,
    role: &'static str,
    depth: usize,
    group: Option<(usize, Group)>,
}

impl Drop for Doing {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Self { seed, round, connection, life, role, depth, group } = self;
        eprintln!(
            "soak: TEST_SEED={seed}, round {round}, connection {connection}, life {life}, {role}, depth {depth}, at {group:?}"
        );
    }
}

impl Side {
    pub(crate) fn new(number: usize, faulty: bool) -> Self {
        let table = newest();
        let ctx = init(table);
        let (rc, listen) = table.listen(ctx, 0, &mut [0; 128]);
        assert_eq!(rc, Success, "listen");
        Self {
            table,
            ctx,
            listen,
            data: pattern(LARGEST + SOURCES, 1),
            arenas: (0..CONNECTIONS / 2).map(|_| vec![0xEE; ARENA]).collect(),
            blank: vec![0xEE; SLACK + GUARD],
            number,
            faulty,
            done: Done::default(),
        }
    }

    /// All connections of this process, each through its lives; `meanwhile` is called until they
    /// are over.
    pub(crate) fn round(&mut self, seed: u64, round: u64, dir: &Path, mut meanwhile: impl FnMut()) {
        let mut arenas = std::mem::take(&mut self.arenas);
        let side = &*self;
        std::thread::scope(|scope| {
            let mut free = arenas.iter_mut();
            let mut threads = Vec::new();
            for connection in 0..CONNECTIONS {
                let arena = if connection % 2 == side.number { None } else { free.next() };
                threads.push(scope.spawn(move || side.connection(seed, round, connection, dir, arena)));
            }
            while threads.iter().any(|thread| !thread.is_finished()) {
                meanwhile();
            }
        });
        self.arenas = arenas;
        let mut log = LOG.lock().unwrap();
        let warnings: Vec<_> = log.iter().filter(|(level, _)| *level == 2).collect();
        assert!(self.faulty || warnings.is_empty(), "round {round} of TEST_SEED={seed}: {warnings:?}");
        // The test's own memory.
        log.clear();
        log.shrink_to_fit();
    }

    fn connection(
        &self,
        seed: u64,
        round: u64,
        connection: usize,
        dir: &Path,
        mut arena: Option<&mut Vec<u8>>,
    ) {
        for life in 0..plan::lives(seed, round, connection) {
            let plan = Plan::new(seed, round, connection, life);
            let (role, depth) = match arena {
                None => ("sending", plan.depths[0]),
                Some(_) => ("receiving", plan.depths[1]),
            };
            let mut doing = Doing { seed, round, connection, life, role, depth, group: None };
            let place = dir.join(format!("{round}-{connection}-{life}"));
            match arena.as_deref_mut() {
                None => self.send(&place, plan, &mut doing),
                Some(arena) => self.receive(&place, plan, arena, &mut doing),
            }
            self.done.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn register(&self, comm: Ptr, memory: &[u8]) -> Ptr {
        let (rc, mr) = self.table.reg_mr(comm, memory.as_ptr().addr(), memory.len(), HOST);
        assert_eq!(rc, Success, "regMr");
        mr
    }

    fn test(&self, request: Ptr) -> [i32; 8] {
        until("test", || {
            let (rc, done, sizes) = self.table.test(request);
            assert_eq!(rc, Success, "test");
            done.then_some(sizes)
        })
    }

    fn send(&self, place: &Path, plan: Plan, doing: &mut Doing) {
        let mut handle = until("a handle", || std::fs::read(place).ok()?.try_into().ok());
        let comm = connected(self.table, self.ctx, &mut handle);
        let mr = self.register(comm, &self.data);
        let mut flights = VecDeque::new();
        let land = |flight: Vec<(Ptr, usize)>| {
            for (request, len) in flight {
                assert_eq!(self.test(request)[0] as usize, len, "size at the sender");
            }
        };
        for (number, group) in plan.enumerate() {
            doing.group = Some((number, group.clone()));
            // A group goes once all its sends are there: what is waited for is groups.
            if flights.len() == doing.depth {
                land(flights.pop_front().unwrap());
            }
            let post = |&i: &usize| {
                let part = &group.parts[i];
                let addr = self.data.as_ptr().addr() + part.source;
                let request = until("isend", || {
                    let (rc, request) = self.table.isend(comm, addr, part.len, part.tag, mr);
                    assert_eq!(rc, Success, "isend");
                    (!request.is_null()).then_some(request)
                });
                (request, part.len)
            };
            flights.push_back(group.order.iter().map(post).collect());
        }
        flights.into_iter().for_each(land);
        assert_eq!((self.table.dereg_mr(comm, mr), self.table.close_send(comm)), (Success, Success));
    }

    fn receive(&self, place: &Path, plan: Plan, arena: &mut [u8], doing: &mut Doing) {
        let mut handle = [0; 128];
        let (rc, listen) = self.table.listen(self.ctx, 0, &mut handle);
        assert_eq!(rc, Success, "listen");
        let new = place.with_extension("new");
        std::fs::write(&new, handle).unwrap();
        std::fs::rename(&new, place).unwrap();
        let comm = accepted(self.table, listen);
        assert_eq!(self.table.close_listen(listen), Success);
        std::fs::remove_file(place).unwrap();
        let mr = self.register(comm, arena);
        let start = arena.as_ptr().addr();
        let mut flights: VecDeque<(Ptr, usize, Group)> = VecDeque::new();
        let mut next = 0;
        for (number, group) in plan.enumerate() {
            doing.group = Some((number, group.clone()));
            if next + group.room() > ARENA {
                next = 0;
            }
            // As deep as the plan says, and never two groups in one place.
            let taken =
                |(_, at, other): &(Ptr, usize, Group)| next < at + other.room() && *at < next + group.room();
            while flights.len() == doing.depth || flights.iter().any(taken) {
                self.land(arena, flights.pop_front().unwrap());
            }
            let buffers: Vec<_> =
                group.places(next).map(|(at, part)| (start + at, part.room, part.tag, mr)).collect();
            let request = until("irecv", || {
                let (rc, request) = self.table.irecv(comm, &buffers);
                assert_eq!(rc, Success, "irecv");
                (!request.is_null()).then_some(request)
            });
            flights.push_back((request, next, group.clone()));
            next += group.room();
        }
        for flight in flights {
            self.land(arena, flight);
        }
        assert_eq!((self.table.dereg_mr(comm, mr), self.table.close_recv(comm)), (Success, Success));
    }

    /// Waits for a group, and checks every byte of it and those between its receives.
    fn land(&self, arena: &mut [u8], (request, at, group): (Ptr, usize, Group)) {
        let sizes = self.test(request);
        for (i, (place, part)) in group.places(at).enumerate() {
            assert_eq!(sizes[i] as usize, part.len, "receive {i} of {group:?}");
            let (data, rest) = arena[place..place + part.room + GUARD].split_at(part.len);
            assert!(
                *data == self.data[part.source..part.source + part.len],
                "receive {i} of {group:?} differs"
            );
            assert!(*rest == self.blank[..rest.len()], "written behind receive {i} of {group:?}");
            self.done.bytes.fetch_add(part.len as u64, Ordering::Relaxed);
        }
        self.done.messages.fetch_add(group.parts.len() as u64, Ordering::Relaxed);
        arena[at..at + group.room()].fill(0xEE);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.table.close_listen(self.listen), Success);
        }
    }
}
