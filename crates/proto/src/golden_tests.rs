//! The bytes of every message, for this version of the protocol. A change of them is a change of
//! the wire: it needs a new [`PROTOCOL_VERSION`], and new bytes here.

use super::frame::tests::hello;
use super::*;

/// The version whose bytes `golden.in` holds.
const GOLDEN_VERSION: u16 = 10;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// One of each message, with a value in each field.
fn messages() -> Vec<Message> {
    let qps = vec![QpWiring { qpn: 0x01_0203, psn: 0x04_0506 }];
    let ece = Some(Ece { vendor_id: 1, options: 2, comp_mask: 3 });
    let route = RouteWiring { local_rail: 1, remote_rail: 2, qps, service_level: 3, traffic_class: 4, ece };
    let memory = Memory { addr: 0x1122_3344_5566_7788, len: 45_056, rkeys: vec![0xa1b2_c3d4] };
    let attempt = Attempt { number: 5, epoch: 6 };
    let port = hello().rails[0].clone();
    let wiring = Wiring { routes: vec![route], memory };
    let rails = NewRails { attempt, rails: 0b10, offer: Offer { port, wiring: wiring.clone() } };
    let seq = Sequence::from_number;
    let open = vec![OpenGroup { seq: seq(7), mask: 0b11, lost: 0b01, size: Some(4096) }];
    let addr = |ip: &str, prefix| Addr::new(ip.parse().unwrap(), prefix).unwrap();
    let addrs = vec![addr("10.1.2.3", 24), addr("fd00::1", 64)];
    vec![
        Message::Hello(hello()),
        Message::Welcome { challenge: [1; 16], proof: [2; 16] },
        Message::Wiring(wiring),
        Message::Ready,
        Message::Probed { mask: 0b01, reasons: vec![(1, "no".into())], accepts: true },
        Message::Search(Search {
            qps: vec![Some(QpWiring { qpn: 5, psn: 6 }), None],
            reasons: vec![(1, "no".into())],
            service_level: 3,
            traffic_class: 106,
        }),
        Message::Found(Found { answers: 1, open: 2, reasons: vec![(0, "no".into())] }),
        Message::Refuse { reason: "why".into() },
        Message::Bye,
        Message::Callback(Callback { id: [1; 8], port: 0x1234, addrs, ended: [2; 16] }),
        Message::Redial(Redial {
            id: [1; 8],
            token: [2; 16],
            from: Role::Acceptor,
            challenge: [3; 16],
            tag: [4; 16],
        }),
        Message::Resume,
        Message::Proof,
        Message::Ended { proof: [1; 16] },
        Message::Down { epoch: 1, rails: 2 },
        Message::State(SenderState { epoch: 1, dead: 2, next: seq(8), open }),
        Message::Verdict(Verdict { epoch: 1, again: vec![(seq(7), 0b01)] }),
        Message::Rebuild(rails.clone()),
        Message::Rebuilt(rails),
        Message::RebuildFailed(RebuildFailed { attempt, reason: "why".into() }),
        Message::Proved(attempt),
        Message::Up(Up { attempt, entries: vec![(seq(7), 0x0102_0304)] }),
        Message::Return { rails: 3 },
        Message::Arrived { next: seq(9) },
        Message::Numbered(Numbered {
            number: 5,
            received: 4,
            message: Box::new(Message::Return { rails: 3 }),
        }),
    ]
}

//= protocol.md: versions: a change of the bytes of a message is a new version
#[test]
fn each_message_has_these_bytes() {
    assert_eq!(PROTOCOL_VERSION, GOLDEN_VERSION, "a new version needs new bytes in golden.in");
    let golden: &[(&str, &str)] = include!("golden.in");
    let addrs = [Addr::new("10.1.2.3".parse().unwrap(), 24).unwrap()];
    let host = HostId { boot: 5, network: 6 };
    let handle = Handle::new([7; 16], 0x1234, &addrs).unwrap().on(host);
    let handle = handle.by(hello().claim.release).encode();
    let mut found = vec![("handle", hex(&handle[..STATE_OFFSET]))];
    found.extend(messages().iter().map(|m| (m.name(), hex(&m.encode().unwrap()))));
    for (i, (name, bytes)) in found.iter().enumerate() {
        let expected = golden.get(i).copied().unwrap_or_default();
        let text = "the bytes of a message changed: PROTOCOL_VERSION must, too";
        assert_eq!((*name, bytes.as_str()), expected, "{text}");
    }
    assert_eq!(found.len(), golden.len());
}

/// No message is missing above: each type byte that decodes has its golden bytes.
#[test]
fn each_type_of_message_has_golden_bytes() {
    let types: Vec<u8> = messages().iter().map(|m| m.encode().unwrap()[HEADER_BYTES]).collect();
    for kind in 0..=u8::MAX {
        let known = Message::decode(&[kind]) != Err(DecodeError::Type(kind));
        assert_eq!(known, types.contains(&kind), "type {kind}");
    }
}
