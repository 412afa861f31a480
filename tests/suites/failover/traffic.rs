//! Transfers over one connection while its rails die. They check everything on which NCCL relies.
//!
//! As NCCL's progress threads do, one loop offers receives, starts sends and tests all requests.
//! Buffers are used in rotation. A receive buffer that was given back is filled with [`MARK`], and
//! compared before it is offered again. A send buffer is filled with [`SPENT`] once its send is
//! done, so data that is sent from it afterwards is wrong at the receiver.

use std::ffi::c_int;
use std::time::Instant;

use mpib_tests::code::Success;
use mpib_tests::memory::Pages;
use mpib_tests::pair::{HOST, LIMIT, Pair, Polling, pattern};
use mpib_tests::table::Ptr;
use nccl_net_mpib_agent_iface::stats::{Connection, Direction, pages_of};

/// Bytes that nobody may have written: those of buffers that were given back, and behind messages.
const MARK: u8 = 0xEE;
/// Bytes of a send buffer whose send is done.
const SPENT: u8 = 0x5A;
/// Room of a receive behind its message.
const SLACK: usize = 64;
/// The messages' bytes come from one pattern, each from another of so many places.
const PLACES: usize = 4096;

/// What is transferred: groups of messages.
#[derive(Debug, Clone)]
pub(crate) struct Traffic {
    /// The lengths of each group.
    pub(crate) groups: Vec<Vec<usize>>,
    /// Groups in flight at most: as many buffers there are at each end.
    pub(crate) in_flight: usize,
    /// Groups of one have optional receives: NCCL sees by the data that it is complete.
    pub(crate) optional: bool,
    /// Each group is flushed.
    pub(crate) flush: bool,
}

impl Traffic {
    /// `times` times these groups.
    pub(crate) fn of(groups: &[&[usize]], times: usize, in_flight: usize) -> Self {
        let once = groups.iter().map(|lens| lens.to_vec());
        let groups = std::iter::repeat_n(once, times).flatten().collect();
        Self { groups, in_flight, optional: false, flush: false }
    }

    pub(crate) fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    pub(crate) fn flushed(self) -> Self {
        Self { flush: true, ..self }
    }

    /// Bytes of the largest group with its slack.
    fn area(&self) -> usize {
        self.groups.iter().map(|lens| lens.iter().map(|len| len + SLACK).sum()).max().unwrap_or(SLACK)
    }

    fn is_optional(&self, group: usize) -> bool {
        self.optional && self.groups[group].len() == 1
    }
}

/// The rotating buffers of one end.
struct Areas {
    pages: Pages,
    mr: Ptr,
    /// Bytes of one buffer.
    len: usize,
    /// What each must contain while no operation uses it.
    known: Vec<Vec<u8>>,
    /// Whether a GPU looks at the bytes while they arrive.
    polled: bool,
}

impl Areas {
    fn new(pair: &Pair, comm: Ptr, len: usize, n: usize, byte: u8) -> Self {
        let pages = Pages::new(len * n);
        pages.write(0, &vec![byte; len * n]);
        let (rc, mr) = pair.table.reg_mr(comm, pages.addr(), len * n, HOST);
        assert_eq!(rc, Success, "regMr");
        Self { pages, mr, len, known: vec![vec![byte; len]; n], polled: false }
    }

    fn addr(&self, area: usize) -> usize {
        self.pages.addr() + area * self.len
    }

    fn write(&mut self, area: usize, bytes: Vec<u8>) {
        self.pages.write(area * self.len, &bytes);
        self.known[area] = bytes;
    }

    fn has(&self, area: usize, bytes: &[u8]) -> bool {
        let found = match self.polled {
            true => self.pages.poll(area * self.len, self.len),
            false => self.pages.read(area * self.len, self.len),
        };
        found == bytes
    }

    /// Describes the first difference of a buffer and `expected`.
    fn difference(&self, area: usize, expected: &[u8]) -> String {
        let found = self.pages.read(area * self.len, self.len);
        let differs = |(a, b): (&u8, &u8)| a != b;
        let Some(first) = found.iter().zip(expected).position(differs) else { return "none now".into() };
        let n = found.iter().zip(expected).filter(|pair| differs(*pair)).count();
        format!(
            "{n} bytes differ, the first at {first}: {:#04x} in place of {:#04x}",
            found[first], expected[first]
        )
    }
}

/// A group of receives under way.
#[derive(Debug)]
struct Receive {
    group: usize,
    area: usize,
    /// `None` once it is done.
    request: Option<Ptr>,
    flush: Option<Ptr>,
}

/// A send under way.
#[derive(Debug)]
struct Sent {
    area: usize,
    request: Ptr,
    len: usize,
}

/// One connection under test.
pub(crate) struct Link {
    pub(crate) pair: Pair,
    from: Areas,
    to: Areas,
    data: Vec<u8>,
    traffic: Traffic,
    /// Groups before the present run.
    earlier: usize,
    /// Messages and their bytes, in all runs.
    messages: u64,
    bytes: u64,
}

/// How far a run is.
#[derive(Debug, Default)]
struct Run {
    offered: usize,
    /// Groups whose sends have all begun, and the sends of the next one that have.
    sent: usize,
    begun: usize,
    receives: Vec<Receive>,
    sends: Vec<Sent>,
}

impl Run {
    /// Returns what each step of a run changes.
    fn steps(&self) -> [usize; 5] {
        [self.offered, self.sent, self.begun, self.receives.len(), self.sends.len()]
    }
}

impl Link {
    pub(crate) fn new(pair: Pair, traffic: &Traffic) -> Self {
        let (len, n) = (traffic.area(), traffic.in_flight);
        let from = Areas::new(&pair, pair.send, len, n, SPENT);
        let to = Areas { polled: traffic.optional, ..Areas::new(&pair, pair.recv, len, n, MARK) };
        let traffic = traffic.clone();
        let data = pattern(len + PLACES, 1);
        Self { pair, from, to, data, traffic, earlier: 0, messages: 0, bytes: 0 }
    }

    /// Transfers everything once, and sends only when everything is offered: there are as many
    /// buffers. `each` is called with the number of offers before each further one.
    pub(crate) fn run_after_offers(&mut self, mut each: impl FnMut(usize)) {
        let (mut run, begin) = (Run::default(), Instant::now());
        while run.offered < self.traffic.groups.len() {
            let before = run.offered;
            each(before);
            while run.offered == before {
                self.offer(&mut run);
                self.test_receives(&mut run);
                assert!(begin.elapsed() < LIMIT / 2, "no progress: {run:?}");
            }
        }
        self.finish(run, || {});
    }

    /// Transfers everything once. `each` is called again and again meanwhile.
    pub(crate) fn run(&mut self, each: impl FnMut()) {
        self.finish(Run::default(), each);
    }

    /// Ends a run.
    fn finish(&mut self, mut run: Run, mut each: impl FnMut()) {
        let (groups, begin) = (self.traffic.groups.len(), Instant::now());
        let mut polling = Polling::start();
        while run.offered < groups || run.sent < groups || !run.receives.is_empty() || !run.sends.is_empty() {
            each();
            let before = run.steps();
            self.offer(&mut run);
            self.begin_send(&mut run);
            self.test_receives(&mut run);
            self.test_sends(&mut run);
            assert!(begin.elapsed() < LIMIT / 2, "no progress: {run:?} of {:?}", self.traffic.groups);
            if run.steps() == before {
                polling.pause();
            } else {
                polling.progress();
            }
        }
        self.earlier += groups;
        self.messages += self.traffic.groups.iter().map(|lens| lens.len() as u64).sum::<u64>();
        self.bytes += self.traffic.groups.iter().flatten().map(|len| *len as u64).sum::<u64>();
        if self.traffic.optional {
            self.drain();
        }
        self.check_given_back();
        self.check_counts();
    }

    /// Returns the bytes of a message.
    fn message(&self, group: usize, place: usize) -> &[u8] {
        let at = ((self.earlier + group) * 8 + place) * 1021 % PLACES;
        &self.data[at..at + self.traffic.groups[group][place]]
    }

    /// Returns the offset of each message of a group in its buffer.
    fn offsets(&self, group: usize) -> Vec<usize> {
        let starts = self.traffic.groups[group].iter().scan(0, |at, len| {
            let start = *at;
            *at += len + SLACK;
            Some(start)
        });
        starts.collect()
    }

    /// Returns a buffer of `byte` with the messages of a group.
    fn filled(&self, group: usize, byte: u8) -> Vec<u8> {
        let mut bytes = vec![byte; self.to.len];
        for (place, at) in self.offsets(group).into_iter().enumerate() {
            let message = self.message(group, place);
            bytes[at..at + message.len()].copy_from_slice(message);
        }
        bytes
    }

    fn area(&self, group: usize) -> usize {
        (self.earlier + group) % self.traffic.in_flight
    }

    /// Offers the next group if its buffer is free.
    fn offer(&mut self, run: &mut Run) {
        let (group, area) = (run.offered, self.area(run.offered));
        if group == self.traffic.groups.len() || run.receives.iter().any(|receive| receive.area == area) {
            return;
        }
        self.check_area(area);
        let (lens, addr) = (&self.traffic.groups[group], self.to.addr(area));
        let tagged = self.offsets(group).into_iter().zip(lens).zip(0 as c_int..);
        let buffers: Vec<_> =
            tagged.map(|((at, len), tag)| (addr + at, len + SLACK, tag, self.to.mr)).collect();
        let hint = usize::from(self.traffic.is_optional(group));
        let (rc, request) = self.pair.table.irecv_as(self.pair.recv, &buffers, hint);
        assert_eq!(rc, Success, "irecv");
        if !request.is_null() {
            // Only now: the data of an optional receive may come again until its buffer is offered.
            // Nothing is sent into it yet, since this thread sends.
            self.to.write(area, vec![MARK; self.to.len]);
            run.receives.push(Receive { group, area, request: Some(request), flush: None });
            run.offered += 1;
        }
    }

    /// Begins one send. The last message of a group comes first.
    fn begin_send(&mut self, run: &mut Run) {
        let (group, area) = (run.sent, self.area(run.sent));
        let busy = |run: &Run| run.begun == 0 && run.sends.iter().any(|send| send.area == area);
        if group == self.traffic.groups.len() || busy(run) {
            return;
        }
        if run.begun == 0 {
            let bytes = self.filled(group, SPENT);
            self.from.write(area, bytes);
        }
        let place = self.traffic.groups[group].len() - 1 - run.begun;
        let (len, at) = (self.traffic.groups[group][place], self.offsets(group)[place]);
        let table = self.pair.table;
        let (rc, request) =
            table.isend(self.pair.send, self.from.addr(area) + at, len, place as c_int, self.from.mr);
        assert_eq!(rc, Success, "isend");
        if request.is_null() {
            return;
        }
        run.sends.push(Sent { area, request, len });
        run.begun += 1;
        if run.begun == self.traffic.groups[group].len() {
            (run.sent, run.begun) = (run.sent + 1, 0);
        }
    }

    fn test_receives(&mut self, run: &mut Run) {
        let mut receives = std::mem::take(&mut run.receives);
        receives.retain_mut(|receive| !self.is_received(receive));
        run.receives = receives;
    }

    /// Returns whether the group is complete, and gives its buffer back.
    fn is_received(&mut self, receive: &mut Receive) -> bool {
        let (lens, optional) = (&self.traffic.groups[receive.group], self.traffic.is_optional(receive.group));
        if let Some(request) = receive.request {
            let (rc, done, sizes) = self.pair.table.test(request);
            assert_eq!(rc, Success, "test of a receive");
            if !done {
                return false;
            }
            for (len, size) in lens.iter().zip(sizes) {
                let ahead = optional && size == 0;
                assert!(ahead || *len == size as usize, "a message of {len} bytes was received as {size}");
            }
            receive.request = None;
            if self.traffic.flush {
                receive.flush = self.flush(receive);
            }
        }
        if let Some(flush) = receive.flush {
            let (rc, done, _) = self.pair.table.test(flush);
            assert_eq!(rc, Success, "test of a flush");
            if !done {
                return false;
            }
        }
        let expected = self.filled(receive.group, MARK);
        let complete = self.to.has(receive.area, &expected);
        if optional {
            // The GPU has seen all of the data. The same bytes may be written again until the
            // buffer is offered again.
            self.to.known[receive.area] = expected;
            return complete;
        }
        let (area, lens) = (receive.area, &self.traffic.groups[receive.group]);
        assert!(complete, "group {lens:?}: {}", self.to.difference(area, &expected));
        self.to.write(area, vec![MARK; self.to.len]);
        true
    }

    fn flush(&self, receive: &Receive) -> Option<Ptr> {
        let (lens, addr) = (&self.traffic.groups[receive.group], self.to.addr(receive.area));
        let offsets = self.offsets(receive.group).into_iter();
        let buffers: Vec<_> = offsets.zip(lens).map(|(at, len)| (addr + at, *len, self.to.mr)).collect();
        let (rc, request) = self.pair.table.iflush(self.pair.recv, &buffers);
        assert_eq!(rc, Success, "iflush");
        (!request.is_null()).then_some(request)
    }

    fn test_sends(&mut self, run: &mut Run) {
        let mut sends = std::mem::take(&mut run.sends);
        let begun = (run.begun > 0).then(|| self.area(run.sent));
        let mut spent = Vec::new();
        sends.retain(|send| {
            let (rc, done, sizes) = self.pair.table.test(send.request);
            assert_eq!(rc, Success, "test of a send");
            if done {
                assert_eq!(sizes[0] as usize, send.len, "size of a send");
                spent.push(send.area);
            }
            !done
        });
        // The sends of a group share an area, which is spent with the last of them.
        spent.retain(|area| begun != Some(*area) && sends.iter().all(|send| send.area != *area));
        for area in spent {
            self.from.write(area, vec![SPENT; self.from.len]);
        }
        run.sends = sends;
    }

    /// Waits until the immediates of all optional receives have arrived: both ends are idle then.
    fn drain(&mut self) {
        let begin = Instant::now();
        while self.counts().iter().any(|end| end.in_flight() > 0) {
            assert!(begin.elapsed() < LIMIT / 2, "requests stay in flight: {:?}", self.counts());
            // Housekeeping polls.
            std::thread::yield_now();
        }
    }

    /// Asserts that nothing has written into the buffers that no operation uses.
    pub(crate) fn check_given_back(&self) {
        (0..self.traffic.in_flight).for_each(|area| self.check_area(area));
    }

    fn check_area(&self, area: usize) {
        let known = &self.to.known[area];
        let intact = self.to.has(area, known);
        assert!(intact, "written to a buffer that was given back: {}", self.to.difference(area, known));
    }

    /// Returns what the statistics page shows of both ends.
    fn counts(&self) -> [Connection; 2] {
        let pages = pages_of(std::process::id()).unwrap();
        [Direction::Send, Direction::Receive].map(|direction| {
            let mut all = pages[0].connections();
            all.retain(|end| end.direction == Some(direction));
            assert_eq!(all.len(), 1, "one connection at a time");
            all.pop().unwrap()
        })
    }

    /// Asserts that each message counts once at each end: no request was completed twice.
    fn check_counts(&self) {
        for end in self.counts() {
            let counted = (end.totals.messages, end.totals.bytes, end.in_flight(), end.totals.errors);
            assert_eq!(counted, (self.messages, self.bytes, 0, 0), "{:?}", end.direction);
        }
    }

    pub(crate) fn close(self) {
        let Self { pair, from, to, .. } = self;
        assert_eq!(pair.table.dereg_mr(pair.send, from.mr), Success);
        assert_eq!(pair.table.dereg_mr(pair.recv, to.mr), Success);
        pair.close();
    }
}
