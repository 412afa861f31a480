use super::*;
use crate::limits::{MAX_DEVICES, MAX_INLINE};

fn good(text: &str) -> Vec<DeviceSpec> {
    DeviceSpec::parse_list(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Returns the whole line for an invalid value.
fn line(text: &str) -> String {
    from_text(Some(text)).expect_err(text)
}

#[test]
fn without_a_value_there_are_two_roce_devices() {
    let devices = from_text(None).unwrap();
    assert_eq!(devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["soft0", "soft1"]);
    assert_ne!(devices[0].addrs, devices[1].addrs);
    assert_eq!(check::list(&devices), Ok(()));
    assert!(devices.iter().all(|d| d.link_layer == LinkLayer::Ethernet && d.rate.is_none()));
}

#[test]
fn every_key_is_read() {
    let devices = good(
        "soft0:addr=10.0.0.1/24+fd00::1/64,rate=4GB,lat=2us,cqe_delay=4ms,mtu=1024,path_mtu=512,wire=7,link=roce,dmabuf=on,posted=3ms; ib0: link=ib,dmabuf=off , lid=7 ,rate=100Gb ;",
    );
    let mut first =
        DeviceSpec::roce("soft0", &[(IpAddr::from([10, 0, 0, 1]), 24), ("fd00::1".parse().unwrap(), 64)]);
    (first.rate, first.latency_ns, first.mtu) = (Some(4_000_000_000), 2000, 1024);
    first.cqe_delay_ns = 4_000_000;
    (first.path_mtu, first.wire, first.dmabuf, first.posted_ns) = (Some(512), 7, true, 3_000_000);
    let mut second = DeviceSpec::infiniband("ib0");
    (second.lid, second.rate) = (Some(7), Some(12_500_000_000));
    assert_eq!(devices, [first, second]);
    let virtual_port = good("v:link=ib,lid=8,lmc=3,subnet=0xfe80000000000002,flid=77,grh=on,loopback=off");
    let mut third = DeviceSpec::infiniband("v");
    (third.lid, third.lmc, third.flid) = (Some(8), 3, Some(77));
    (third.subnet, third.grh_required, third.loopback) = (0xfe80_0000_0000_0002, true, false);
    assert_eq!(virtual_port, [third]);
}

/// LIDs are those of a subnet, and a derived one has room for all LIDs of its port.
#[test]
fn lids_are_unique_in_a_subnet() {
    let [a, b] = &good("a:link=ib,lid=5;b:link=ib,lid=5,subnet=0xfe80000000000001")[..] else { panic!() };
    assert_ne!(gid::guid(a), gid::guid(b));
    good("a:link=ib,lid=5;b:link=ib,lid=5,wire=1");
    for name in ["a", "b", "ib0", "mlx5_0"] {
        let derived = gid::lids(&good(&format!("{name}:link=ib,lmc=7"))[0]);
        assert!(
            derived.start.is_multiple_of(128) && derived.start > 0 && derived.end <= gid::MAX_LID + 1,
            "{derived:?}"
        );
    }
}

#[test]
fn names_may_have_every_plain_character() {
    for name in ["a", "mlx5_0.vf-1", "0", &"n".repeat(63)] {
        assert_eq!(good(&format!("{name}:addr=10.0.0.1/24"))[0].name, name);
    }
}

#[test]
fn a_port_has_the_pkeys_that_are_listed() {
    assert_eq!(good("a:addr=10.0.0.1/24")[0].pkeys, [0xffff]);
    assert_eq!(good("a:addr=10.0.0.1/24,pkey=0x7fff+0x8001")[0].pkeys, [0x7fff, 0x8001]);
    for bad in ["", "1", "0x", "0x10000", "0x8000", "0x0", "0xffff+", &["0x1"; 17].join("+")] {
        assert!(line(&format!("a:addr=10.0.0.1/24,pkey={bad}")).contains("P_Key"), "{bad}");
    }
}

#[test]
fn a_device_may_lack_what_others_have() {
    assert_eq!(good("a:addr=10.0.0.1/24")[0].without, []);
    let all = [
        Capability::IbTransport,
        Capability::LinkLayer,
        Capability::Srq,
        Capability::SrqCalls,
        Capability::ActiveMtu,
        Capability::Retries,
    ];
    assert_eq!(good("a:addr=10.0.0.1/24,without=transport+link+srq+srq_calls+mtu+retries")[0].without, all);
    for bad in ["", "rc", "srq+"] {
        let line = line(&format!("a:addr=10.0.0.1/24,without={bad}"));
        assert!(line.contains("expected transport, link, srq, srq_calls, mtu or retries"), "{line}");
    }
}

#[test]
fn a_device_may_have_the_quirks_of_a_provider() {
    let quirks = |text: &str| good(&format!("a:addr=10.0.0.1/24{text}"))[0].quirks;
    assert_eq!(quirks(""), None);
    let named = ["none", "bnxt_re", "siw"].map(|name| quirks(&format!(",quirks={name}")));
    assert_eq!(named, [Quirks::None, Quirks::BnxtRe, Quirks::Siw].map(Some));
}

#[test]
fn a_further_port_has_the_keys_of_the_first_but_for_addresses() {
    let [first, second, third] = &good(
        "a:addr=10.0.0.1/24,rate=4GB,dmabuf=on,wire=1;a/2:addr=10.0.1.1/24,rate=2GB;a/3:addr=10.0.2.1/24,mtu=1024",
    )[..] else {
        panic!()
    };
    assert_eq!(
        [first, second, third].map(|port| (port.device(), port.port())),
        [("a", 1), ("a", 2), ("a", 3)]
    );
    assert_eq!((second.rate, second.dmabuf, second.wire), (Some(2_000_000_000), true, 1));
    assert_eq!((third.rate, third.mtu, third.addrs[0].0), (second.rate, 1024, [10, 0, 2, 1].into()));
    assert_ne!(gid::guid(first), gid::guid(second));
    assert_eq!(good("a:link=ib,lid=8;a/2:link=ib")[1].lid, None);
}

#[test]
fn each_call_has_its_time() {
    let device = &good("a:addr=10.0.0.1/24,verb_time=modify_qp:1ms+modify_rtr:1s+close_device:never")[0];
    let times = [Call::ModifyInit, Call::ModifyErr, Call::ModifyRtr, Call::CloseDevice, Call::CreateQp];
    let expected = [1_000_000, 1_000_000, 1_000_000_000, u64::MAX, 0];
    assert_eq!(times.map(|call| device.verb_time.of(call)), expected);
}

#[test]
fn functions_of_a_card_may_share_a_system_image() {
    let [a, b, c] =
        &good("a:addr=10.0.0.1/24,system=0x5001;b:addr=10.0.1.1/24,system=0x5001;c:addr=10.0.2.1/24")[..]
    else {
        panic!()
    };
    assert_eq!((a.system, b.system, c.system), (Some(0x5001), Some(0x5001), None));
    assert!(line("a:addr=10.0.0.1/24,system=5001").contains("expected a GUID such as 0x5001"));
}

#[test]
fn a_device_may_have_a_place_in_sysfs() {
    assert_eq!(good("a:addr=10.0.0.1/24,sysfs=/tmp/a:b")[0].sysfs.as_deref(), Some("/tmp/a:b"));
    assert!(line("a:addr=10.0.0.1/24,sysfs=tmp").contains("expected an absolute path"));
    let long = format!("/{}", "x".repeat(255));
    assert!(line(&format!("a:addr=10.0.0.1/24,sysfs={long}")).contains("longer than 255 bytes"));
}

#[test]
fn latency_has_a_long_name_too() {
    assert_eq!(good("a:addr=10.0.0.1/24,latency=3us")[0].latency_ns, 3000);
}

#[test]
fn a_bad_value_is_one_line_that_names_variable_text_and_form() {
    let text = "soft0:addr=10.0.0.1/24,rate=0\nGB";
    let line = line(text);
    assert!(line.starts_with(&format!("SOFTVERBS_DEVICES={text:?}: ")), "{line}");
    assert!(line.ends_with(&format!("(expected form: {})", parse::FORM)), "{line}");
    assert!(line.contains("no devices"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}

/// Texts, and words that the line must contain.
const REFUSED: &[(&str, &str)] = &[
    ("", "expected a name"),
    (";", "expected a name"),
    ("a:addr=10.0.0.1/24;;b:addr=10.0.1.1/24", "device 2: found \"\""),
    (":addr=10.0.0.1/24", "expected a name"),
    ("a b:addr=10.0.0.1/24", "expected a name of 1 to 63"),
    ("..:addr=10.0.0.1/24", "expected a name of 1 to 63"),
    ("a/b:addr=10.0.0.1/24", "expected NAME/2 behind the device NAME"),
    ("a/2:addr=10.0.0.1/24", "expected NAME/2 behind the device NAME"),
    ("a:addr=10.0.0.1/24;b/2:addr=10.0.1.1/24", "expected NAME/2 behind the device NAME"),
    ("a:addr=10.0.0.1/24;a/3:addr=10.0.1.1/24", "expected NAME/2 behind the device NAME"),
    (
        "a:addr=10.0.0.1/24;a/2:addr=10.0.1.1/24;a/2:addr=10.0.2.1/24",
        "expected NAME/2 behind the device NAME",
    ),
    ("a:addr=10.0.0.1/24;a/2:addr=10.0.0.1/24", "the address 10.0.0.1 is already that of \"a\""),
    (
        "a:addr=10.0.0.1/24;a/2:addr=10.0.1.1/24,dmabuf=on",
        "found a key of the device, expected it at \"a\" only",
    ),
    ("a:addr=10.0.0.1/24;a/2:rate=4GB", "found no address"),
    ("0123456789012345678901234567890123456789012345678901234567890123:addr=10.0.0.1/24", "1 to 63"),
    ("a", "found no address"),
    ("a:addr=", "found \"\", expected an address"),
    ("a:addr=10.0.0.1", "found \"10.0.0.1\", expected an address with its prefix length"),
    ("a:addr=10.0.0.256/24", "expected an address"),
    ("a:addr=10.0.0.1/33", "10.0.0.1/33: expected a prefix length of 1 to 32"),
    ("a:addr=10.0.0.1/0", "expected a prefix length of 1 to 32"),
    ("a:addr=10.0.0.1/-1", "expected an address"),
    ("a:addr=fd00::1/129", "expected a prefix length of 1 to 128"),
    ("a:addr=fd00::1/300", "expected an address"),
    ("a:addr=0.0.0.0/24", "0.0.0.0: expected the address of one port"),
    ("a:addr=224.0.0.1/24", "expected the address of one port"),
    ("a:addr=255.255.255.255/24", "expected the address of one port"),
    ("a:addr=ff02::1/64", "expected the address of one port"),
    ("a:addr=::ffff:10.0.0.1/120", "expected the address of one port"),
    ("a:addr=10.0.0.1/24+10.0.0.1/16", "found the address 10.0.0.1 twice"),
    ("a:addr=10.0.0.1/24;a:addr=10.0.1.1/24", "device \"a\": found that name twice"),
    ("a:addr=10.0.0.1/24;b:addr=10.0.0.1/24", "the address 10.0.0.1 is already that of \"a\""),
    ("a:addr=10.0.0.1/24,addr=10.0.0.2/24", "found addr= twice"),
    ("a:addr=10.0.0.1/24,rate=0GB", "rate=0GB: expected a rate per second above zero"),
    ("a:addr=10.0.0.1/24,rate=4", "rate=4: expected a rate"),
    ("a:addr=10.0.0.1/24,rate=999999999999999999GB", "expected a rate"),
    ("a:addr=10.0.0.1/24,lat=2", "lat=2: expected a time"),
    ("a:addr=10.0.0.1/24,lat=11s", "expected at most 10 s"),
    ("a:addr=10.0.0.1/24,lat=999999999999999999s", "expected a time"),
    ("a:addr=10.0.0.1/24,mtu=1500", "mtu=1500: expected 256, 512, 1024, 2048 or 4096"),
    ("a:addr=10.0.0.1/24,mtu=99999999999", "mtu=99999999999: expected 256"),
    ("a:addr=10.0.0.1/24,path_mtu=9000", "path_mtu=9000: expected 256"),
    ("a:addr=10.0.0.1/24,wire=blue", "wire=blue: expected a number"),
    ("a:addr=10.0.0.1/24,dmabuf=1", "dmabuf=1: expected on or off"),
    ("a:addr=10.0.0.1/24,cqe_delay=11s", "cqe_delay of 11000000000 ns: expected at most 10 s"),
    ("a:addr=10.0.0.1/24,posted=3", "posted=3: expected a time"),
    ("a:addr=10.0.0.1/24,dmabuf=on,posted=11s", "posted of 11000000000 ns: expected at most 10 s"),
    ("a:addr=10.0.0.1/24,posted=3ms", "found posted, which needs dmabuf=on"),
    ("a:addr=10.0.0.1/24,link=eth", "link=eth: expected roce or ib"),
    ("a:addr=10.0.0.1/24,colour=red", "colour=red: expected one of the keys"),
    ("a:addr=10.0.0.1/24,max_qp_wr=x", "max_qp_wr=x: expected a number from 1 to 16384"),
    ("a:addr=10.0.0.1/24,max_qp_wr=0", "max_qp_wr=0: expected 1 to 16384"),
    ("a:addr=10.0.0.1/24,max_qp_wr=16385", "max_qp_wr=16385: expected 1 to 16384"),
    ("a:addr=10.0.0.1/24,max_srq_wr=x", "max_srq_wr=x: expected a number from 1 to 65536"),
    ("a:addr=10.0.0.1/24,max_srq_wr=65537", "max_srq_wr=65537: expected 1 to 65536"),
    ("a:addr=10.0.0.1/24,verb_time=5ms", "expected calls with their times"),
    ("a:verb_time=poll:5ms", "found \"poll\", expected one of the calls modify_qp, open_device"),
    ("a:addr=10.0.0.1/24,verb_time=destroy_qp:5", "expected a time"),
    ("a:addr=10.0.0.1/24,verb_time=post_send:5ms", "post_recv, which take no time"),
    ("a:addr=10.0.0.1/24,verb_time=destroy_qp:11s", "verb_time of 11000000000 ns: expected at most 10 s"),
    ("a:addr=10.0.0.1/24,rate", "rate: expected KEY=VALUE"),
    ("a:addr=10.0.0.1/24,lid=5", "found a LID, which only link=ib has"),
    ("a:link=ib,addr=10.0.0.1/24", "found an address, which only link=roce has"),
    ("a:link=ib,lid=0", "lid=0: expected 1 to"),
    ("a:link=ib,lid=49152", "lid=49152: expected 1 to"),
    ("a:link=ib,lid=65536", "lid=65536: expected a number from 1"),
    ("a:link=ib,lid=5;b:link=ib,lid=5", "the LID 5 is already that of \"a\""),
    ("a:link=ib,lid=4,lmc=2;b:link=ib,lid=6", "the LID 6 is already that of \"a\""),
    ("a:link=ib,lid=5,lmc=1", "lid=5: expected a multiple of 2, since lmc=1"),
    ("a:link=ib,lmc=8", "lmc=8: expected 0 to 7"),
    ("a:link=ib,lmc=-1", "lmc=-1: expected a number from 0"),
    ("a:link=ib,flid=0", "flid=0: expected 1 to"),
    ("a:link=ib,subnet=1", "subnet=1: expected a prefix such as"),
    ("a:link=ib,subnet=0xff00000000000000", "expected the prefix of a unicast GID"),
    ("a:link=ib,grh=1", "grh=1: expected on or off"),
    ("a:addr=10.0.0.1/24,grh=on", "found lmc, subnet, flid or grh, which only link=ib has"),
    ("a:addr=10.0.0.1/24,flid=3", "found lmc, subnet, flid or grh, which only link=ib has"),
    ("a:addr=10.0.0.1/24,loopback=no", "loopback=no: expected on or off"),
    ("a:addr=10.0.0.1/24,quirks=", "found \"\", expected one of none, mlx5, bnxt_re"),
];

#[test]
fn each_kind_of_mistake_is_refused_in_its_own_words() {
    for (text, words) in REFUSED {
        let line = line(text);
        assert!(line.contains(words), "{text:?} gave {line:?}, which lacks {words:?}");
    }
}

#[test]
fn too_many_devices_or_addresses_are_refused() {
    let many: Vec<String> = (0..=MAX_DEVICES).map(|i| format!("d{i}:addr=10.0.{i}.1/24")).collect();
    assert!(line(&many.join(";")).contains("at most 128"));
    let many: Vec<String> = (0..=MAX_ADDRS).map(|i| format!("10.0.{i}.1/24")).collect();
    assert!(line(&format!("a:addr={}", many.join("+"))).contains("at most 15 are possible"));
}

#[test]
fn configure_is_as_strict_as_the_variable_and_final() {
    let mut zero = default_devices();
    zero[0].rate = Some(0);
    assert!(configure(zero).is_err());
    let mut inline = default_devices();
    inline[0].max_inline_data = MAX_INLINE + 1;
    assert!(configure(inline).is_err());
    let used = devices().to_vec();
    assert_eq!(configure(used), Ok(()));
    assert!(configure(vec![DeviceSpec::roce("other", &[(IpAddr::from([10, 9, 9, 9]), 24)])]).is_err());
}
