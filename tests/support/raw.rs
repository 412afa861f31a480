//! An end of a control connection that this test plays on a plain socket: the handshake by hand,
//! and frames with their tags.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use mpib_proto::{
    Claim, HEADER_BYTES, Handle, Hello, Keys, Message, Nonce, Role, Secret, Session, Transcript,
};
use nccl_net_mpib::simulation::config::Config;
use nccl_net_mpib::simulation::split;

use crate::pair::LIMIT;

/// One end, after the proofs.
pub struct Raw {
    pub stream: TcpStream,
    pub keys: Keys,
    pub session: Session,
    pub token: Nonce,
    /// The frame of the HELLO.
    pub hello: Vec<u8>,
}

/// Reads a frame with its header.
pub fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    stream.read_exact(&mut frame).unwrap();
    let len = u32::from_le_bytes(frame[..].try_into().unwrap()) as usize;
    frame.resize(HEADER_BYTES + len, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
    frame
}

/// Reads a message without a tag.
pub fn read_plain(stream: &mut TcpStream) -> Message {
    Message::decode(&read_frame(stream)[HEADER_BYTES..]).unwrap()
}

/// Connects to this port of the host itself.
pub fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A HELLO without rails, of the host with this name.
pub fn hello(host: &str) -> Hello {
    Hello {
        claim: Claim::default(),
        pid: 42,
        host: host.into(),
        terms: split::terms(&Config::default(), true),
        rotation: 0,
        rails: Vec::new(),
        unusable: Vec::new(),
        others: false,
        wiring_follows: false,
    }
}

/// A frame of any bytes, without a tag.
pub fn frame_of(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// What a listener answers to a first frame: its WELCOME, and the session that follows.
pub fn welcome(first: &Transcript) -> (Vec<u8>, Session) {
    let challenge = [3; 16];
    let session = first.session(&challenge);
    let welcome = Message::Welcome { challenge, proof: session.proof };
    (welcome.encode().unwrap(), session)
}

/// The frame of a HELLO by a holder of the secret.
pub fn hello_frame(secret: &Secret, token: Nonce, hello: Hello) -> Vec<u8> {
    Message::Hello(Hello { claim: Claim::new(secret, token), ..hello }).encode().unwrap()
}

impl Raw {
    /// Connects to a listener, and proves itself.
    pub fn connect(handle: &Handle, token: Nonce, hello: Hello) -> Self {
        let frame = hello_frame(handle.secret(), token, hello);
        let mut stream = dial(handle.port());
        stream.write_all(&frame).unwrap();
        Self::after_hello(stream, handle.secret(), token, &frame)
    }

    /// Goes on after a HELLO was sent, `frame` with what else is to be hashed: nothing.
    pub fn after_hello(stream: TcpStream, secret: &Secret, token: Nonce, frame: &[u8]) -> Self {
        let mut raw = Self::unproved(stream, secret, token, frame);
        raw.send(&Message::Proof);
        raw
    }

    /// Reads the WELCOME, and sends no proof.
    pub fn unproved(mut stream: TcpStream, secret: &Secret, token: Nonce, frame: &[u8]) -> Self {
        let Message::Welcome { challenge, proof } = read_plain(&mut stream) else { panic!("no WELCOME") };
        let session = Transcript::new(secret, frame).session(&challenge);
        assert_eq!(proof, session.proof, "the proof of the listener");
        let keys = session.keys_of(Role::Connector, None);
        Self { stream, keys, session, token, hello: frame.to_vec() }
    }

    /// Plays the listener: reads a HELLO of a connector with this secret, and answers WELCOME.
    pub fn accept(mut stream: TcpStream, secret: &Secret) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let frame = read_frame(&mut stream);
        let Ok(Message::Hello(hello)) = Message::decode(&frame[HEADER_BYTES..]) else { panic!("no HELLO") };
        let transcript = Transcript::new(secret, &frame);
        let (welcome, session) = welcome(&transcript);
        stream.write_all(&welcome).unwrap();
        let keys = session.keys_of(Role::Acceptor, Some(transcript.early_key()));
        Self { stream, keys, session, token: hello.claim.token, hello: frame }
    }

    /// The frame of a message, with its tag.
    pub fn sealed(&mut self, message: &Message) -> Vec<u8> {
        self.sealed_body(&message.encode().unwrap()[HEADER_BYTES..])
    }

    /// A frame of any bytes, with its tag.
    pub fn sealed_body(&mut self, body: &[u8]) -> Vec<u8> {
        let mut frame = frame_of(body);
        self.keys.seal(&mut frame);
        frame
    }

    /// Sends a message. The peer may have closed.
    pub fn send(&mut self, message: &Message) {
        let frame = self.sealed(message);
        let _ = self.stream.write_all(&frame);
    }

    /// Reads a message with its tag.
    pub fn recv(&mut self) -> Message {
        let frame = read_frame(&mut self.stream);
        let body = self.keys.open(&frame[HEADER_BYTES..]).expect("the right tag");
        Message::decode(body).unwrap()
    }
}
