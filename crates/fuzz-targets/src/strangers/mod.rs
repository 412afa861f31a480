//! Strangers at the sockets of a process. Some have read a handle, as every rank of a job may; some
//! are peers that break the protocol.

mod honest;
mod stranger;

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use arbitrary::Arbitrary;
use mpib_proto::{Addr, Callback, HEADER_BYTES, Handle, Message, Nonce, Redial, Role};
use mpib_tests::holdings::descriptors;
use mpib_tests::pair::LIMIT;
use mpib_tests::raw::{frame_of, hello, hello_frame};
use nccl_net_mpib::simulation::config::Config;
use nccl_net_mpib::simulation::control::{Channel, Failover, Listener, Options, Tolerance};
use nccl_net_mpib::simulation::process::Process;

use crate::steps;
use honest::{Honest, newcomer};
use stranger::{NOTICED, PATIENCE, Stranger};

/// Most steps of one run.
const MAX_STEPS: usize = 48;
/// Sockets of strangers at one time.
const SOCKETS: usize = 4;
/// Most channels that the owner of the listener has accepted at one time.
const MAX_CHANNELS: usize = 8;
/// More descriptors than a process ever has open: those of half-open connections, and of closed ones
/// that wait until their peer has read the end.
const MAX_DESCRIPTORS: usize = 512;
/// The tokens of the strangers' HELLOs.
const TOKENS: [Nonce; 3] = [[1; 16], [2; 16], [3; 16]];
/// The secret of a handle that a stranger has published.
const SECRET: Nonce = [7; 16];

/// A step of a run.
#[derive(Debug, Clone, Arbitrary)]
enum Step {
    /// A stranger connects to the listener, or to the one for re-dials.
    Dial { socket: u8, again: bool },
    /// It sends any bytes.
    Bytes { socket: u8, bytes: [u8; 7], len: u8 },
    /// It sends a HELLO, whole or with one byte changed.
    Hello { socket: u8, token: u8, change: Option<(u8, u8)> },
    /// It sends a REDIAL.
    Redial { socket: u8, token: u8, from_acceptor: bool, knows_key: bool, change: Option<(u8, u8)> },
    /// It goes on after WELCOME, with a right tag or without one.
    Say { socket: u8, what: What, is_sealed: bool },
    /// It closes its connection in order, or resets it.
    Close { socket: u8, in_order: bool },
    /// The process connects to a stranger that has published a handle.
    Connect,
    /// A stranger answers the process that connects to it, or dials it again.
    Answer { socket: u8, how: How },
    /// The owner of the listener accepts.
    Accept,
    /// The owner of an accepted channel uses it.
    Own { channel: u8, what: Use },
    /// The ends of the honest connection exchange a message.
    Exchange,
}

/// What a stranger says after WELCOME.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum What {
    Proof,
    Ready,
    Bye,
    Refuse,
    Resume,
    /// Where it can be dialled again.
    Callback,
    Hello,
    Any([u8; 6]),
}

/// How a stranger answers a HELLO or a REDIAL.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum How {
    Welcome,
    /// Without knowing the secret or the key.
    FalseWelcome,
    FalseEnd,
    Any([u8; 8]),
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Use {
    Read,
    Write,
    EndHandshake,
    Close,
    Drop,
}

struct World {
    listener: Listener,
    honest: Honest,
    strangers: [Option<Stranger>; SOCKETS],
    /// Where strangers are reached.
    home: TcpListener,
    /// The token of the last HELLO that a stranger has got.
    theirs: Nonce,
    /// The keys of connections that can be dialled again, by their HELLO's token.
    keys: HashMap<Nonce, Nonce>,
    /// The tokens of all HELLOs that were sent whole, and whether their sender has proved itself.
    claimed: HashMap<Nonce, bool>,
    /// Those that the listener has accepted, and those to strangers.
    channels: Vec<Channel>,
}

/// Runs the steps that the bytes stand for. Nobody gets a channel without a claim, and nobody counts
/// as proved without a proof. Afterwards the honest connection works, a new peer gets in, and no more
/// descriptors are open than a process may have for strangers.
pub fn strangers(data: &[u8]) {
    let Some(steps) = steps::<Step>(data, MAX_STEPS).filter(|steps| !steps.is_empty()) else { return };
    let mut world = World::new();
    steps.into_iter().for_each(|step| world.make(step));
    let open = descriptors();
    assert!(open < MAX_DESCRIPTORS, "{open} descriptors are open");
    world.end();
}

/// The settings of all connections. No time is over in a run.
fn tolerance() -> Tolerance {
    let failover = Some(Failover { wait: LIMIT, interfaces: None, family: None });
    Tolerance { silence: 10 * LIMIT, failover }
}

/// Returns a frame, with one byte changed.
fn changed(mut frame: Vec<u8>, change: Option<(u8, u8)>) -> Vec<u8> {
    if let Some((at, bits)) = change {
        let at = usize::from(at) % frame.len();
        frame[at] ^= bits;
    }
    frame
}

impl World {
    fn new() -> Self {
        let Tolerance { silence, failover } = tolerance();
        let options = Options { failover, silence, ..Options::from(&Config::default()) };
        let listener = Listener::open(&Process::global().control, &options).expect("a listener");
        let honest = Honest::new(&listener);
        let home = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        home.set_nonblocking(true).expect("a socket");
        let (strangers, theirs, channels) = (Default::default(), Nonce::default(), Vec::new());
        let (keys, claimed) = (HashMap::new(), HashMap::new());
        Self { listener, honest, strangers, home, theirs, keys, claimed, channels }
    }

    fn make(&mut self, step: Step) {
        match step {
            Step::Dial { socket, again } => {
                let port = if again { self.honest.callback.port } else { self.listener.handle().port() };
                *self.socket(socket) = Some(Stranger::dial(port));
            }
            Step::Bytes { socket, bytes, len } => {
                if let Some(stranger) = self.socket(socket) {
                    stranger.send(&bytes[..usize::from(len) % (bytes.len() + 1)]);
                }
            }
            Step::Hello { socket, token, change } => self.say_hello(socket, token, change),
            Step::Redial { socket, token, from_acceptor, knows_key, change } => {
                let from = if from_acceptor { Role::Acceptor } else { Role::Connector };
                self.redial(socket, (token, from), knows_key, change);
            }
            Step::Say { socket, what, is_sealed } => self.say(socket, what, is_sealed),
            Step::Close { socket, in_order } => {
                if let Some(stranger) = self.socket(socket).take() {
                    stranger.close(in_order);
                }
            }
            Step::Connect => self.connect(),
            Step::Answer { socket, how } => self.answer(socket, how),
            Step::Accept => self.accept(),
            Step::Own { channel, what } => self.own(channel, what),
            Step::Exchange => self.honest.exchange(),
        }
        // Serves what has come.
        (0..3).for_each(|_| self.honest.drive());
    }

    fn socket(&mut self, n: u8) -> &mut Option<Stranger> {
        &mut self.strangers[usize::from(n) % SOCKETS]
    }

    /// Returns the token of a HELLO: a stranger's, that of the honest connection, or that of one to a
    /// stranger.
    fn token(&self, n: u8) -> Nonce {
        let tokens = [&TOKENS[..], &[self.honest.token, self.theirs]].concat();
        tokens[usize::from(n) % tokens.len()]
    }

    fn say_hello(&mut self, socket: u8, token: u8, change: Option<(u8, u8)>) {
        let token = self.token(token);
        let secret = self.listener.handle().secret().clone();
        let frame = hello_frame(&secret, token, hello("stranger"));
        self.claimed.entry(token).or_default();
        if let Some(stranger) = self.socket(socket) {
            stranger.begin(changed(frame, change), (token, Role::Connector), &secret);
        }
    }

    fn redial(&mut self, socket: u8, (token, from): (u8, Role), knows_key: bool, change: Option<(u8, u8)>) {
        let token = self.token(token);
        let known = self.keys.get(&token).filter(|_| knows_key);
        let key = known.copied().unwrap_or([9; 16]).into();
        let redial = Redial::new(&key, self.honest.callback.id, token, from, [4; 16]);
        let frame = encoded(&Message::Redial(redial));
        if let Some(stranger) = self.socket(socket) {
            stranger.begin(changed(frame, change), (token, from), &key);
        }
    }

    fn say(&mut self, socket: u8, what: What, is_sealed: bool) {
        let callback = self.callback();
        let Self { strangers, honest, keys, claimed, .. } = self;
        let Some(stranger) = &mut strangers[usize::from(socket) % SOCKETS] else { return };
        stranger.read_welcome(|| honest.drive());
        let frame = match what {
            What::Any(bytes) => frame_of(&bytes),
            What::Proof => encoded(&Message::Proof),
            What::Ready => encoded(&Message::Ready),
            What::Bye => encoded(&Message::Bye),
            What::Refuse => encoded(&Message::Refuse { reason: "no\u{7}".into() }),
            What::Resume => encoded(&Message::Resume),
            What::Callback => encoded(&callback),
            What::Hello => encoded(&Message::Hello(hello("stranger"))),
        };
        if let Some((token, resume)) = stranger.session().filter(|_| is_sealed) {
            // Any first frame with the right tag is a proof of the secret.
            claimed.entry(token).and_modify(|proved| *proved = true);
            keys.entry(token).or_insert(resume);
        }
        stranger.say(frame, is_sealed);
    }

    /// Returns the port and the address at which strangers are reached.
    fn home(&self) -> (u16, Vec<Addr>) {
        let port = self.home.local_addr().expect("a port").port();
        (port, vec![Addr::new(Ipv4Addr::LOCALHOST.into(), 8).expect("a host")])
    }

    fn callback(&self) -> Message {
        let (port, addrs) = self.home();
        Message::Callback(Callback { id: [9; 8], port, addrs, ended: [8; 16] })
    }

    fn connect(&mut self) {
        if self.channels.len() == MAX_CHANNELS {
            return;
        }
        let (port, addrs) = self.home();
        let handle = Handle::new(SECRET, port, &addrs).expect("a handle");
        let control = &Process::global().control;
        let channel = Channel::connect(control, &handle, (&hello("connector"), None), LIMIT, tolerance());
        self.channels.push(channel.expect("a connector"));
    }

    fn answer(&mut self, socket: u8, how: How) {
        let Some(stream) = self.dialled() else { return };
        let mut stranger = Stranger::at(stream);
        match how {
            How::Welcome | How::FalseWelcome => self.welcome(&mut stranger, matches!(how, How::Welcome)),
            How::FalseEnd => stranger.send(&encoded(&Message::Ended { proof: [7; 16] })),
            How::Any(bytes) => stranger.send(&bytes),
        }
        *self.socket(socket) = Some(stranger);
    }

    fn welcome(&mut self, stranger: &mut Stranger, knows: bool) {
        let Some(frame) = stranger.read_frame(|| self.honest.drive()) else { return };
        let (secret, token, role) = match Message::decode(&frame[HEADER_BYTES..]) {
            Ok(Message::Hello(hello)) => {
                self.theirs = hello.claim.token;
                (SECRET, self.theirs, Role::Acceptor)
            }
            Ok(Message::Redial(redial)) => {
                let key = self.keys.get(&redial.token).copied().unwrap_or([9; 16]);
                (key, redial.token, redial.from.other())
            }
            other => panic!("the process begins with {other:?}"),
        };
        let secret = if knows { secret } else { [9; 16] };
        stranger.welcome(&frame, (token, role), &secret.into());
    }

    /// Returns the connection of the process to a stranger, if it has reason to make one.
    fn dialled(&self) -> Option<TcpStream> {
        let start = Instant::now();
        loop {
            let waited = start.elapsed();
            let is_due = self.channels.iter().any(|channel| channel.broken().is_some());
            match self.home.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(_) if waited > PATIENCE || !is_due && waited > NOTICED => return None,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn accept(&mut self) {
        let Ok(Some(channel)) = self.listener.try_accept() else { return };
        self.check(&channel);
        if self.channels.len() < MAX_CHANNELS {
            self.channels.push(channel);
        }
    }

    /// Checks whom the listener lets in.
    fn check(&self, channel: &Channel) {
        let is_proved = channel.is_proved();
        let Ok(Some(Message::Hello(hello))) = channel.try_recv() else { panic!("a channel without a HELLO") };
        let proved = self.claimed.get(&hello.claim.token);
        assert!(proved.is_some(), "a channel for a HELLO that nobody has sent");
        assert!(!is_proved || proved == Some(&true), "a stranger without a proof counts as proved");
    }

    fn own(&mut self, channel: u8, what: Use) {
        let Some(at) = usize::from(channel).checked_rem(self.channels.len()) else { return };
        let owned = &self.channels[at];
        // An error is the end of the stranger's own connection.
        match what {
            Use::Read => drop(owned.try_recv()),
            Use::Write => drop(owned.send(&Message::Ready)),
            Use::EndHandshake => drop(owned.end_handshake()),
            Use::Close => self.channels.swap_remove(at).close(),
            Use::Drop => drop(self.channels.swap_remove(at)),
        }
    }

    fn end(self) {
        self.honest.exchange();
        newcomer(&self.listener);
        self.honest.close();
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    message.encode().expect("a message within the limits")
}
