//! A rank that says anything to another one over its links of one-sided traffic.

mod model;

use arbitrary::Arbitrary;
use mpib_proto::{COMMAND_BYTES, Command, Extent, LinkKind, Signal, Way};
use mpib_tests::code::{Code, Success, known};
use mpib_tests::pair::{Buffer, pattern, until};
use mpib_tests::rma::{CUDA, Group, HOST, NOWHERE, OF_SIGNALS, Pending, Window, rma_table};
use mpib_tests::table::{Ptr, newest};

use crate::steps;
use crate::table::context;
use model::{Model, Verdict};

/// Most steps of one run.
const MAX_STEPS: usize = 24;
/// Bytes of a window that the liar may use.
const LEN: usize = 8192;
/// Bytes of all windows that nobody has written.
const MARK: u8 = 0xEE;
/// The numbers of the windows: in host memory, in GPU memory, deregistered, of signals for the test.
const HOST_WINDOW: u32 = 0;
const GPU_WINDOW: u32 = 1;
const ENDED: u32 = 2;
const FENCE: u32 = 3;
/// The gets of the honest rank from the liar: window, place and size.
const GETS: [(u32, usize, usize); 3] =
    [(HOST_WINDOW, 4096, 64), (GPU_WINDOW, 4096, 500), (HOST_WINDOW, 5000, 3000)];
/// The largest message of a command link.
const ROOM: usize = 1024;

/// What the liar says.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Say {
    Put {
        window: u8,
        offset: u16,
        size: u16,
        way: u8,
        chunk: u16,
        signal: Option<(u8, u16, u8)>,
    },
    Get {
        id: u8,
        window: u8,
        offset: u16,
        size: u16,
    },
    Answer {
        id: u8,
        size: u16,
        way: u8,
        chunk: u16,
    },
    Join,
    End,
    /// Another link, with this first message.
    Link {
        rank: u8,
        group: bool,
        is_data: bool,
        is_join: bool,
    },
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Step {
    say: Say,
    /// A byte of the command that is changed, if there is one with this index.
    at: u8,
    byte: u8,
    /// How many bytes the message has more, if it is much.
    longer: i8,
    /// What follows the command: the data, too little of it, or nothing.
    data: u8,
}

/// The honest ranks 0 and 2, and what the liar, rank 1, has.
struct World {
    /// By rank: 0 and 2.
    groups: [Group; 2],
    windows: [Vec<Window>; 2],
    gets: Vec<Pending>,
    handles: [[u8; 128]; 3],
    listen: Ptr,
    links: [Link; 2],
}

/// A sending end of the liar.
struct Link {
    comm: Ptr,
    buffer: Buffer,
}

/// Says what the bytes stand for. A right command has the effect that it has in a model, a wrong one is
/// an error of its link's rank, and nothing is written outside of what commands name. Another rank's
/// puts arrive in any case, and everything can be closed.
pub fn commands(data: &[u8]) {
    let Some(steps) = steps::<Step>(data, MAX_STEPS).filter(|steps| !steps.is_empty()) else { return };
    let mut world = World::new();
    let mut model = Model::new();
    let verdict = steps.into_iter().map(|step| world.make(step, &mut model)).find(|it| *it != Verdict::Goes);
    world.check(verdict.unwrap_or(Verdict::Goes), &model);
    world.end();
}

/// Returns a number of bytes, mostly around the size of a window, sometimes very large.
fn wide(n: u16) -> u64 {
    if n >= 0xff00 { u64::MAX - u64::from(n - 0xff00) } else { u64::from(n) % (LEN as u64 + 64) }
}

fn window(n: u8) -> u32 {
    match n {
        0..240 => u32::from(n) % 2,
        240..248 => ENDED,
        _ => u32::from(n) << 24,
    }
}

fn way(n: u8, chunk: u16, size: u64) -> Way {
    match n % 4 {
        _ if size > 960 => Way::DataLink((u64::from(chunk) % 4096).max(256)),
        0 | 1 => Way::Inside,
        2 => Way::Next,
        _ => Way::DataLink(u64::from(chunk) + 1),
    }
}

impl Say {
    /// Returns the command; `None` for another link.
    fn command(self) -> Option<Command> {
        Some(match self {
            Self::Put { window: to, offset, size, way: by, chunk, signal } => {
                let extent = Extent { window: window(to), offset: wide(offset), size: wide(size) };
                let signal = signal.map(|(to, at, value)| {
                    let offset = if at % 16 == 1 { wide(at) } else { wide(at) & !7 };
                    Signal { window: window(to), offset, value: value.into() }
                });
                Command::Put { data: (size > 0).then(|| (extent, way(by, chunk, extent.size))), signal }
            }
            Self::Get { id, window: from, offset, size } => {
                let from = Extent { window: window(from), offset: wide(offset), size: wide(size) };
                Command::Get { id: id.into(), from }
            }
            Self::Answer { id, size, way: by, chunk } => {
                let (id, right) = (usize::from(id) % 4, size < 0xc000);
                let size = GETS.get(id).filter(|_| right).map_or(wide(size), |get| get.2 as u64);
                Command::Answer { id: id as u32, size, way: way(by, chunk, size) }
            }
            Self::Join => Command::Join { rank: 1, link: LinkKind::Commands, group: 0 },
            Self::End => Command::End,
            Self::Link { .. } => return None,
        })
    }
}

impl World {
    fn new() -> Self {
        let (mut first, mut second) = (Group::listen(rma_table(16)), Group::listen(rma_table(16)));
        let mut liar = [0; 128];
        let (code, listen) = newest().listen(context(), 0, &mut liar);
        assert_eq!(code, Success, "listen");
        let handles = [first.handle, liar, second.handle];
        let groups =
            [first.join(0, vec![handles[1], handles[2]]), second.join(2, vec![handles[0], handles[1]])];
        let windows = [0, 1].map(|rank| register(&groups[rank]));
        let get = |&(window, at, size): &(u32, usize, usize)| {
            let place = windows[0][window as usize].at(0, at);
            // The third window has ended: it is not in the list.
            groups[0].get(0, 1, place, size, place)
        };
        let gets = GETS.iter().map(get).collect();
        let link = |kind| {
            let mut link = Link::new(&groups, handles[0]);
            let join = Command::Join { rank: 1, link: kind, group: group_number(&handles) };
            assert!(link.send(&groups, &bytes_of(&join)), "JOIN");
            link
        };
        let links = [link(LinkKind::Commands), link(LinkKind::Data)];
        Self { gets, windows, groups, handles, listen, links }
    }

    fn make(&mut self, step: Step, model: &mut Model) -> Verdict {
        let Some(command) = step.say.command() else {
            self.link(step.say);
            return Verdict::Goes;
        };
        let mut message = bytes_of(&command);
        if let Some(byte) = message.get_mut(usize::from(step.at)) {
            *byte = step.byte;
        }
        // A command that does not decode may have any length.
        let decoded = decode(&message);
        if decoded.is_some_and(names_the_fence) {
            return Verdict::Goes;
        }
        let inside = decoded.as_ref().map_or(0, Command::inside);
        message.extend(pattern(inside, step.byte.into()));
        let longer = if step.longer.unsigned_abs() > 110 { isize::from(step.longer) } else { 0 };
        message.resize(message.len().saturating_add_signed(longer).min(ROOM), 0);
        let verdict = model.command(decoded, &message);
        self.links[0].send(&self.groups, &message);
        match verdict {
            Verdict::Goes => self.follow(step, model),
            other => other,
        }
    }

    /// Sends the data that follows a command.
    fn follow(&mut self, step: Step, model: &mut Model) -> Verdict {
        if model.awaits_many() {
            return Verdict::Stalls;
        }
        while let Some((is_next, len)) = model.awaited() {
            let link = usize::from(!is_next);
            let len = match step.data {
                0..224 => len,
                224..240 => len - 1,
                _ => return Verdict::Stalls,
            };
            let data = pattern(len, u64::from(step.byte) + 1);
            let verdict = model.data(&data);
            self.links[link].send(&self.groups, &data);
            if verdict != Verdict::Goes {
                return verdict;
            }
        }
        Verdict::Goes
    }

    /// Makes another link, which is refused.
    fn link(&self, say: Say) {
        let Say::Link { rank, group, is_data, is_join } = say else { return };
        let link = if is_data { LinkKind::Data } else { LinkKind::Commands };
        // Rank 1 has its links, and no other rank is the liar's.
        let rank = if rank % 2 == 0 { 1 } else { 3 + u32::from(rank) };
        let join = Command::Join { rank, link, group: group_number(&self.handles) ^ u64::from(group) };
        let mut link = Link::new(&self.groups, self.handles[0]);
        link.send(&self.groups, &bytes_of(if is_join { &join } else { &Command::End }));
        until("the refusal of a link", || (!link.try_send(&self.groups, &[0])).then_some(()));
        link.close();
    }

    /// Compares the windows with the model's, once everything has had its effect.
    fn check(&mut self, verdict: Verdict, model: &Model) {
        let [first, second] = &self.groups;
        match verdict {
            Verdict::Goes => {
                let signal = Some(Signal { window: FENCE, offset: 0, value: 1 });
                self.links[0].send(&self.groups, &bytes_of(&Command::Put { data: None, signal }));
                self.until("the signal behind all commands", || self.fence(0).eq(&1).then_some(()));
                for (get, _) in self.gets.iter().zip(&model.answered).filter(|(_, answered)| **answered) {
                    self.until("the answer to a get", || first.test(*get).expect("a get").then_some(()));
                }
            }
            Verdict::Fails => {
                self.until("the error", || (!self.is_healthy()).then_some(()));
                for get in &self.gets {
                    let ends = || (first.test(*get) != Ok(false)).then_some(());
                    self.until("the end of a get", ends);
                }
            }
            Verdict::Waits | Verdict::Stalls => (0..10).for_each(|_| progress(&self.groups)),
        }
        assert_eq!(self.is_healthy(), verdict != Verdict::Fails, "{verdict:?}");
        for number in [HOST_WINDOW, GPU_WINDOW] {
            let found = self.windows[0][number as usize].read(0, 0, LEN);
            model.check(number, &found, verdict);
        }
        let signal = (self.windows[1][FENCE as usize - 1].at(0, 8), 1);
        let put = second.put_signal((0, 0), NOWHERE, 0, NOWHERE, 0, signal);
        self.until("a put of another rank", || self.fence(8).eq(&1).then_some(()));
        self.until("its end", || second.test(put).expect("a put").then_some(()));
    }

    /// Returns a word of the window that is the test's own.
    fn fence(&self, offset: usize) -> u64 {
        self.windows[0][FENCE as usize - 1].word(0, offset)
    }

    /// Returns whether the honest rank has no error.
    fn is_healthy(&self) -> bool {
        let group = &self.groups[0];
        group.table.has_error(group.ranks[0].ctx) == (Success, false)
    }

    fn until(&self, what: &str, mut f: impl FnMut() -> Option<()>) {
        until(what, || {
            progress(&self.groups);
            f()
        });
    }

    fn end(self) {
        let Self { groups, windows, listen, links, .. } = self;
        // The rank that has put first: it says so to the other one.
        for (group, windows) in groups.into_iter().zip(windows).rev() {
            windows.into_iter().for_each(|window| group.deregister(window));
            group.close();
        }
        links.into_iter().for_each(Link::close);
        assert_eq!(newest().close_listen(listen), Success);
    }
}

impl Link {
    /// Connects the liar to a rank.
    fn new(groups: &[Group], mut handle: [u8; 128]) -> Self {
        let table = newest();
        let comm = until("a connection", || {
            progress(groups);
            let (code, comm) = table.connect(context(), 0, &mut handle);
            assert_eq!(code, Success, "connect");
            (!comm.is_null()).then_some(comm)
        });
        Self { comm, buffer: Buffer::new(table, comm, vec![0; LEN]) }
    }

    /// Sends a message, and waits for its end. Returns whether it has arrived.
    fn send(&mut self, groups: &[Group], bytes: &[u8]) -> bool {
        until("a message's end", || self.attempt(groups, bytes)) == Success
    }

    /// As [`send`](Self::send), and does not wait for a receive.
    fn try_send(&mut self, groups: &[Group], bytes: &[u8]) -> bool {
        self.attempt(groups, bytes).is_none_or(|code| code == Success)
    }

    /// Returns `None` if there is no receive yet.
    fn attempt(&mut self, groups: &[Group], bytes: &[u8]) -> Option<Code> {
        let table = newest();
        self.buffer.write(bytes);
        progress(groups);
        let (code, request) = table.isend(self.comm, self.buffer.addr(), bytes.len(), 0, self.buffer.mr);
        if request.is_null() {
            return (code != Success).then_some(code);
        }
        Some(until("a send's end", || {
            progress(groups);
            let (code, done, _) = table.test(request);
            (code != Success || done).then_some(code)
        }))
    }

    fn close(self) {
        self.buffer.dereg();
        assert_eq!(newest().close_send(self.comm), Success);
    }
}

/// Registers the windows of a rank. The deregistered one is not in the list.
fn register(group: &Group) -> Vec<Window> {
    let [host, gpu, ended] = [HOST, CUDA, HOST].map(|kind| group.window(kind, LEN / 8, 0));
    [&host, &gpu].into_iter().for_each(|window| window.write(0, 0, &[MARK; LEN]));
    let fence = group.window(HOST, 2, OF_SIGNALS);
    group.deregister(ended);
    vec![host, gpu, fence]
}

/// Makes progress, with or without an error. One in many looks for peers that connect.
fn progress(groups: &[Group]) {
    for group in groups {
        (0..64).for_each(|_| {
            let _ = known(group.table.progress(group.ranks[0].ctx));
        });
    }
}

fn bytes_of(command: &Command) -> Vec<u8> {
    command.encode().into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Returns the command that begins a message.
fn decode(message: &[u8]) -> Option<Command> {
    let mut words = [0; COMMAND_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(message.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Command::decode(&words).ok()
}

/// Returns whether a command, after a change, names the test's own window.
fn names_the_fence(command: Command) -> bool {
    match command {
        Command::Put { data, signal } => {
            data.is_some_and(|(extent, _)| extent.window == FENCE)
                || signal.is_some_and(|signal| signal.window == FENCE)
        }
        Command::Get { from, .. } => from.window == FENCE,
        _ => false,
    }
}

/// Returns the number of a group, as docs/internals/protocol.md has it.
fn group_number(handles: &[[u8; 128]; 3]) -> u64 {
    let bytes = handles.as_flattened().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
