//! Every message in both directions, and invalid bytes.

use proptest::prelude::*;

use super::*;

fn requests() -> impl Strategy<Value = Request> {
    let register = any::<(u32, [[u8; 4]; 4])>().prop_map(|(conn_id, ip)| {
        Request::Register(Register {
            conn_id,
            sout_src: ip[0].into(),
            sout_dst: ip[1].into(),
            sup_src: ip[2].into(),
            sup_dst: ip[3].into(),
        })
    });
    prop_oneof![
        register,
        any::<u32>().prop_map(|conn_id| Request::Deregister { conn_id }),
        Just(Request::Attach)
    ]
}

fn responses() -> impl Strategy<Value = Response> {
    prop_oneof![
        any::<(u8, u32)>().prop_map(|(s, slot)| Response::Registered { status: Status(s), slot }),
        any::<u8>().prop_map(|s| Response::Deregistered { status: Status(s) }),
        Just(Response::PortsChanged),
    ]
}

#[test]
fn the_bytes_are_those_of_the_interface() {
    let register = Register {
        conn_id: 0x0102_0304,
        sout_src: [10, 0, 0, 1].into(),
        sout_dst: [10, 0, 0, 2].into(),
        sup_src: [10, 1, 0, 1].into(),
        sup_dst: [10, 1, 0, 2].into(),
    };
    let (bytes, len) = Request::Register(register).encode();
    assert_eq!(
        bytes[..len],
        *b"RIPM\x1c\x00\x01\x00\x04\x03\x02\x01\x0a\0\0\x01\x0a\0\0\x02\x0a\x01\0\x01\x0a\x01\0\x02"
    );
    let (bytes, len) = Request::Deregister { conn_id: 7 }.encode();
    assert_eq!(bytes[..len], *b"RIPM\x0c\x00\x02\x00\x07\0\0\0");
    let (bytes, len) = Response::Registered { status: Status::SUCCESS, slot: 255 }.encode();
    assert_eq!(bytes[..len], *b"RIPM\x10\x00\x80\x00\0\0\0\0\xff\0\0\0");
    let (bytes, len) = Response::Deregistered { status: Status::INVALID_REQUEST }.encode();
    assert_eq!(bytes[..len], *b"RIPM\x0c\x00\x80\x00\x02\0\0\0");
    let (bytes, len) = Request::Attach.encode();
    assert_eq!(bytes[..len], *b"RIPM\x08\x00\x03\x00");
    let (bytes, len) = Response::PortsChanged.encode();
    assert_eq!(bytes[..len], *b"RIPM\x08\x00\x81\x00");
}

/// Returns what a decoder must return for `bytes`, if it accepts messages of these types and
/// lengths.
fn expected(bytes: &[u8], kinds: &[(u8, u16)]) -> Result<Option<usize>, Malformed> {
    let magic = bytes.get(..4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
    match magic {
        Some(m) if m != MESSAGE_MAGIC => return Err(Malformed::Magic(m)),
        Some(_) if bytes.len() >= 8 => {}
        _ => return Ok(None),
    }
    let (found, kind) = (u16::from_le_bytes([bytes[4], bytes[5]]), bytes[6]);
    let lengths: Vec<u16> = kinds.iter().filter(|k| k.0 == kind).map(|k| k.1).collect();
    if lengths.is_empty() {
        return Err(Malformed::Type(kind));
    }
    if !lengths.contains(&found) {
        let expected = match (kind, lengths.len()) {
            (_, 2) => "12 (to DEREGISTER) or 16 (to REGISTER)",
            (1, _) => "28",
            (3 | 129, _) => "8",
            _ => "12",
        };
        return Err(Malformed::Length { kind, found, expected });
    }
    Ok((bytes.len() >= found.into()).then_some(found.into()))
}

proptest! {
    #[test]
    fn requests_come_out_as_they_went_in(request in requests(), more in prop::collection::vec(any::<u8>(), 0..40)) {
        let (bytes, len) = request.encode();
        let stream = [&bytes[..len], &more].concat();
        prop_assert_eq!(Request::decode(&stream), Ok(Some((request, len))));
        for short in 0..len {
            prop_assert_eq!(Request::decode(&bytes[..short]), Ok(None));
        }
        prop_assert!(bytes[len..].iter().all(|b| *b == 0));
    }

    #[test]
    fn flags_change_no_message(request in requests(), response in responses(), set: u8) {
        let (bytes, len) = request.encode_with(set);
        prop_assert_eq!((flags(&bytes), Request::decode(&bytes[..len])), (set, Ok(Some((request, len)))));
        let (bytes, len) = response.encode_with(set);
        prop_assert_eq!((flags(&bytes), Response::decode(&bytes[..len])), (set, Ok(Some((response, len)))));
    }

    #[test]
    fn responses_come_out_as_they_went_in(response in responses(), more in prop::collection::vec(any::<u8>(), 0..40)) {
        let (bytes, len) = response.encode();
        let stream = [&bytes[..len], &more].concat();
        prop_assert_eq!(Response::decode(&stream), Ok(Some((response, len))));
        for short in 0..len {
            prop_assert_eq!(Response::decode(&bytes[..short]), Ok(None));
        }
    }

    /// Valid messages of both directions, with one byte changed and truncated at any position, for
    /// both decoders.
    #[test]
    fn exactly_the_interface_is_accepted(
        good in prop_oneof![requests().prop_map(|r| r.encode()), responses().prop_map(|r| r.encode())],
        at in 0usize..12,
        value in prop_oneof![any::<u8>(), Just(1), Just(2), Just(3), Just(8), Just(12), Just(16), Just(28), Just(128), Just(129)],
        cut in 0usize..=28,
    ) {
        let mut bytes = good.0;
        bytes[at] = value;
        let bytes = &bytes[..cut];
        let request = Request::decode(bytes).map(|found| found.map(|f| f.1));
        prop_assert_eq!(request, expected(bytes, &[(1, 28), (2, 12), (3, 8)]));
        let response = Response::decode(bytes).map(|found| found.map(|f| f.1));
        prop_assert_eq!(response, expected(bytes, &[(128, 12), (128, 16), (129, 8)]));
    }

    #[test]
    fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = (Request::decode(&bytes), Response::decode(&bytes));
    }
}
