//! Machines as their users have published them, with the date on which that was read.

use super::*;

/// A function at a PCI address.
fn at(address: &str, image: u64, speed: u32) -> Function {
    let physical = Some(format!("/sys/devices/{address}"));
    let node = image + u64::from(address.bytes().map(u32::from).sum::<u32>());
    Function { physical, number: 1, image, node, speed, reported: speed, ..Function::default() }
}

impl Function {
    fn named(mut self, port: &str) -> Self {
        self.interface.port_name = Some(port.into());
        self
    }

    fn of_switch(mut self, switch: &str) -> Self {
        self.interface.switch_id = Some(switch.into());
        self
    }

    fn of_port(mut self, id: &str) -> Self {
        self.interface.port_id = Some(id.into());
        self
    }

    /// `MPIB_RAIL_SPEED`
    fn set_to(self, speed: u32) -> Self {
        Self { speed, ..self }
    }
}

/// Index of the wire, GUID, port and speed of each function.
fn seen(functions: &[Function]) -> Vec<(usize, u64, u16, u32)> {
    let wires = wires(functions);
    // NCCL's rule is this model's: one pair, one wire.
    for (one, other) in wires.iter().flat_map(|one| wires.iter().map(move |other| (one, other))) {
        assert_eq!((one.guid, one.port) == (other.guid, other.port), one.index == other.index, "{wires:?}");
        assert!(one.index != other.index || one == other, "{wires:?}");
    }
    wires.iter().map(|wire| (wire.index, wire.guid, wire.port, wire.speed)).collect()
}

/// geerlingguy/sbc-reviews#92: ibstat; NVIDIA/daqiri#108: port names and addresses; 2026-11-29.
fn gb10() -> [Function; 4] {
    const IMAGE: u64 = 0xfc4c_ea03_00f9_4230;
    let function = |address, port| at(address, IMAGE, 200_000).named(port);
    [
        function("0000:01:00.0", "p0"),
        function("0000:01:00.1", "p1"),
        function("0002:01:00.0", "p0"),
        function("0002:01:00.1", "p1"),
    ]
}

//= fused-devices.md: functions of one wire have one pair of GUID and port, and the speed of the wire
#[test]
fn the_four_functions_of_a_gb10_are_two_wires() {
    let guid = 0xfc4c_ea03_00f9_4230;
    let (first, second) = ((0, guid, 1, 200_000), (1, guid, 2, 200_000));
    assert_eq!(seen(&gb10()), [first, second, first, second]);
    // The cable is in the second port.
    let [_, a, _, b] = gb10();
    assert_eq!(seen(&[a, b]), [(0, guid, 1, 200_000); 2]);
}

//= fused-devices.md: a speed that is set for each function of a wire is a part of it
#[test]
fn parts_of_a_wire_that_are_set_add_up_to_no_more_than_the_wire() {
    let [a, _, b, _] = gb10();
    let speed = |a: u32, b: u32| {
        let [first, second] = [&gb10()[0], &gb10()[2]].map(Clone::clone);
        seen(&[first.set_to(a), second.set_to(b)])[0].3
    };
    assert_eq!(seen(&[a.clone(), b])[0].3, 200_000);
    for (ours, theirs, wire) in [
        (100_000, 100_000, 200_000),
        (100_000, 200_000, 200_000),
        (200_000, 200_000, 200_000),
        (50_000, 50_000, 100_000),
        // More than the ports report: they report too little.
        (400_000, 400_000, 400_000),
    ] {
        assert_eq!(speed(ours, theirs), wire, "{ours}, {theirs}");
    }
    // Alone, a port is as fast as the setting says.
    assert_eq!(seen(&[a.set_to(100_000)])[0].3, 100_000);
}

/// NVIDIA/nccl#1422: a container sees the physical and the virtual functions; k8snetworkplumbingwg/
/// sriov-network-operator#267: the latter have the system image GUID of the former; 2026-11-29.
//= devices.md: a physical function and its virtual ones are one wire
#[test]
fn a_physical_function_and_its_virtual_ones_are_one_wire() {
    let image = 0x0c42_a103_00c6_cf52;
    let physical = |number: u8| at("0000:17:00.0", image, 200_000).named(&format!("p{number}"));
    assert_eq!(seen(&[physical(0), physical(0), physical(0)]), [(0, image, 1, 200_000); 3]);
    // Those of the card's other port are another wire.
    let other = at("0000:17:00.1", image, 200_000).named("p1");
    let (first, second) = ((0, image, 1, 200_000), (1, image, 2, 200_000));
    assert_eq!(seen(&[physical(0), other.clone(), other, physical(0)]), [first, second, second, first]);
    // bnxt_re makes the GUID of each function from its MAC address.
    let of_mac = |image| at("0000:17:00.0", image, 100_000);
    assert_eq!(seen(&[of_mac(0xa1), of_mac(0xa2)]), [(0, 0xa1, 1, 100_000); 2]);
}

/// ROCm/rocm-systems#11138: all cards of hfi1 have one GUID, and data goes on port 2; 2026-11-29.
//= devices.md: cards with one system image GUID are a wire each
#[test]
fn cards_with_one_guid_are_a_wire_each() {
    let guid = 0x0011_7501_0167_1ecb;
    let card = |(bus, node): (&str, u64)| {
        let function = at(&format!("0000:{bus}:00.0"), guid, 400_000);
        Function { number: 2, node: guid + node, ..function }
    };
    let found = seen(&[("05", 0), ("26", 0x22), ("46", 0x1f), ("65", 0x70)].map(card));
    let expected = [0, 0x22, 0x1f, 0x70].map(|node| (guid + node, 2, 400_000));
    assert_eq!(found.iter().map(|wire| (wire.1, wire.2, wire.3)).collect::<Vec<_>>(), expected);
    // Their node GUIDs may be the same, too.
    let found = seen(&[("05", 0), ("26", 0), ("46", 0)].map(card));
    let expected = [0, 1, 2].map(|n| (guid + n, 2));
    assert_eq!(found.iter().map(|wire| (wire.1, wire.2)).collect::<Vec<_>>(), expected);
}

/// NVIDIA/nccl#307: two cards of two PCIe links each, whose ports are at 100 Gb/s; 2026-11-29.
#[test]
fn a_socket_direct_card_of_infiniband_is_one_wire() {
    let function = |bus: &str, image| at(&format!("0000:{bus}:00.0"), image, 100_000).named("p0");
    let cards = [function("12", 0xa), function("86", 0xa), function("37", 0xb), function("b1", 0xb)];
    let (first, second) = ((0, 0xa, 1, 100_000), (1, 0xb, 1, 100_000));
    assert_eq!(seen(&cards), [first, first, second, second]);
}

/// aliyun/SimAI#128 (H100), deepseek-ai/DeepEP#303 (H20): each card has a GUID; 2026-11-29.
#[test]
fn cards_with_a_guid_each_are_a_wire_each() {
    let cards = [0xa088_c203_0074_cfda, 0xa088_c203_0074_cbaa, 0xa088_c203_0076_b78c];
    let functions: Vec<_> =
        (0x18..).zip(cards).map(|(bus, image)| at(&format!("0000:{bus:x}:00.0"), image, 400_000)).collect();
    let expected: Vec<_> = (0..).zip(cards).map(|(index, image)| (index, image, 1, 400_000)).collect();
    assert_eq!(seen(&functions.into_iter().map(|f| f.named("p0")).collect::<Vec<_>>()), expected);
}

/// A card of several planes has a port for each: functions of one bus with different names.
#[test]
fn planes_of_a_card_are_a_wire_each() {
    let plane = |n: u8| at(&format!("0000:03:00.{n}"), 7, 200_000).named(&format!("p{n}"));
    let expected = [1, 2, 3, 4].map(|port: u16| (usize::from(port) - 1, 7, port, 200_000));
    assert_eq!(seen(&[0, 1, 2, 3].map(plane)), expected);
}

/// Azure/azhpc-images#44: each function of a guest has a PCI domain, and one has GUID 0;
/// 2026-11-29.
#[test]
fn a_guest_has_a_wire_for_each_function() {
    let functions = [at("5cf8:00:02.0", 0, 50_000), at("dfa5:00:02.0", 0x0c42_a103_0001_65fc, 200_000)];
    assert_eq!(seen(&functions), [(0, 0, 1, 50_000), (1, 0x0c42_a103_0001_65fc, 1, 200_000)]);
    // Nothing is known of two: each has a pair to itself.
    let unknown = Function { number: 1, speed: 100_000, reported: 100_000, ..Function::default() };
    assert_eq!(seen(&[unknown.clone(), unknown]), [(0, 0, 1, 100_000), (1, 1, 1, 100_000)]);
}

#[test]
fn the_kernels_names_of_ports_and_chips_decide() {
    // One port, which the driver names for all its functions.
    let [a, b] = ["0000:17:00.0", "0000:98:00.0"].map(|address| at(address, 1, 100_000));
    assert_eq!(seen(&[a.clone().of_port("a0"), b.clone().of_port("a0")])[1].0, 0);
    assert_eq!(seen(&[a.clone().named("p0").of_port("a0"), b.clone().named("p0").of_port("a1")])[1].0, 1);
    // A port of a chip whose functions have a GUID each.
    let one =
        |image, switch| at(&format!("0000:17:00.{image}"), image, 100_000).named("p0").of_switch(switch);
    assert_eq!(seen(&[one(0, "c0"), one(1, "c0")])[1].0, 0);
    assert_eq!(seen(&[one(0, "c0"), one(1, "c1")])[1].0, 1);
    // Chips that differ, although a GUID says that they do not.
    assert_eq!(seen(&[a.clone().named("p0").of_switch("c0"), b.named("p0").of_switch("c1")])[1].0, 1);
    // The two ports of a function.
    let ports = [1, 2].map(|number| Function { number, ..a.clone() });
    assert_eq!(seen(&ports), [(0, 1, 1, 100_000), (1, 1, 2, 100_000)]);
}

/// A pair that one wire would have by its own numbers may be another's already.
#[test]
fn no_two_wires_have_one_pair() {
    let function = |address, image, node, number| Function { number, node, ..at(address, image, 1) };
    let functions = [
        function("0000:01:00.0", 5, 5, 2),
        function("0000:01:00.1", 5, 6, 2),
        function("0000:02:00.0", 5, 7, 1),
        function("0000:03:00.0", 5, 7, 1),
        function("0000:04:00.0", 6, 6, 1),
        function("0000:01:00.0", 5, 5, 2),
    ];
    let pairs: Vec<_> = seen(&functions).into_iter().map(|(_, guid, port, _)| (guid, port)).collect();
    assert_eq!(pairs, [(5, 2), (5, 3), (7, 1), (6, 1), (8, 1), (5, 2)]);
    // Functions on the two links of one chip, of different ports.
    let [first, _, _, second] = gb10();
    let guid = first.image;
    assert_eq!(seen(&[first, second]), [(0, guid, 1, 200_000), (1, guid, 2, 200_000)]);
}

/// A function may join two that do not know of each other.
#[test]
fn sharing_is_passed_on() {
    let a = at("0000:01:00.0", 1, 100_000).of_port("x");
    let b = at("0000:02:00.0", 2, 100_000).named("p0").of_switch("s");
    let both = at("0000:01:00.0", 3, 100_000).named("p0").of_switch("s");
    assert_eq!(seen(&[a, b, both]), [(0, 1, 1, 100_000); 3]);
}
