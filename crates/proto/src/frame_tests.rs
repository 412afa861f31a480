//! Messages and frames: encoding and decoding, nearly valid input, exact acceptance.

use proptest::prelude::*;

use super::*;
use crate::*;

fn text(limit: usize) -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z0-9_.é-]{1,20}", Just("x".repeat(limit))]
}

fn rail_info() -> impl Strategy<Value = RailInfo> {
    (
        (text(64), 1u8.., 1u32..=2, 1u32..=5, any::<u16>(), rail_addrs()),
        (any::<u32>(), 0u8..8, any::<[bool; 3]>()),
    )
        .prop_map(
            |(
                (name, port, link, mtu, lid, addrs),
                (speed_mbps, role, [requested, grh_required, is_down]),
            )| RailInfo {
                name,
                port,
                link_layer: LinkLayer::from_raw(link).unwrap(),
                mtu: Mtu::from_raw(mtu).unwrap(),
                lid,
                addrs,
                speed_mbps,
                role: RailRole::new(role).unwrap(),
                requested,
                grh_required,
                is_down,
            },
        )
}

fn unusable_rail() -> impl Strategy<Value = UnusableRail> {
    (text(64), 0u8..8, any::<bool>(), text(512)).prop_map(|(name, role, requested, why)| UnusableRail {
        name,
        role: RailRole::new(role).unwrap(),
        requested,
        why,
    })
}

fn rail_addrs() -> impl Strategy<Value = Vec<RailAddr>> {
    let addr = (any::<[u8; 16]>(), any::<u8>(), 0u32..=2, 0u8..=128);
    let addr = addr.prop_map(|(gid, gid_index, kind, prefix_len)| RailAddr {
        gid,
        gid_index,
        gid_kind: GidKind::from_raw(kind).unwrap(),
        prefix_len,
    });
    prop_oneof![prop::collection::vec(addr.clone(), 1..4), prop::collection::vec(addr, 15..=16)]
}

fn route() -> impl Strategy<Value = RouteWiring> {
    let qp = (0u32..1 << 24, 0u32..1 << 24).prop_map(|(qpn, psn)| QpWiring { qpn, psn });
    let qps = prop_oneof![prop::collection::vec(qp.clone(), 0..4), prop::collection::vec(qp, 126..=128)];
    let ece = prop::option::of(any::<(u32, u32, u32)>())
        .prop_map(|ece| ece.map(|(vendor_id, options, comp_mask)| Ece { vendor_id, options, comp_mask }));
    (0u8..32, 0u8..32, qps, 0u8..16, any::<u8>(), ece).prop_map(
        |(local_rail, remote_rail, qps, service_level, traffic_class, ece)| RouteWiring {
            local_rail,
            remote_rail,
            qps,
            service_level,
            traffic_class,
            ece,
        },
    )
}

fn wiring() -> impl Strategy<Value = Wiring> {
    (
        prop::collection::vec(route(), 0..=8),
        any::<u64>(),
        any::<u64>(),
        prop::collection::vec(any::<u32>(), 0..=8),
    )
        .prop_map(|(routes, addr, len, rkeys)| Wiring { routes, memory: Memory { addr, len, rkeys } })
}

fn terms() -> impl Strategy<Value = Terms> {
    let flags = any::<[bool; 5]>();
    (0usize..4, flags, 0u8..=32, 1u8..=32, 1u8..=32, 1u8..=128).prop_map(
        |(
            route,
            [fused, advanced, fixed_share, plain_split, failover],
            island_prefix_len,
            sout,
            sup,
            plain_qps,
        )| {
            Terms {
                route: RoutePolicy::ALL[route],
                fused,
                mode: if advanced { Mode::Advanced } else { Mode::Vanilla },
                fixed_share,
                island_prefix_len,
                qps: [sout, sup],
                plain_qps,
                plain_split,
                failover,
            }
        },
    )
}

fn up() -> impl Strategy<Value = Up> {
    let entry = (1u64.., any::<u32>()).prop_map(|(seq, keys)| (Sequence::from_number(seq), keys));
    (attempt(), prop::collection::vec(entry, 0..=SLOTS))
        .prop_map(|(attempt, entries)| Up { attempt, entries })
}

fn attempt() -> impl Strategy<Value = Attempt> {
    (1u32.., 1u32..).prop_map(|(number, epoch)| Attempt { number, epoch })
}

fn new_rails() -> impl Strategy<Value = NewRails> {
    let offer = (rail_info(), wiring()).prop_map(|(port, wiring)| Offer { port, wiring });
    (attempt(), 1u8.., offer).prop_map(|(attempt, rails, offer)| NewRails { attempt, rails, offer })
}

fn sequence() -> impl Strategy<Value = Sequence> + Clone {
    (1u64..).prop_map(Sequence::from_number)
}

fn sender_state() -> impl Strategy<Value = SenderState> {
    let size = prop::option::of(any::<u64>());
    let group = (sequence(), 1u8.., any::<u8>(), size).prop_map(|(seq, mask, lost, size)| OpenGroup {
        seq,
        mask,
        lost: lost & mask,
        size,
    });
    let open = prop_oneof![prop::collection::vec(group.clone(), 0..4), prop::collection::vec(group, 63..=64)];
    (1u32.., 1u8.., sequence(), open).prop_map(|(epoch, dead, next, open)| SenderState {
        epoch,
        dead,
        next,
        open,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let group = (sequence(), 1u8..);
    let again =
        prop_oneof![prop::collection::vec(group.clone(), 0..4), prop::collection::vec(group, 63..=64)];
    (1u32.., again).prop_map(|(epoch, again)| Verdict { epoch, again })
}

fn release() -> impl Strategy<Value = Release> {
    any::<([u8; 3], u8, [u8; 6])>().prop_map(|(version, stage, commit)| Release { version, stage, commit })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (
            (release(), any::<[u8; 8]>(), any::<Nonce>(), any::<Tag>()),
            any::<u32>(),
            text(255),
            terms(),
            any::<u32>(),
            prop_oneof![
                prop::collection::vec(rail_info(), 0..4),
                prop::collection::vec(rail_info(), 31..=32)
            ],
            prop_oneof![
                prop::collection::vec(unusable_rail(), 0..4),
                prop::collection::vec(unusable_rail(), 31..=32)
            ],
            (any::<bool>(), any::<bool>()),
        )
            .prop_map(
                |((release, id, token, tag), pid, host, terms, rotation, rails, unusable, flags)| {
                    let (others, wiring_follows) = flags;
                    Message::Hello(Hello {
                        claim: Claim { release, id, token, tag },
                        pid,
                        host,
                        terms,
                        rotation,
                        others,
                        wiring_follows,
                        rails,
                        unusable,
                    })
                }
            ),
        any::<(Nonce, Tag)>().prop_map(|(challenge, proof)| Message::Welcome { challenge, proof }),
        any::<Tag>().prop_map(|proof| Message::Ended { proof }),
        Just(Message::Proof),
        wiring().prop_map(Message::Wiring),
        Just(Message::Ready),
        (any::<u8>(), prop::collection::vec((0u8..8, text(1024)), 0..=8), any::<bool>())
            .prop_map(|(mask, reasons, accepts)| Message::Probed { mask, reasons, accepts }),
        search().prop_map(Message::Search),
        found().prop_map(Message::Found),
        text(1024).prop_map(|reason| Message::Refuse { reason }),
        Just(Message::Bye),
        (any::<([u8; 8], Tag)>(), 1u16.., prop::collection::vec(callback_addr(), 0..=16))
            .prop_map(|((id, ended), port, addrs)| Message::Callback(Callback { id, port, addrs, ended })),
        (any::<([u8; 8], [Nonce; 2], Tag)>(), prop::sample::select(&Role::ALL)).prop_map(
            |((id, [token, challenge], tag), from)| {
                Message::Redial(Redial { id, token, from, challenge, tag })
            }
        ),
        Just(Message::Resume),
        (1u64.., any::<u64>(), of_rails()).prop_map(|(number, received, message)| {
            Message::Numbered(Numbered { number, received, message: Box::new(message) })
        }),
        of_rails(),
    ]
}

fn search_reasons() -> impl Strategy<Value = Vec<(u8, String)>> {
    prop::collection::vec((0u8..64, text(255)), 0..=64)
}

fn search() -> impl Strategy<Value = Search> {
    let qp = (0u32..1 << 24, 0u32..1 << 24).prop_map(|(qpn, psn)| QpWiring { qpn, psn });
    (prop::collection::vec(prop::option::of(qp), 0..=64), search_reasons(), 0u8..16, any::<u8>()).prop_map(
        |(qps, reasons, service_level, traffic_class)| Search { qps, reasons, service_level, traffic_class },
    )
}

fn found() -> impl Strategy<Value = Found> {
    (any::<[u64; 2]>(), search_reasons()).prop_map(|([answers, open], reasons)| Found {
        answers,
        open,
        reasons,
    })
}

/// Messages of an established connection.
fn of_rails() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u32>(), 1u8..).prop_map(|(epoch, rails)| Message::Down { epoch, rails }),
        sender_state().prop_map(Message::State),
        verdict().prop_map(Message::Verdict),
        new_rails().prop_map(Message::Rebuild),
        new_rails().prop_map(Message::Rebuilt),
        (attempt(), text(1024))
            .prop_map(|(attempt, reason)| Message::RebuildFailed(RebuildFailed { attempt, reason })),
        attempt().prop_map(Message::Proved),
        up().prop_map(Message::Up),
        (1u8..).prop_map(|rails| Message::Return { rails }),
        (1u64..).prop_map(|next| Message::Arrived { next: Sequence::from_number(next) }),
    ]
}

fn callback_addr() -> impl Strategy<Value = Addr> {
    prop_oneof![
        (1u32.., 0u8..=32).prop_map(|(ip, p)| Addr::new(ip.to_be_bytes().into(), p).unwrap()),
        (1u128.., 0u8..=128).prop_map(|(ip, p)| Addr::new(ip.to_be_bytes().into(), p).unwrap()),
    ]
}

pub(crate) fn hello() -> Hello {
    let rail = RailInfo {
        name: "mlx5_0".into(),
        port: 1,
        link_layer: LinkLayer::Ethernet,
        mtu: Mtu::B4096,
        lid: 0,
        addrs: vec![RailAddr { gid: [9; 16], gid_index: 3, gid_kind: GidKind::RoceV2, prefix_len: 24 }],
        speed_mbps: 400_000,
        role: RailRole::SOUT,
        requested: true,
        grh_required: false,
        is_down: false,
    };
    let terms = Terms {
        route: RoutePolicy::Any,
        fused: true,
        mode: Mode::Advanced,
        fixed_share: false,
        island_prefix_len: 24,
        qps: [2, 4],
        plain_qps: 1,
        plain_split: false,
        failover: true,
    };
    let unusable = vec![UnusableRail {
        name: "mlx5_1:1".into(),
        role: RailRole::SUP,
        requested: true,
        why: "down".into(),
    }];
    let release = Release { version: [1, 2, 3], stage: 4, commit: [5; 6] };
    let (claim, host) = (Claim { release, id: [1; 8], token: [2; 16], tag: [3; 16] }, "node7".into());
    Hello {
        claim,
        pid: 42,
        host,
        terms,
        rotation: 3,
        rails: vec![rail],
        unusable,
        others: false,
        wiring_follows: false,
    }
}

/// Returns the body of a message with one byte changed.
fn with(message: &Message, at: usize, byte: u8) -> Result<Message, DecodeError> {
    let mut body = message.encode().unwrap().split_off(HEADER_BYTES);
    body[at] = byte;
    Message::decode(&body)
}

#[test]
fn a_hello_begins_with_what_never_changes() {
    let frame = Message::Hello(hello()).encode().unwrap();
    assert_eq!(frame[4..11], [1, b'M', b'P', b'I', b'B', 10, 0]);
    assert_eq!(frame[11..21], [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]);
    assert_eq!(frame[21..29], [1; 8]);
    assert_eq!(frame[29..45], [2; 16]);
    assert_eq!(frame[45..61], [3; 16]);
    assert_eq!(HELLO_PREFIX_BYTES, 61);
}

#[test]
fn refusals_name_the_field() {
    let hello = Message::Hello(hello());
    assert_eq!(with(&hello, 1, b'X'), Err(DecodeError::Magic(*b"XPIB")));
    assert_eq!(
        with(&hello, 5, 1),
        Err(DecodeError::Version { found: 1, release: self::hello().claim.release })
    );
    let text = with(&hello, 5, 1).unwrap_err().to_string();
    assert!(text.contains("with protocol 1, this one version"), "{text}");
    assert_eq!(with(&Message::Ready, 0, 99), Err(DecodeError::Type(99)));
    // Behind type and prefix: pid, "node7", the terms, the rotation, two flags, one rail, its name of
    // six bytes, its port.
    let route = 1 + 56 + 4 + 2 + 5;
    let terms = route + 1;
    let port = terms + 9 + 4 + 1 + 1 + 1 + 2 + 6;
    // Behind the rail: a count of one, and a name of eight bytes.
    let unusable = port + 33 + 1 + 2 + 8;
    let range = |what, found, expected| Err(DecodeError::Range { what, found, expected });
    assert_eq!(with(&hello, route, 4), range("route policy", 4, "0 to 3"));
    for (at, what) in ["fused", "mode", "fixed share"].into_iter().enumerate() {
        assert_eq!(with(&hello, terms + at, 2), range(what, 2, "0 or 1"));
    }
    assert_eq!(with(&hello, terms + 3, 33), range("island prefix length", 33, "0 to 32"));
    for (at, found) in [(4, 0), (4, 33), (5, 0), (5, 255)] {
        assert_eq!(with(&hello, terms + at, found as u8), range("queue pairs of a rail", found, "1 to 32"));
    }
    for found in [0, 129] {
        assert_eq!(with(&hello, terms + 6, found as u8), range("queue pairs of a rail", found, "1 to 128"));
    }
    assert_eq!(with(&hello, terms + 7, 2), range("split", 2, "0 or 1"));
    assert_eq!(with(&hello, terms + 8, 2), range("failover", 2, "0 or 1"));
    assert_eq!(with(&hello, terms + 13, 2), range("other ports", 2, "0 or 1"));
    assert_eq!(with(&hello, terms + 14, 2), range("WIRING follows", 2, "0 or 1"));
    assert_eq!(with(&hello, port, 0), range("port", 0, "1 to 255"));
    assert_eq!(with(&hello, port + 1, 3), range("link layer", 3, "1 (InfiniBand) or 2 (Ethernet)"));
    assert_eq!(with(&hello, port + 2, 0), range("MTU", 0, "1 to 5 (256 to 4096 bytes)"));
    assert_eq!(
        with(&hello, port + 23, 3),
        range("GID type", 3, "0 (InfiniBand), 1 (RoCE v1) or 2 (RoCE v2)")
    );
    assert_eq!(with(&hello, port + 24, 129), range("prefix length", 129, "0 to 128"));
    assert_eq!(with(&hello, port + 29, 8), range("rail", 8, "0 to 7"));
    assert_eq!(with(&hello, port + 30, 2), range("requested", 2, "0 or 1"));
    assert_eq!(with(&hello, port + 31, 2), range("GRH required", 2, "0 or 1"));
    assert_eq!(with(&hello, port + 32, 2), range("port is down", 2, "0 or 1"));
    assert_eq!(with(&hello, unusable, 8), range("rail", 8, "0 to 7"));
    assert_eq!(with(&hello, unusable + 1, 2), range("requested", 2, "0 or 1"));
    assert_eq!(
        with(&hello, unusable - 11, 33),
        Err(DecodeError::TooLong { what: "rails that cannot be used", found: 33, limit: 32 })
    );
    assert_eq!(with(&hello, port + 5, 0), range("addresses of a rail", 0, "1 to 16"));
    assert_eq!(
        with(&hello, port + 5, 17),
        Err(DecodeError::TooLong { what: "addresses of a rail", found: 17, limit: 16 })
    );
    assert_eq!(with(&hello, port - 9, 33), Err(DecodeError::TooLong { what: "rails", found: 33, limit: 32 }));
}

#[test]
fn wiring_is_bounded() {
    let qps = vec![QpWiring { qpn: 0, psn: 0 }];
    let memory = Memory { addr: 1, len: 2, rkeys: vec![3] };
    let route =
        RouteWiring { local_rail: 0, remote_rail: 1, qps, service_level: 0, traffic_class: 0, ece: None };
    let wiring = Wiring { routes: vec![route], memory };
    let message = Message::Wiring(wiring.clone());
    assert!(matches!(with(&message, 13, 16), Err(DecodeError::Range { what: "service level", .. })));
    assert!(matches!(with(&message, 15, 2), Err(DecodeError::Range { what: "ECE", .. })));
    assert!(matches!(with(&message, 2, 32), Err(DecodeError::Range { what: "rail", .. })));
    assert!(matches!(with(&message, 3, 32), Err(DecodeError::Range { what: "rail", .. })));
    assert!(matches!(
        with(&message, 8, 1),
        Err(DecodeError::Range { what: "queue pair number", found: 0x0100_0000, .. })
    ));
    assert!(matches!(with(&message, 12, 1), Err(DecodeError::Range { what: "packet sequence number", .. })));
    let many = Wiring { routes: vec![wiring.routes[0].clone(); 9], ..wiring.clone() };
    assert_eq!(
        Message::Wiring(many).encode(),
        Err(DecodeError::TooLong { what: "routes", found: 9, limit: 8 })
    );
    let rkeys = Wiring { memory: Memory { rkeys: vec![0; 9], ..wiring.memory.clone() }, ..wiring };
    assert_eq!(
        Message::Wiring(rkeys).encode(),
        Err(DecodeError::TooLong { what: "remote keys", found: 9, limit: 8 })
    );
}

#[test]
fn text_is_cut_when_sent_and_cleaned_when_read() {
    let reason = format!("{}é\nend", "x".repeat(1022));
    let frame = Message::Refuse { reason }.encode().unwrap();
    assert_eq!(
        Message::decode(&frame[4..]),
        Ok(Message::Refuse { reason: format!("{}é", "x".repeat(1022)) })
    );
    let frame = Message::Refuse { reason: "a\x1b[2J\nb".into() }.encode().unwrap();
    assert_eq!(Message::decode(&frame[4..]), Ok(Message::Refuse { reason: "a?[2J?b".into() }));
    let latin1 = [6, 2, 0, b'a', 0xe9];
    assert_eq!(Message::decode(&latin1), Ok(Message::Refuse { reason: "a?".into() }));
}

/// A change of these texts is a change of the protocol.
//= protocol.md: PROBED: both ends recognize a route that was not tried
#[test]
fn reasons_that_both_ends_recognize_stay() {
    assert_eq!((NO_ROUTE, NOT_TRIED), ("no route from ", "not tried, since "));
    assert_eq!(SRQ_FAILED, "a receive in the shared receive queue failed: ");
    assert_eq!((PORT_CHANGED, NO_ANSWER), ("the port has changed meanwhile: ", "nothing answers: "));
}

#[test]
fn the_largest_message_fits_a_frame() {
    let qps = vec![QpWiring { qpn: 0, psn: 0 }; 128];
    let ece = Some(Ece { vendor_id: 0, options: 0, comp_mask: 0 });
    let route = RouteWiring { local_rail: 0, remote_rail: 0, qps, service_level: 0, traffic_class: 0, ece };
    let wiring = Wiring { routes: vec![route; 8], memory: Memory { addr: 0, len: 0, rkeys: vec![0; 8] } };
    let probed = Message::Probed { mask: 0, reasons: vec![(0, "x".repeat(2000)); 8], accepts: true };
    let mut hello = hello();
    let addrs = vec![hello.rails[0].addrs[0]; 16];
    hello.rails = vec![RailInfo { name: "x".repeat(64), addrs, ..hello.rails[0].clone() }; 32];
    hello.unusable =
        vec![UnusableRail { name: "x".repeat(64), why: "x".repeat(600), ..hello.unusable[0].clone() }; 32];
    hello.host = "x".repeat(255);
    let attempt = Attempt { number: 1, epoch: 1 };
    let offer = Offer { port: hello.rails[0].clone(), wiring: wiring.clone() };
    let new_rails = NewRails { attempt, rails: u8::MAX, offer };
    let rebuild = Message::Numbered(Numbered {
        number: u64::MAX,
        received: u64::MAX,
        message: Box::new(Message::Rebuild(new_rails)),
    });
    for message in [Message::Wiring(wiring), probed, rebuild, Message::Hello(hello)] {
        assert!(message.encode().is_ok());
    }
}

#[test]
fn frame_lengths_have_bounds() {
    let count = |n: u32| n.to_le_bytes();
    assert_eq!(Peeked::at(&count(0)), Err(FrameError::Empty));
    assert_eq!(Peeked::at(&count(65_536)), Ok(Peeked::Partial));
    assert_eq!(Peeked::at(&count(65_537)), Err(FrameError::TooLong(65_537)));
    assert_eq!(Peeked::at(&[1, 0, 0]), Ok(Peeked::Partial));
    assert_eq!(Peeked::at(&[1, 0, 0, 0, 7]), Ok(Peeked::Whole { len: 1 }));
    assert_eq!(Peeked::at(&[2, 0, 0, 0, 7]), Ok(Peeked::Partial));
    assert_eq!(Peeked::at(&[1, 0, 0, 0, 7, 5, 5]), Ok(Peeked::Whole { len: 1 }));
}

#[test]
fn strangers_are_known_by_their_first_bytes() {
    let frame = Message::Hello(hello()).encode().unwrap();
    for end in 0..HELLO_PREFIX_BYTES {
        assert_eq!(HelloPrefix::at(&frame[..end]), Ok(None), "{end} bytes");
    }
    let prefix = HelloPrefix { version: 10, claim: hello().claim };
    assert_eq!(HelloPrefix::at(&frame[..HELLO_PREFIX_BYTES]), Ok(Some(prefix)));
    assert_eq!(HelloPrefix::at(&frame), Ok(Some(prefix)));
    assert_eq!(HelloPrefix::at(b"GET / HTTP/1.1"), Err(FrameError::TooLong(0x2054_4547)));
    assert_eq!(HelloPrefix::at(&[0; 4]), Err(FrameError::Empty));
    assert_eq!(HelloPrefix::at(&[56, 0, 0, 0]), Err(FrameError::NotHello), "too short for a prefix");
    assert_eq!(HelloPrefix::at(&[57, 0, 0, 0]), Ok(None));
    for at in HEADER_BYTES..HEADER_BYTES + 5 {
        let mut bad = frame.clone();
        bad[at] ^= 1;
        assert_eq!(HelloPrefix::at(&bad[..=at]), Err(FrameError::NotHello), "byte {at}");
    }
    let mut other = frame;
    other[9..11].copy_from_slice(&[0x34, 0x12]);
    assert_eq!(HelloPrefix::at(&other).unwrap().unwrap().version, 0x1234);
}

proptest! {
    //= protocol.md: messages: a decoder accepts exactly what an encoder makes
    #[test]
    fn decode_undoes_encode(message in message()) {
        let frame = message.encode().unwrap();
        prop_assert_eq!(Peeked::at(&frame), Ok(Peeked::Whole { len: frame.len() - HEADER_BYTES }));
        prop_assert_eq!(Message::decode(&frame[HEADER_BYTES..]), Ok(message));
    }

    /// Each proper prefix of a message is refused as too short, each extension as too long.
    //= protocol.md: messages: a decoder accepts exactly what an encoder makes
    #[test]
    fn messages_end_where_they_end(message in message(), cut in any::<prop::sample::Index>(), extra in 1usize..4) {
        let mut body = message.encode().unwrap().split_off(HEADER_BYTES);
        let cut = cut.index(body.len());
        prop_assert!(matches!(Message::decode(&body[..cut]), Err(DecodeError::Short(_))));
        body.resize(body.len() + extra, 0);
        prop_assert_eq!(Message::decode(&body), Err(DecodeError::Trailing(extra)));
    }

    /// A valid message with some changed bytes: an accepted one encodes to the same bytes.
    //= protocol.md: messages: a decoder accepts exactly what an encoder makes
    #[test]
    fn what_is_accepted_is_what_encode_makes(
        message in message(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0u8..10, any::<u8>()]), 1..4),
    ) {
        let mut body = message.encode().unwrap().split_off(HEADER_BYTES);
        for (at, byte) in changes {
            let at = at.index(body.len().min(96));
            body[at] = byte;
        }
        if let Ok(read) = Message::decode(&body) {
            let again = read.encode().unwrap();
            prop_assert_eq!(Message::decode(&again[HEADER_BYTES..]), Ok(read.clone()));
            let shown = |b: &[u8]| String::from_utf8_lossy(b).chars().all(|c| !c.is_control() && c != char::REPLACEMENT_CHARACTER);
            // Decoding changes nothing but texts.
            let inner = match &read {
                Message::Numbered(numbered) => &numbered.message,
                other => other,
            };
            let has_text = matches!(
                inner,
                Message::Hello(_)
                    | Message::Probed { .. }
                    | Message::Search(_)
                    | Message::Found(_)
                    | Message::Refuse { .. }
                    | Message::Rebuild(_)
                    | Message::Rebuilt(_)
                    | Message::RebuildFailed(_)
            );
            if !has_text || shown(&body) {
                prop_assert_eq!(&again[HEADER_BYTES..], &body[..]);
            }
        }
    }

    //= protocol.md: messages: a decoder accepts exactly what an encoder makes
    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..26) {
        let _ = Peeked::at(&bytes);
        let _ = HelloPrefix::at(&bytes);
        let _ = Message::decode(&[&[kind], &bytes[..]].concat());
    }
}
