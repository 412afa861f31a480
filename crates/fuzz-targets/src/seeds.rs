//! The first inputs of each target.

use arbitrary::{Arbitrary, Unstructured};
use mpib_proto::{
    Addr, Attempt, Callback, Found, Handle, ImmLayout, Memory, Message, NewRails, Numbered, Offer, OpenGroup,
    QpWiring, RebuildFailed, Redial, Role, RouteWiring, Search, SenderState, Sequence, Up, Verdict, Wiring,
};
use mpib_tests::rng::Rng;
use nccl_net_mpib::simulation::config::Config;
use nccl_net_mpib_agent_iface::agent::{Response, Status};

use crate::hellos::Hellos;

type Seeds = Vec<(String, Vec<u8>)>;

fn named(inputs: impl IntoIterator<Item = Vec<u8>>) -> Seeds {
    inputs.into_iter().enumerate().map(|(i, input)| (format!("seed-{i:02}"), input)).collect()
}

/// Returns bytes from which a target draws what it does.
fn random(count: u64, len: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |seed| {
        let mut rng = Rng::new(seed);
        (0..len).map(|_| rng.draw() as u8).collect()
    })
}

/// A list of enums as [`Arbitrary`] reads it.
#[derive(Default)]
struct List(Vec<u8>);

impl List {
    /// Appends variant `n` of `of`, with the bytes of its fields.
    fn item(mut self, n: u64, of: u64, fields: &[u8]) -> Self {
        self.0.push(1);
        self.0.extend(variant(n, of));
        self.0.extend_from_slice(fields);
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(0);
        self.0
    }
}

/// Returns the bytes that select variant `n` of `of`.
fn variant(n: u64, of: u64) -> [u8; 4] {
    ((((n << 32) + (1 << 31)) / of) as u32).to_le_bytes()
}

fn sample() -> Vec<Message> {
    let qps = vec![QpWiring { qpn: 17, psn: 4711 }; 2];
    let route =
        RouteWiring { local_rail: 0, remote_rail: 1, qps, service_level: 3, traffic_class: 106, ece: None };
    let memory = |n: u32| Memory { addr: 4096, len: 1 << 20, rkeys: (1..=n).collect() };
    let wiring = |n: u32| Wiring { routes: vec![route.clone(); n as usize], memory: memory(n) };
    let attempt = Attempt { number: 1, epoch: 2 };
    let bytes = random(1, 4096).next().unwrap_or_default();
    let hellos = Hellos::arbitrary(&mut Unstructured::new(&bytes)).expect("enough bytes");
    let mut messages = vec![
        Message::Wiring(wiring(2)),
        Message::Ready,
        Message::Probed { mask: 1, reasons: vec![(1, "no route from here".into())], accepts: false },
        Message::Search(Search {
            qps: vec![Some(QpWiring { qpn: 17, psn: 4711 }), None],
            reasons: vec![(1, "no route from here".into())],
            service_level: 0,
            traffic_class: 106,
        }),
        Message::Found(Found { answers: 1, open: 0, reasons: vec![(1, "no route from here".into())] }),
        Message::Down { epoch: 1, rails: 2 },
        Message::State(SenderState {
            epoch: 1,
            dead: 2,
            next: Sequence::from_number(9),
            open: vec![OpenGroup { seq: Sequence::from_number(8), mask: 3, lost: 2, size: Some(4096) }],
        }),
        Message::Verdict(Verdict { epoch: 1, again: vec![(Sequence::from_number(8), 2)] }),
        Message::RebuildFailed(RebuildFailed { attempt, reason: "the port is down".into() }),
        Message::Proved(attempt),
        Message::Up(Up { attempt, entries: vec![(Sequence::from_number(8), 5)] }),
        Message::Return { rails: 2 },
        Message::Arrived { next: Sequence::from_number(9) },
        Message::Refuse { reason: "settings differ\u{7}".into() },
        Message::Bye,
        Message::Resume,
        Message::Welcome { challenge: [4; 16], proof: [5; 16] },
        Message::Proof,
        Message::Ended { proof: [6; 16] },
        Message::Callback(Callback { id: [7; 8], port: 4711, addrs: addrs(&["10.0.0.1"]), ended: [8; 16] }),
        Message::Redial(Redial {
            id: [7; 8],
            token: [2; 16],
            from: Role::Acceptor,
            challenge: [4; 16],
            tag: [9; 16],
        }),
    ];
    if let Some(port) = hellos.acceptor.rails.first().or(hellos.connector.rails.first()) {
        let offer = Offer { port: port.clone(), wiring: wiring(1) };
        let rails = NewRails { attempt, rails: 2, offer };
        messages.extend([Message::Rebuild(rails.clone()), Message::Rebuilt(rails)]);
    }
    let numbered = |(number, message): (u64, &Message)| {
        let received = number - 1;
        Message::Numbered(Numbered { number, received, message: Box::new(message.clone()) })
    };
    let of_rails = messages.iter().filter(|message| is_of_rails(message));
    messages.extend((1..).zip(of_rails).map(numbered).collect::<Vec<_>>());
    messages.extend([Message::Hello(hellos.connector), Message::Hello(hellos.acceptor)]);
    messages
}

/// Returns whether an end of an established connection numbers such a message.
fn is_of_rails(message: &Message) -> bool {
    use Message::*;
    matches!(
        message,
        Down { .. }
            | State(_)
            | Verdict(_)
            | Rebuild(_)
            | Rebuilt(_)
            | RebuildFailed(_)
            | Proved(_)
            | Up(_)
            | Return { .. }
            | Arrived { .. }
    )
}

fn frames() -> Vec<Vec<u8>> {
    sample().iter().map(|message| message.encode().expect("a message within the limits")).collect()
}

fn addrs(texts: &[&str]) -> Vec<Addr> {
    let addr = |text: &&str| Addr::new(text.parse().expect("an address"), 24).expect("a host");
    texts.iter().map(addr).collect()
}

fn a_handle(texts: &[&str]) -> Vec<u8> {
    Handle::new([7; 16], 4711, &addrs(texts)).expect("a handle").encode().to_vec()
}

/// Bodies of frames, and whole frames.
pub(crate) fn messages() -> Seeds {
    let bodies = frames().into_iter().map(|frame| frame[4..].to_vec());
    named(bodies.chain(frames().into_iter().rev().take(2)))
}

pub(crate) fn handle() -> Seeds {
    let many = ["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.3", "fd00::2"];
    named([a_handle(&many[..1]), a_handle(&many), a_handle(&["fd00::1"; 5]), vec![0; 128]])
}

/// Lengths of pieces, and frames.
pub(crate) fn link() -> Seeds {
    let all = frames().concat();
    let pieces = [&[0][..], &[1, 0], &[3, 1, 4, 9], &[2, 255, 3]];
    let streams = pieces.map(|lengths| [lengths, &all].concat());
    let single = frames().into_iter().map(|frame| [&[2, 1, 2][..], &frame[..]].concat());
    let many = [&[1, 60][..], &[1, 0, 0, 0, 3].repeat(80)].concat();
    named(streams.into_iter().chain(single).chain([many]))
}

/// Frames over adapters that deliver late, in part or not at all, and peers that write anything.
pub(crate) fn mailbox() -> Seeds {
    const STEPS: u64 = 8;
    let send = |list: List, len: u16| list.item(0, STEPS, &[&[0][..], &len.to_le_bytes()].concat());
    let post = |list: List| list.item(1, STEPS, &[0]);
    let arrive = |list: List, mask: u64, again: u8| {
        list.item(3, STEPS, &[&[0, 0][..], &mask.to_le_bytes(), &[again]].concat())
    };
    let poll = |list: List| list.item(5, STEPS, &[1]);
    let sent = |len| post(send(List::default(), len));
    let whole = poll(arrive(sent(100), u64::MAX, 0));
    let torn = poll(arrive(poll(arrive(sent(100), 7, 1)), u64::MAX, 1));
    let repeated = poll(arrive(post(poll(arrive(sent(900), u64::MAX, 1)).item(2, STEPS, &[0])), u64::MAX, 1));
    let lost = post(sent(3000).item(4, STEPS, &[0, 1]).item(2, STEPS, &[0]));
    let acknowledged = poll(sent(100).item(7, STEPS, &[0, 0, 9])).item(5, STEPS, &[0]);
    let length = poll(List::default().item(7, STEPS, &[1, 33, 1]).item(7, STEPS, &[1, 37, 1]));
    let known = [whole, torn, repeated, lost, acknowledged, length].map(List::end);
    named(known.into_iter().chain(random(8, 600)))
}

pub(crate) fn handshake() -> Seeds {
    named(random(32, 120).chain([vec![0; 120]]))
}

pub(crate) fn routes() -> Seeds {
    named(random(24, 1200))
}

pub(crate) fn receiver() -> Seeds {
    let by_rails = (1..=8).map(|rails| {
        let layout = ImmLayout::new(rails).expect("up to eight rails");
        // A group of one in slot 1, whole on the last rail; a group of three by its record.
        let mut out = vec![rails - 1, 0, 1, 0, 0, 16];
        out.extend([3, 1, rails - 1]);
        out.extend(layout.encode(1, 1 << (rails - 1), layout.size(4096)).to_le_bytes());
        out.extend([8, 2, 0, 1, 1, 1, 1, 1, 1, 1, 2, 0]);
        out.extend([100, 0, 200, 0].repeat(4));
        for rail in 0..rails {
            out.extend([2, 2, rail, layout.all_rails(), 0, 0, 0]);
        }
        out
    });
    named(by_rails.chain(random(8, 200)))
}

/// Groups, single entries and sends.
pub(crate) fn fifo() -> Seeds {
    let group = |list: List, receives: u8, tag: u8| list.item(0, 4, &[receives - 1, tag, 0, 16]);
    let send = |list: List, tag: u8, len: u8| list.item(3, 4, &[tag, len, 0]);
    let whole = send(send(group(List::default(), 2, 0), 1, 64), 0, 64);
    let ones = (0..4).fold(List::default(), |list, _| send(group(list, 1, 2), 2, 255));
    let counts_change = [(2, 1), (2, 3), (3, 2), (8, 1)].map(|(before, after)| {
        let matched = send(group(List::default(), before, 0), 0, 64);
        send(group(matched, after, 1), 1, 64).end()
    });
    let too_large = group(List::default(), 1, 0).item(1, 4, &[0, 0, 0, 1, 0, 0, 1, 0]);
    let too_large = send(too_large, 0, 64);
    let damaged = send(group(List::default(), 1, 0).item(2, 4, &[54, 0, 1]), 0, 64);
    let late = send(send(List::default(), 0, 1), 0, 1);
    let known = [whole, ones, too_large, damaged, late].map(List::end);
    named(known.into_iter().chain(counts_change).chain(random(12, 300)))
}

/// A registration with each kind of agent, hints, and everything that can happen to the file.
pub(crate) fn agent() -> Seeds {
    let answer = Response::Registered { status: Status::SUCCESS, slot: 1 }.encode();
    let bytes = [&[1, answer.1 as u8][..], &answer.0[..answer.1]].concat();
    // Numbers of actions, see the target: 0 connects, 4 steps, 10 replaces the file, 11 reads it.
    let registered = [&[0, 4][..], &bytes, &[4]].concat();
    let hinted = [&registered[..], &[10 + 2 * 14, 7 + 14, 85, 1, 2, 11, 7 + 14, 0, 2, 4, 11]].concat();
    let truncated = [&hinted[..], &[9, 100, 0, 11, 10 + 2 * 14, 11, 10, 11, 10 + 14, 11]].concat();
    let torn = [&hinted[..], &[7 + 14, 9, 0, 3, 11, 6, 0, 8, 11, 8, 0, 0, 2, 9, 9, 11]].concat();
    let memory =
        [&[0, 4, 12 + 14, 0, 1, 3 + 14, 4, 12 + 14, 85, 1, 12 + 14, 0, 4][..], &[2 + 14, 0, 0, 4]].concat();
    let bad_memory = [0, 4, 3, 0, 0, 0, 4, 0, 4, 3 + 8 * 14, 1, 9, 1, 4];
    let again = [&hinted[..], &[13, 4], &bytes, &[4, 11]].concat();
    let known = [registered, hinted, truncated, torn, memory, bad_memory.into(), again];
    named(known.into_iter().chain(random(8, 400)))
}

/// Changes of words before and during a reading.
pub(crate) fn stats() -> Seeds {
    let change = |list: List, place: u64, at: &[u8], value: u64| {
        list.item(place, 4, &[at, &value.to_le_bytes()[..]].concat())
    };
    let none = || List::default().end();
    let seed = |before: List, during: List| [before.end(), during.end()].concat();
    let header = (0..12).map(|word| seed(change(List::default(), 0, &[word], 7), List::default()));
    let entry = |word, value| change(List::default(), 2, &[1, word], value);
    let entries = [(0, 2), (1, u64::MAX), (1, 0x0909_0909_0000_0002), (8, u64::MAX), (37, u64::MAX)];
    let entries = entries.map(|(word, value)| [entry(word, value).end(), entry(0, 3).end()].concat());
    let ports = [0, 1, 8, 9, 20].map(|word| {
        seed(change(List::default(), 1, &[0, word], u64::MAX), change(List::default(), 1, &[1, word], 1))
    });
    let revision = change(List::default(), 0, &[11], u64::MAX);
    let last = [[none(), none()].concat(), seed(revision, List::default())];
    named(header.chain(entries).chain(ports).chain(last))
}

/// Calls that NCCL makes, and others.
pub(crate) fn calls() -> Seeds {
    const CALLS: u64 = 15;
    let right = |n: u8| [&variant(0, 6)[..], &[n]].concat();
    let plain = |n: u64| variant(n, 6).to_vec();
    let register =
        |list: List, comm: u8| list.item(4, CALLS, &[&right(comm)[..], &[0, 0, 0, 16, 0]].concat());
    let connected = || register(register(List::default().item(0, CALLS, &[0]), 0), 1);
    // The send's registration is the first.
    let receive = [&right(0)[..], &right(1), &[1, 0, 8, 0, 1, 3]].concat();
    let send = [&right(0)[..], &right(0), &[0, 0, 0, 1, 3]].concat();
    let moved = (0..6).fold(connected().item(7, CALLS, &receive).item(6, CALLS, &send), |list, n| {
        list.item(9, CALLS, &right(n % 2))
    });
    let listening = List::default().item(1, CALLS, &[&right(0)[..], &[0]].concat());
    let lied = (0..3).fold(listening, |list, _| {
        list.item(2, CALLS, &[&right(0)[..], &[0, 9, 1]].concat()).item(3, CALLS, &right(0))
    });
    let wrong = [2, 3, 4, 5].map(|how| {
        let handle = plain(how);
        let handle = if how == 2 { [&handle[..], &[0]].concat() } else { handle };
        let mut list = connected().item(10, CALLS, &right(0));
        for call in [3, 9, 10, 11, 12, 14] {
            list = list.item(call, CALLS, &handle);
        }
        list.item(5, CALLS, &[&handle[..], &handle].concat()).end()
    });
    let swapped = connected().item(11, CALLS, &[&variant(1, 6)[..], &variant(2, 6), &[0]].concat()).end();
    // What ended with its comm, and the comm itself: each is in the list of closed handles.
    let closed = |n: u8| [&variant(2, 6)[..], &[n]].concat();
    let receiver = connected().item(7, CALLS, &receive).item(11, CALLS, &right(0));
    let ended = (0..3).fold(receiver, |list, n| {
        list.item(9, CALLS, &closed(n))
            .item(8, CALLS, &[&closed(n)[..], &right(0), &[0, 0, 0, 1]].concat())
            .item(6, CALLS, &[&right(0)[..], &closed(n), &[0, 0, 0, 1, 3]].concat())
    });
    let inputs = [moved.end(), lied.end(), swapped].into_iter().chain(wrong).chain(random(12, 400));
    named(inputs.chain([ended.end()]))
}

/// Environments: defaults, values that are close to valid ones, and what is not text.
pub(crate) fn config() -> Seeds {
    let line = |(name, value, _): (&str, String, bool)| format!("{name}={value}");
    let defaults: Vec<String> = Config::default().all().into_iter().map(line).collect();
    let names: Vec<&str> = Config::default().all().into_iter().map(|(name, _, _)| name).collect();
    let with = |value: &str| names.iter().map(|name| format!("{name}={value}")).collect::<Vec<_>>();
    let lists = "MPIB_HCA_SOUT=mlx5_0:1\nMPIB_HCA_SUP=mlx5_1\nNCCL_IB_HCA==mlx5_0:1:0:1,^mlx5_2\nMPIB_OOB_IF=eth0,eth1\n\
                 NCCL_IB_GID_INDEX=mlx5_0:3,mlx5_1:1:5\nMPIB_RAIL_SPEED=mlx5_0=400000,mlx5_1:2=100000\n\
                 NCCL_IB_ADDR_RANGE=10.0.0.0/8\nMPIB_SPLIT=measured\nMPIB_ROUTE=subnet";
    let texts = [defaults, with("0"), with("1"), with("-2"), with("99999999999"), with("^=mlx5_0:1,x")];
    let texts = texts.map(|lines| lines.join("\n").into_bytes());
    let odd =
        b"MPIB_MODE=\xff\xfe\nMPIB_AGENT_SOCKET=/\nMPIB_HINTS=relative\nMPIB_STRICT=1\nNCCL_IB_TIMEOUT=40"
            .to_vec();
    named(texts.into_iter().chain([lists.into(), odd, b"XDG_RUNTIME_DIR=/run/user/0".to_vec()]))
}

pub(crate) fn episodes() -> Seeds {
    named(random(16, 1201))
}

/// Connections in the memory file and in the hint file, the limits, and what is no request.
pub(crate) fn registrations() -> Seeds {
    const STEPS: u64 = 4;
    let connect = |list: List, process: u8| list.item(0, STEPS, &[process]);
    let register = |list: List, process: u8, fields: [u8; 2], in_memory: u8| {
        list.item(1, STEPS, &[&[process][..], &variant(0, 3), &fields, &[in_memory]].concat())
    };
    let deregister = |list: List, process: u8, conn: u8| {
        list.item(1, STEPS, &[&[process][..], &variant(1, 3), &[conn, 0]].concat())
    };
    let attach = |list: List| list.item(1, STEPS, &[&[0][..], &variant(2, 3), &[1]].concat());
    let bytes = |list: List, bytes: [u8; 9]| list.item(2, STEPS, &[&[0][..], &bytes, &[9]].concat());
    let close = |list: List, process: u8| list.item(3, STEPS, &[process]);
    let three = || (0..3).fold(List::default(), connect);
    let mixed = register(register(register(three(), 0, [1, 1], 1), 1, [1, 1], 0), 2, [1, 1], 0);
    let shared = register(register(register(three(), 0, [1, 1], 1), 0, [2, 1], 1), 0, [1, 2], 1);
    let many = (0..8).fold(three(), |list, n| register(list, 0, [n, n], n % 2));
    // A header in two pieces, and one that is none.
    let whole = bytes(three(), [0x52, 0x49, 0x50, 0x4d, 8, 0, 3, 0, 0x52]);
    let known = [
        close(deregister(mixed, 0, 1), 1),
        deregister(deregister(shared, 0, 1), 0, 2),
        many,
        attach(register(attach(three()), 0, [1, 1], 1)),
        bytes(whole, [0x49, 0x50, 0x4d, 8, 0, 3, 0, 1, 1]),
    ];
    named(known.map(List::end).into_iter().chain(random(12, 400)))
}

/// Holders of a handle who prove themselves or do not, copies of HELLOs, re-dials by a peer and by
/// those who do not know its key, and answers to a process that dials again.
pub(crate) fn strangers() -> Seeds {
    const STEPS: u64 = 11;
    let dial = |list: List, socket: u8, again: u8| list.item(0, STEPS, &[socket, again]);
    let hello = |list: List, socket: u8, token: u8| list.item(2, STEPS, &[socket, token, 0]);
    let changed = |list: List, socket: u8, at: u8| list.item(2, STEPS, &[socket, 0, 1, at, 1]);
    let redial = |list: List, socket: u8, token: u8, from: u8, knows: u8| {
        list.item(3, STEPS, &[socket, token, from, knows, 0])
    };
    let say = |list: List, socket: u8, what: u64| {
        list.item(4, STEPS, &[&[socket][..], &variant(what, 8), &[1]].concat())
    };
    let connect = |list: List| list.item(6, STEPS, &[]);
    let answer = |list: List, how: u64| list.item(7, STEPS, &[&[0][..], &variant(how, 4)].concat());
    let accept = |list: List| list.item(8, STEPS, &[]);
    let own = |list: List, what: u64| list.item(9, STEPS, &[&[0][..], &variant(what, 5)].concat());
    let exchange = |list: List| list.item(10, STEPS, &[]);
    // Numbers of What: 0 PROOF, 1 READY, 2 BYE, 4 RESUME, 5 CALLBACK. Of Use: 2 ends the handshake.
    let proved = |list: List| say(hello(dial(list, 0, 0), 0, 0), 0, 0);
    let begun = || accept(say(proved(List::default()), 0, 5));
    let established = || own(exchange(begun()), 2);
    let reset = |list: List| list.item(5, STEPS, &[0, 0]);
    let broken = || reset(established());
    let to_stranger = || own(own(say(answer(connect(List::default()), 0), 0, 5), 0), 2);
    let again = |list: List, from: u8, knows: u8| say(redial(dial(list, 1, 1), 1, 0, from, knows), 1, 4);
    let second = |list: List| say(hello(dial(list, 1, 0), 1, 0), 1, 0);
    let known = [
        accept(proved(List::default())),
        accept(say(second(hello(dial(List::default(), 0, 0), 0, 0)), 0, 0)),
        accept(second(proved(List::default()))),
        changed(dial(changed(dial(List::default(), 0, 0), 0, 20), 1, 0), 1, 60),
        accept(hello(dial(List::default(), 0, 0), 0, 3)),
        exchange(again(established(), 0, 1)),
        exchange(again(broken(), 0, 1)),
        again(again(established(), 1, 1), 0, 0),
        redial(dial(redial(dial(established(), 1, 1), 1, 3, 0, 0), 2, 1), 2, 1, 0, 1),
        own(say(own(say(established(), 0, 1), 0), 0, 2), 0),
        again(begun(), 0, 1),
        answer(broken(), 0),
        answer(broken(), 1),
        answer(broken(), 2),
        answer(connect(List::default()), 1),
        say(redial(dial(to_stranger(), 1, 1), 1, 4, 1, 1), 1, 4),
        say(answer(reset(to_stranger()), 0), 0, 1),
    ];
    named(known.map(List::end).into_iter().chain(random(12, 300)))
}

/// Puts by each way with their signals, gets and answers, wrong numbers, and other links.
pub(crate) fn commands() -> Seeds {
    // The byte behind the words, no other length, and all data.
    let right = [255, 1, 0, 0];
    let say = |list: List, n: u64, fields: &[u8]| list.item(n, 6, &[fields, &right].concat());
    let put = |list: List, window: u8, size: u16, way: u8, signal: &[u8]| {
        let [low, high] = size.to_le_bytes();
        say(list, 0, &[&[window, 64, 0, low, high, way, 0, 4][..], signal].concat())
    };
    // In the window with this number, at 512, adds 3.
    let signal = |window: u8| [1, window, 0, 2, 3];
    let ways = [(0, 100, 0), (1, 100, 0), (0, 100, 2), (1, 100, 2), (0, 3000, 3), (1, 3000, 3), (0, 50, 3)];
    let each = ways.map(|(window, size, way)| {
        put(put(List::default(), window, size, way, &signal(1 - window)), window, 0, 0, &signal(window)).end()
    });
    let all = ways
        .iter()
        .fold(List::default(), |list, (window, size, way)| put(list, *window, *size, *way, &signal(0)));
    let answers = (0..3).fold(List::default(), |list, id| say(list, 2, &[id, 0, 0, 2, 0, 4]));
    let twice = say(say(List::default(), 2, &[0, 0, 0, 0, 0, 4]), 2, &[0, 0, 0, 0, 0, 4]);
    let gets = say(say(List::default(), 1, &[7, 0, 0, 0, 100, 0]), 1, &[8, 1, 0, 16, 0, 8]);
    let outside = put(List::default(), 0, 8200, 3, &signal(0));
    let far = say(List::default(), 0, &[0, 255, 255, 100, 0, 0, 0, 4, 0]);
    let unknown = put(put(List::default(), 0, 64, 0, &signal(1)), 250, 64, 0, &[0]);
    let ended = put(put(List::default(), 240, 64, 2, &signal(240)), 0, 64, 2, &signal(0));
    let ended_large = put(List::default(), 240, 3000, 3, &[0]);
    let unaligned = put(List::default(), 0, 64, 0, &[1, 0, 33, 0, 3]);
    let over = say(put(List::default(), 0, 64, 0, &signal(1)), 4, &[]);
    let again = say(List::default(), 3, &[]);
    let links = [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]];
    let links =
        links.iter().fold(List::default(), |list, link| put(say(list, 5, link), 0, 64, 0, &signal(0)));
    let short = List::default().item(0, 6, &[0, 64, 0, 100, 0, 0, 0, 4, 0, 255, 1, 129, 0]);
    let missing = List::default().item(0, 6, &[0, 64, 0, 184, 11, 3, 0, 4, 0, 255, 1, 0, 250]);
    let less = List::default().item(0, 6, &[1, 64, 0, 184, 11, 3, 0, 4, 0, 255, 1, 0, 230]);
    let less_next = List::default().item(0, 6, &[1, 64, 0, 100, 0, 2, 0, 4, 0, 255, 1, 0, 230]);
    let damaged = List::default().item(0, 6, &[0, 64, 0, 100, 0, 0, 0, 4, 0, 2, 9, 0, 0]);
    let known = [
        all,
        answers,
        twice,
        gets,
        outside,
        far,
        unknown,
        ended,
        ended_large,
        unaligned,
        over,
        again,
        links,
        short,
        missing,
        less,
        less_next,
        damaged,
    ];
    named(each.into_iter().chain(known.map(List::end)).chain(random(6, 200)))
}
