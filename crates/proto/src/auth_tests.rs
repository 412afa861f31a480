//! Proofs and tags: known values, and what must not pass.

use super::*;
use crate::Message;

fn secret() -> Secret {
    Secret::from([7; 16])
}

fn derived(secret: &Secret, first: &[u8], challenge: Nonce) -> Session {
    Transcript::new(secret, first).session(&challenge)
}

fn early_key(first: &[u8]) -> FrameKey {
    Transcript::new(&secret(), first).early_key()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The values that another implementation must find. A change of one is a change of the protocol.
#[test]
fn the_derivations_have_these_values() {
    let claim = Claim::new(&secret(), [9; 16]);
    let session = derived(&secret(), b"first frame", [3; 16]);
    let mut frames = [session.keys.connector.clone(), session.keys.acceptor.clone()].map(|mut key| {
        let mut frame = Message::Ready.encode().unwrap();
        key.seal(&mut frame);
        hex(&frame)
    });
    frames.sort();
    let mut early = Message::Ready.encode().unwrap();
    early_key(b"first frame").seal(&mut early);
    let ended = ended_proof(&secret(), &[9; 16], Role::Acceptor);
    let found = [
        ("id", hex(&claim.id)),
        ("tag of HELLO", hex(&claim.tag)),
        ("proof", hex(&session.proof)),
        ("resume", hex(&session.resume)),
        ("first frame", frames[0].clone()),
        ("first frame", frames[1].clone()),
        ("early frame", hex(&early)),
        ("tag of REDIAL", hex(&redial_tag(&secret(), b"fields"))),
        ("proof of the end", hex(&ended)),
        ("its hash", hex(&ended_commitment(&ended))),
    ];
    let expected: [(&str, &str); 10] = include!("golden_auth.in");
    for ((name, found), expected) in found.into_iter().zip(expected) {
        assert_eq!((name, found.as_str()), expected, "PROTOCOL_VERSION must change with this");
    }
}

#[test]
fn only_the_right_claim_is_right() {
    let claim = Claim::new(&secret(), [9; 16]);
    let id = *secret().id();
    assert!(claim.is_for(&secret(), PROTOCOL_VERSION));
    assert!(!claim.is_for(&secret(), PROTOCOL_VERSION + 1), "the tag covers the version");
    let others = [
        Claim { id: [0; 8], ..claim },
        Claim { token: [8; 16], ..claim },
        Claim { tag: [0; 16], ..claim },
        // The id is public.
        Claim { id, ..Claim::new(&[6; 16].into(), [9; 16]) },
        Claim::new(&[6; 16].into(), [9; 16]),
    ];
    for other in others {
        assert!(!other.is_for(&secret(), PROTOCOL_VERSION), "{other:?}");
    }
}

/// Each input goes into all keys of a session.
#[test]
fn a_session_belongs_to_one_secret_one_hello_and_one_challenge() {
    let session = derived(&secret(), b"hello", [3; 16]);
    let others = [
        derived(&[6; 16].into(), b"hello", [3; 16]),
        derived(&secret(), b"hellp", [3; 16]),
        derived(&secret(), b"hello", [4; 16]),
    ];
    let mut sealed = Message::Ready.encode().unwrap();
    session.keys_of(Role::Connector, None).seal(&mut sealed);
    let body = &sealed[HEADER_BYTES..];
    assert_eq!(session.keys_of(Role::Acceptor, None).open(body), Some(&[4][..]));
    for other in others {
        assert_ne!(other.proof, session.proof);
        assert_ne!(other.resume, session.resume);
        assert_eq!(other.keys_of(Role::Acceptor, None).open(body), None);
    }
    // The other direction has other keys.
    assert_eq!(session.keys_of(Role::Connector, None).open(body), None);
}

#[test]
fn frames_are_in_order_and_short_ones_are_refused() {
    let session = derived(&secret(), b"hello", [3; 16]);
    let (mut ours, mut theirs) =
        (session.keys_of(Role::Connector, None), session.keys_of(Role::Acceptor, None));
    let mut frame = || {
        let mut frame = Message::Ready.encode().unwrap();
        ours.seal(&mut frame);
        frame.split_off(HEADER_BYTES)
    };
    let (first, second) = (frame(), frame());
    assert_ne!(first, second);
    assert!(theirs.clone().open(&second).is_none(), "the second before the first");
    assert!(theirs.open(&first).is_some());
    assert!(theirs.clone().open(&first).is_none(), "the first again");
    assert!(theirs.clone().open(&second).is_some());
    for len in 0..=TAG_BYTES {
        assert!(theirs.clone().open(&second[..len]).is_none(), "{len} bytes");
    }
}

/// An acceptor reads early frames until the connector's proof, and none after it.
#[test]
fn a_proof_ends_the_early_frames() {
    let session = derived(&secret(), b"hello", [3; 16]);
    let mut early = early_key(b"hello");
    let mut acceptor = session.keys_of(Role::Acceptor, Some(early.clone()));
    let mut connector = session.keys_of(Role::Connector, None);
    let mut sealed = |message: &Message, with_early: bool| {
        let mut frame = message.encode().unwrap();
        if with_early {
            early.seal(&mut frame)
        } else {
            connector.seal(&mut frame)
        }
        frame.split_off(HEADER_BYTES)
    };
    assert!(acceptor.open(&sealed(&Message::Ready, true)).is_some());
    // A copy of the HELLO allows no proof.
    let false_proof = sealed(&Message::Proof, true);
    assert!(acceptor.clone().open(&false_proof).is_none());
    assert!(acceptor.open(&sealed(&Message::Proof, false)).is_some());
    assert!(acceptor.clone().open(&sealed(&Message::Ready, true)).is_none());
    assert!(acceptor.open(&sealed(&Message::Ready, false)).is_some());
}

#[test]
fn the_end_of_a_connection_is_known_by_its_proof() {
    let proof = ended_proof(&secret(), &[9; 16], Role::Acceptor);
    assert_eq!(ended_commitment(&proof), ended_commitment(&proof));
    for other in [
        ended_proof(&secret(), &[9; 16], Role::Connector),
        ended_proof(&secret(), &[8; 16], Role::Acceptor),
        ended_proof(&[6; 16].into(), &[9; 16], Role::Acceptor),
    ] {
        assert_ne!(ended_commitment(&other), ended_commitment(&proof));
    }
}
