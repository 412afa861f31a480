//! HELLOs drawn from bytes: names and addresses from small sets, so two ends often have something in
//! common.

use std::net::{Ipv4Addr, Ipv6Addr};

use arbitrary::{Arbitrary, Result, Unstructured};
use mpib_proto::{
    Claim, GidKind, Hello, LinkLayer, Message, Mode, Mtu, RailAddr, RailInfo, RailRole, RoutePolicy, Terms,
    UnusableRail,
};

/// Most rails of an end, as a HELLO may have them.
const MAX_RAILS: usize = 32;

/// Both HELLOs of a connection with equal settings, as each end has its own.
pub(crate) struct Hellos {
    pub(crate) connector: Hello,
    pub(crate) acceptor: Hello,
}

impl<'a> Arbitrary<'a> for Hellos {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let terms = Terms {
            route: *u.choose(&RoutePolicy::ALL)?,
            fused: u.arbitrary()?,
            mode: if u.arbitrary()? { Mode::Advanced } else { Mode::Vanilla },
            fixed_share: u.arbitrary()?,
            island_prefix_len: u.int_in_range(0..=32)?,
            qps: [2, 4],
            plain_qps: 1,
            plain_split: false,
            failover: u.arbitrary()?,
        };
        let connector = hello(u, terms)?;
        let theirs = Terms { failover: u.arbitrary()?, fused: u.arbitrary()?, ..terms };
        let acceptor = hello(u, theirs)?;
        Ok(Self { connector, acceptor })
    }
}

/// Returns the HELLO as the peer has it.
pub(crate) fn over_the_wire(hello: &Hello) -> Hello {
    let frame = Message::Hello(hello.clone()).encode().expect("a HELLO within the limits");
    match Message::decode(&frame[mpib_proto::HEADER_BYTES..]) {
        Ok(Message::Hello(hello)) => hello,
        other => panic!("{hello:?} arrives as {other:?}"),
    }
}

fn hello(u: &mut Unstructured<'_>, terms: Terms) -> Result<Hello> {
    let rails = (0..u.int_in_range(0..=MAX_RAILS)?).map(|_| rail(u)).collect::<Result<_>>()?;
    let unusable = (0..u.int_in_range(0..=2)?).map(|_| unusable(u)).collect::<Result<_>>()?;
    Ok(Hello {
        claim: Claim::default(),
        pid: 1,
        host: name(u)?,
        terms,
        rotation: u.arbitrary()?,
        others: u.arbitrary()?,
        wiring_follows: false,
        rails,
        unusable,
    })
}

fn rail(u: &mut Unstructured<'_>) -> Result<RailInfo> {
    let link_layer = *u.choose(&[LinkLayer::Ethernet, LinkLayer::Ethernet, LinkLayer::InfiniBand])?;
    Ok(RailInfo {
        name: name(u)?,
        port: u.int_in_range(1..=2)?,
        link_layer,
        mtu: *u.choose(&[Mtu::B1024, Mtu::B4096])?,
        lid: u.arbitrary()?,
        addrs: (0..u.int_in_range(1..=3)?).map(|_| address(u, link_layer)).collect::<Result<_>>()?,
        speed_mbps: u.arbitrary()?,
        role: role(u)?,
        requested: u.arbitrary()?,
        grh_required: u.arbitrary()?,
        is_down: u.arbitrary()?,
    })
}

fn unusable(u: &mut Unstructured<'_>) -> Result<UnusableRail> {
    Ok(UnusableRail { name: name(u)?, role: role(u)?, requested: u.arbitrary()?, why: name(u)? })
}

fn role(u: &mut Unstructured<'_>) -> Result<RailRole> {
    Ok(RailRole::new(u.int_in_range(0..=2)?).expect("a role below 8"))
}

fn address(u: &mut Unstructured<'_>, link_layer: LinkLayer) -> Result<RailAddr> {
    let (net, host) = (u.int_in_range(0..=2)?, u.arbitrary::<u8>()?);
    let v4 = Ipv4Addr::new(10, 0, net, host).to_ipv6_mapped();
    let gid = match u.int_in_range(0..=5)? {
        0..=2 => v4,
        3 => Ipv6Addr::new(0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()),
        4 => Ipv6Addr::new(0xfe80, 0, 0, net.into(), 0, 0, 0, host.into()),
        _ => Ipv6Addr::from(u.arbitrary::<u128>()?),
    };
    let roce = *u.choose(&[GidKind::RoceV2, GidKind::RoceV1])?;
    Ok(RailAddr {
        gid: gid.octets(),
        gid_index: u.int_in_range(0..=15)?,
        gid_kind: if link_layer == LinkLayer::InfiniBand { GidKind::Ib } else { roce },
        prefix_len: u.int_in_range(0..=128)?,
    })
}

/// Draws a name of at most 16 characters, sometimes with ones that no log may have.
fn name(u: &mut Unstructured<'_>) -> Result<String> {
    let name = match u.int_in_range(0..=3)? {
        0 => u.arbitrary::<&str>()?.chars().take(16).collect(),
        n => format!("mlx5_{n}:1"),
    };
    Ok(name)
}
