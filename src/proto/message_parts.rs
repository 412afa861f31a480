//! Any parts of messages, for tests.

use proptest::prelude::*;

use crate::proto::*;

pub(super) fn text(limit: usize) -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z0-9_.é-]{1,20}", Just("x".repeat(limit))]
}

pub(super) fn rail_info() -> impl Strategy<Value = RailInfo> {
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

pub(super) fn unusable_rail() -> impl Strategy<Value = UnusableRail> {
    (text(64), 0u8..8, any::<bool>(), text(512)).prop_map(|(name, role, requested, why)| UnusableRail {
        name,
        role: RailRole::new(role).unwrap(),
        requested,
        why,
    })
}

pub(super) fn rail_addrs() -> impl Strategy<Value = Vec<RailAddr>> {
    let addr = (any::<[u8; 16]>(), any::<u8>(), 0u32..=2, 0u8..=128);
    let addr = addr.prop_map(|(gid, gid_index, kind, prefix_len)| RailAddr {
        gid,
        gid_index,
        gid_kind: GidKind::from_raw(kind).unwrap(),
        prefix_len,
    });
    prop_oneof![prop::collection::vec(addr.clone(), 1..4), prop::collection::vec(addr, 15..=16)]
}

pub(super) fn route() -> impl Strategy<Value = RouteWiring> {
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

pub(super) fn wiring() -> impl Strategy<Value = Wiring> {
    (
        prop::collection::vec(route(), 0..=8),
        any::<u64>(),
        any::<u64>(),
        prop::collection::vec(any::<u32>(), 0..=8),
    )
        .prop_map(|(routes, addr, len, rkeys)| Wiring { routes, memory: Memory { addr, len, rkeys } })
}

pub(super) fn terms() -> impl Strategy<Value = Terms> {
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

pub(super) fn attempt() -> impl Strategy<Value = Attempt> {
    (1u32.., 1u32..).prop_map(|(number, epoch)| Attempt { number, epoch })
}

pub(super) fn new_rails() -> impl Strategy<Value = NewRails> {
    let offer = (rail_info(), wiring()).prop_map(|(port, wiring)| Offer { port, wiring });
    (attempt(), 1u8.., offer).prop_map(|(attempt, rails, offer)| NewRails { attempt, rails, offer })
}

pub(super) fn sequence() -> impl Strategy<Value = Sequence> + Clone {
    (1u64..).prop_map(Sequence::from_number)
}

pub(super) fn sender_state() -> impl Strategy<Value = SenderState> {
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

pub(super) fn verdict() -> impl Strategy<Value = Verdict> {
    let group = (sequence(), 1u8..);
    let again =
        prop_oneof![prop::collection::vec(group.clone(), 0..4), prop::collection::vec(group, 63..=64)];
    (1u32.., again).prop_map(|(epoch, again)| Verdict { epoch, again })
}
