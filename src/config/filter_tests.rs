use super::*;
use crate::config::form::has_empty_items;

//= configuration.md: NCCL_IB_HCA
#[test]
fn hca_filters_mean_what_nccl_means() {
    let filter = |text: &str| text.parse::<HcaFilter>().unwrap();
    // Filter, name, port, meant.
    for (text, name, port, meant) in [
        ("mlx5_1", "mlx5_1", 1, true),
        ("mlx5_1", "mlx5_10", 1, true),
        ("=mlx5_1", "mlx5_10", 1, false),
        ("=mlx5_1", "mlx5_1", 2, true),
        ("=mlx5_1:2", "mlx5_1", 1, false),
        ("mlx5_0:1,mlx5_1:2", "mlx5_1", 2, true),
        ("mlx5_0:1,mlx5_1:2", "mlx5_1", 1, false),
        ("^mlx5_0", "mlx5_0", 1, false),
        ("^mlx5_0", "rxe0", 1, true),
        ("^=mlx5_1", "mlx5_10", 1, true),
        ("^=mlx5_1:1", "mlx5_1", 2, true),
        ("^=mlx5_1:1, rxe0", "rxe0", 3, false),
    ] {
        assert_eq!(filter(text).matches(name, port), meant, "{text} {name}:{port}");
        assert_eq!(filter(text).names(), !text.starts_with('^'), "{text}");
    }
}

#[test]
fn the_first_item_for_a_port_gives_rail_and_plane() {
    for (text, name, port, ids) in [
        ("a:1:3:4,b:1:5", "a", 1, (Some(3), Some(4))),
        ("a:1:3:4,b:1:5", "b", 1, (Some(5), None)),
        ("a:1:3:4,b:1:5", "a", 2, (None, None)),
        ("=a:1:3", "ab", 1, (None, None)),
        ("a:1:3", "ab", 1, (Some(3), None)),
        ("a,a:1:3", "a", 1, (None, None)),
        ("^b:1:3", "a", 1, (None, None)),
        ("^b:1:3", "b", 1, (None, None)),
    ] {
        assert_eq!(text.parse::<HcaFilter>().unwrap().ids(name, port), ids, "{text} {name}:{port}");
    }
}

#[test]
fn interface_filters_rank_by_the_order_of_their_items() {
    let filter = |text: &str| text.parse::<NameFilter>().unwrap();
    for (text, name, rank) in [
        ("eth1,eth0", "eth0", Some(1)),
        ("eth1,eth0", "eth1", Some(0)),
        ("eth", "eth5", Some(0)),
        ("eth", "ib0", None),
        ("=eth", "eth5", None),
        ("^docker,lo", "lo", None),
        ("^docker,lo", "docker0", None),
        ("^docker,lo", "eth0", Some(0)),
        ("eth0:1", "eth0:1", Some(0)),
    ] {
        assert_eq!(filter(text).rank(name), rank, "{text} {name}");
    }
}

#[test]
fn texts_come_back_as_written() {
    for text in ["mlx5_0", "=mlx5_0:1,mlx5_1", "^=a:255", "^a,b", "a:1:0,b:2:32767:3"] {
        assert_eq!(text.parse::<HcaFilter>().unwrap().to_string(), text);
    }
    for text in ["mlx5_0", "mlx5_0:2"] {
        assert_eq!(text.parse::<HcaName>().unwrap().to_string(), text);
    }
}

#[test]
fn what_is_not_a_name_is_refused() {
    for text in
        ["", "a:", "a:0", "a:256", "a:+1", "a:x", ":1", "a:1:2", "a/b", "a b", "a\n", "é", "^a", "=a", "a,b"]
    {
        assert!(text.parse::<HcaName>().is_err(), "{text:?}");
    }
    for text in ["", "^", "=", "^=", ",", "^=, ,", "=^a", "^^a", "a,^b", "a:0", "a:0:2", "a::2"] {
        assert!(text.parse::<HcaFilter>().is_err(), "{text:?}");
    }
    for text in ["a:1:", "a:1:x", "a:1:-1", "a:1:32768", "a:1:2:", "a:1:2:3:", "a:1:2:3:4", ":1:2"] {
        assert!(text.parse::<HcaFilter>().is_err(), "{text:?}");
    }
    for text in ["", "^", ",", "a/b", "=^a"] {
        assert!(text.parse::<NameFilter>().is_err(), "{text:?}");
    }
    assert!("x".repeat(64).parse::<HcaName>().is_err());
}

#[test]
fn speeds_are_of_ports_and_have_bounds() {
    let speeds: RailSpeeds = "a:32000,b:2:1,b:1:100000000".parse().unwrap();
    for (hca, port, speed) in
        [("a", 1, Some(32_000)), ("a", 7, Some(32_000)), ("b", 2, Some(1)), ("b", 3, None), ("c", 1, None)]
    {
        assert_eq!(speeds.of(hca, port), speed, "{hca}:{port}");
    }
    assert_eq!(speeds.to_string(), "a:32000,b:2:1,b:1:100000000");
    for text in ["", "1", "a", "a:0", "a:100000001", "a:x", "a:1,a:2", "a:1:5,a:6", "a:1:2:3"] {
        assert!(text.parse::<RailSpeeds>().is_err(), "{text:?}");
    }
}

#[test]
fn ports_that_may_be_the_same_are_the_same() {
    let hca = |text: &str| text.parse::<HcaName>().unwrap();
    assert!(
        hca("a").same_port(&hca("a")) && hca("a").same_port(&hca("a:2")) && hca("a:2").same_port(&hca("a:2"))
    );
    assert!(!hca("a:1").same_port(&hca("a:2")) && !hca("a").same_port(&hca("b")));
}

//= from-net-ib.md: empty items of lists are skipped
#[test]
fn empty_items_of_lists_are_skipped() {
    for (text, means) in [("a,", "a"), (",a", "a"), ("a,,b", "a,b"), ("^=a, ,b,", "^=a,b"), ("=,a:1", "=a:1")]
    {
        assert_eq!(text.parse::<HcaFilter>().unwrap().to_string(), means, "{text:?}");
        assert!(has_empty_items(text) && !has_empty_items(means), "{text:?}");
    }
    assert_eq!("^eth0,veth,".parse::<NameFilter>().unwrap().to_string(), "^eth0,veth");
    assert_eq!(",a:5,,b:1:6,".parse::<RailSpeeds>().unwrap().to_string(), "a:5,b:1:6");
}

#[test]
fn the_item_that_does_not_fit_is_named() {
    fn why<T: FromStr<Err = NotOfThisForm> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().unwrap_err().item.unwrap()
    }
    assert_eq!(why::<HcaFilter>("a,b:x,c"), "its item \"b:x\" does not fit");
    assert_eq!(why::<HcaFilter>("^=a,^=b"), "its item \"^=b\" does not fit");
    assert_eq!(why::<NameFilter>("eth0,a/b"), "its item \"a/b\" does not fit");
    assert_eq!(why::<RailSpeeds>("a:5,b"), "its item \"b\" does not fit");
    assert_eq!(why::<RailSpeeds>("a:1:5,b:7,a:6"), "its item \"a:6\" names a:1 a second time");
    assert_eq!(why::<HcaFilter>("^,"), "it has no item");
}

#[test]
fn an_item_that_hits_more_than_it_spells_out_is_broad() {
    let ports = [("a1", 1), ("a1", 2), ("a10", 1), ("b", 1), ("a11", 2)];
    for (text, expected) in [
        ("a1", Some("a1: a1 a10 a11")),
        ("a1:1", Some("a1:1: a1 a10")),
        ("^a1:2,b", Some("a1:2: a1 a11")),
        ("a1,a10", Some("a1: a1 a10 a11")),
        ("a1,a10,a11", None),
        ("=a1", None),
        ("a", None),
        ("b,a10", None),
    ] {
        let filter: HcaFilter = text.parse().unwrap();
        let found = filter.broad(&ports);
        let found: Vec<_> = found.iter().map(|b| format!("{}: {}", b.item, b.names.join(" "))).collect();
        assert_eq!(found.first().map(String::as_str), expected, "{text}");
    }
    let filter: NameFilter = "bond0,lo".parse().unwrap();
    assert_eq!(
        filter.broad(&["lo", "bond0.2093", "bond0", "bond0"]),
        [Broad { item: "bond0".into(), whole: "bond0", names: vec!["bond0", "bond0.2093"] }]
    );
    assert_eq!(filter.exact().to_string(), "=bond0,lo");
    let before: HcaFilter = "a:1:3:4".parse().unwrap();
    assert_eq!(HcaFilter::only(&[("b", 2), ("a1", 1)], Some(&before)).to_string(), "=b:2,a1:1:3:4");
}
