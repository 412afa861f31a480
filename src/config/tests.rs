//! The whole table, without touching the environment.

use std::os::unix::ffi::OsStringExt;

use mpib_test_env::stands_in_the_guide;

use super::unsupported::{self, Other, without_effect};
use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<Config> {
    Config::read(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.into()))
}

fn bad(pairs: &[(&str, &str)]) -> Vec<BadSetting> {
    match read(pairs) {
        Err(Error::Config(bad)) => bad,
        other => panic!("{pairs:?} gives {other:?}"),
    }
}

#[test]
fn nothing_set_is_the_default() {
    assert_eq!(read(&[]).unwrap(), Config::default());
    assert!(Config::default().differing().is_empty());
}

#[test]
fn every_variable_is_read() {
    let settings = [
        ("MPIB_HCA_SOUT", "mlx5_0"),
        ("MPIB_HCA_SUP", "mlx5_1:2"),
        ("MPIB_MODE", "1"),
        ("MPIB_ISLAND_PREFIX_LEN", "0"),
        ("MPIB_SUP_SHARE", "1024"),
        ("MPIB_BDP_THRESHOLD", "65536"),
        ("MPIB_SPLIT", "speed"),
        ("MPIB_SPLIT_MIN", "0"),
        ("MPIB_SOUT_QP", "32"),
        ("MPIB_SUP_QP", "2"),
        ("MPIB_STRICT", "1"),
        ("MPIB_ROUTE", "strict"),
        ("MPIB_OOB_IF", "=eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo"),
        ("NCCL_SOCKET_FAMILY", "AF_INET6"),
        ("NCCL_IB_HCA", "^mlx5_3:1"),
        ("NCCL_IB_DEVICE_PCI_ORDER", "0"),
        ("NCCL_IB_MERGE_VFS", "0"),
        ("NCCL_IB_MERGE_NICS", "0"),
        ("MPIB_RAIL_SPEED", "mlx5_0:400000,mlx5_1:2:1"),
        ("MPIB_LATENCY_US", "12"),
        ("NCCL_IB_QPS_PER_CONNECTION", "128"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
        ("NCCL_IB_AR_THRESHOLD", "0"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "255"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_IB_ADDR_RANGE", "2001:db8::/32"),
        ("NCCL_IB_ROCE_VERSION_NUM", "1"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_IB_RETRY_CNT", "0"),
        ("NCCL_IB_PKEY", "65535"),
        ("NCCL_IB_PKEY_VALUE", "32769"),
        ("NCCL_IB_SL", "15"),
        ("NCCL_IB_TC", "0"),
        ("NCCL_IB_FIFO_TC", "255"),
        ("NCCL_IB_USE_INLINE", "1"),
        ("NCCL_IB_ECE_ENABLE", "0"),
        ("NCCL_IB_MQP_RETRY_CNT", "0"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "7"),
        ("NCCL_IB_MQP_RETRY_ALL", "1"),
        ("MPIB_FAILOVER", "0"),
        ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"),
        ("MPIB_FAILOVER_WAIT", "3600"),
        ("MPIB_STALL_MS", "3600000"),
        ("NCCL_IB_RETURN_ASYNC_EVENTS", "0"),
        ("MPIB_CONNECT_TIMEOUT_MS", "3600000"),
        ("MPIB_PEER_TIMEOUT_MS", "1000"),
        ("MPIB_PROBE_TIMEOUT_MS", "1"),
        ("NCCL_IB_PCI_RELAXED_ORDERING", "0"),
        ("NCCL_IB_DATA_DIRECT", "2"),
        ("MPIB_FLUSH", "1"),
        ("MPIB_RMA", "0"),
        ("MPIB_INLINE", "64"),
        ("MPIB_AGENT_SOCKET", "/run/mpib/agent"),
        ("MPIB_HINTS", "/run/mpib/hints file"),
        ("MPIB_HINT_POLL_US", "100"),
        ("MPIB_REACH_FILE", "/run/mpib/reach"),
        ("MPIB_STATS", "0"),
        ("MPIB_JOB", "run-7"),
        ("MPIB_AGENT_UID", "0"),
    ];
    assert_eq!(settings.map(|s| s.0), Config::VARIABLES, "the list above is the table");
    let config = read(&settings).unwrap();
    // What was read is what is shown, so each variable reached its field.
    assert_eq!(config.differing(), settings.map(|(name, text)| format!("{name}={text}")));
    assert_eq!(config.hca_sup, Some(HcaName { name: "mlx5_1".into(), port: Some(2) }));
    assert_eq!(
        (config.sup_share, config.strict, &config.gid_index, config.tc),
        (Some(1024), true, &GidIndex::All(3), Some(0))
    );
    assert_eq!((config.inline, config.probe_timeout), (64, Duration::from_millis(1)));
}

#[test]
fn a_bad_value_of_any_variable_is_an_error_that_names_it() {
    for &variable in Config::VARIABLES {
        for text in ["", "  ", "a b", "-2", "99999999999999999999999", "^", ",", "0x", "+1", "1.5", "a\nb"] {
            // Names of one letter or digit are good names, everything else here is bad everywhere.
            if matches!(text, "-2" | "99999999999999999999999" | "0x" | "+1" | "1.5") && names(variable) {
                continue;
            }
            if text == "-2" && ["NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_AR_THRESHOLD"].contains(&variable) {
                continue;
            }
            if text.is_empty() && variable.starts_with("NCCL_") {
                assert_eq!(read(&[(variable, text)]).unwrap(), Config::default(), "{variable}");
                continue;
            }
            let bad = bad(&[(variable, text)]);
            assert_eq!(
                (bad.len(), bad[0].variable, bad[0].found.as_str()),
                (1, variable, format!("{text:?}").as_str())
            );
            assert!(
                bad[0].expected.contains(", or unset") && !bad[0].to_string().contains('\n'),
                "{}",
                bad[0]
            );
        }
    }
}

fn names(variable: &str) -> bool {
    let ends = |end| variable.ends_with(end);
    variable.contains("HCA") || ends("_IF") || ends("IFNAME") || ends("_JOB")
}

#[test]
fn bounds_are_exact() {
    for (variable, below, above) in [
        ("MPIB_MODE", "-1", "2"),
        ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "-1", "256"),
        ("MPIB_ISLAND_PREFIX_LEN", "-1", "33"),
        ("MPIB_SUP_SHARE", "-1", "1025"),
        ("MPIB_BDP_THRESHOLD", "-1", "1073741825"),
        ("MPIB_SOUT_QP", "0", "33"),
        ("MPIB_SUP_QP", "0", "33"),
        ("MPIB_STRICT", "-1", "2"),
        ("NCCL_IB_DEVICE_PCI_ORDER", "-1", "2"),
        ("NCCL_IB_MERGE_VFS", "-1", "2"),
        ("NCCL_IB_MERGE_NICS", "-1", "2"),
        ("NCCL_IB_QPS_PER_CONNECTION", "0", "129"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "-1", "2"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "-1", "2"),
        ("NCCL_IB_AR_THRESHOLD", "-1", "1073741825"),
        ("NCCL_IB_GID_INDEX", "-2", "256"),
        ("NCCL_IB_ROCE_VERSION_NUM", "0", "3"),
        ("NCCL_IB_TIMEOUT", "-1", "32s"),
        ("NCCL_IB_RETRY_CNT", "-1", "8x"),
        ("NCCL_IB_PKEY", "-1", "65536"),
        ("NCCL_IB_SL", "-2", "16"),
        ("NCCL_IB_TC", "-2", "256"),
        ("NCCL_IB_FIFO_TC", "-2", "256"),
        ("NCCL_IB_PKEY_VALUE", "-2", "65536"),
        ("NCCL_IB_MQP_RETRY_CNT", "-1", "1001"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "-1", "60001"),
        ("NCCL_IB_MQP_RETRY_ALL", "-1", "2"),
        ("MPIB_STALL_MS", "-1", "3600001"),
        ("MPIB_CONNECT_TIMEOUT_MS", "0", "3600001"),
        ("MPIB_PEER_TIMEOUT_MS", "999", "3600001"),
        ("MPIB_FAILOVER", "-1", "2"),
        ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "-1", "2"),
        ("MPIB_FAILOVER_WAIT", "-1", "3601"),
        ("MPIB_PROBE_TIMEOUT_MS", "0", "3600001"),
        ("NCCL_IB_DATA_DIRECT", "-1", "3"),
        ("MPIB_INLINE", "-1", "1025"),
        ("MPIB_AGENT_SOCKET", "run/agent", "/run/"),
        ("MPIB_HINTS", "hints", "/"),
        ("MPIB_HINT_POLL_US", "99", "60000001"),
        ("MPIB_AGENT_UID", "-1", "4294967295"),
        ("NCCL_SOCKET_FAMILY", "AF_INET4", "af_inet"),
    ] {
        for text in [below, above] {
            assert_eq!(bad(&[(variable, text)])[0].variable, variable, "{text}");
        }
    }
}

//= configuration.md: MPIB_FAILOVER
//= configuration.md: MPIB_STRICT
//= configuration.md: NCCL_IB_RESILIENCY_PORT_FAILOVER
//= failover.md: MPIB_STRICT=1 turns failover off unless a setting requests it
#[test]
fn failover_is_on_unless_a_setting_turns_it_off() {
    let (ours, theirs) = ("MPIB_FAILOVER", "NCCL_IB_RESILIENCY_PORT_FAILOVER");
    let (strict, lenient) = (("MPIB_STRICT", "1"), ("MPIB_STRICT", "0"));
    for (settings, on) in [
        (&[][..], true),
        (&[(theirs, "0")], false),
        (&[(theirs, "1")], true),
        (&[(theirs, "")], true),
        (&[(ours, "0")], false),
        (&[(ours, "1"), (theirs, "0")], true),
        (&[(ours, "0"), (theirs, "1")], false),
        (&[strict], false),
        (&[lenient], true),
        (&[strict, (ours, "1")], true),
        (&[strict, (theirs, "1")], true),
        (&[strict, (theirs, "")], false),
        (&[strict, (ours, "0"), (theirs, "1")], false),
    ] {
        assert_eq!(read(settings).unwrap().failover, on, "{settings:?}");
    }
}

/// Launch scripts have such values, with which NCCL's own transport runs.
//= configuration.md: NCCL_IB_RETRY_CNT
//= configuration.md: NCCL_IB_TIMEOUT
#[test]
fn retries_and_timeouts_out_of_bounds_are_cut_with_a_warning() {
    for (variable, text, used, bounds) in [
        ("NCCL_IB_RETRY_CNT", "8", 7, "0 to 7"),
        ("NCCL_IB_RETRY_CNT", "15", 7, "0 to 7"),
        ("NCCL_IB_RETRY_CNT", "300", 7, "0 to 7"),
        ("NCCL_IB_TIMEOUT", "0", 31, "1 to 31"),
        ("NCCL_IB_TIMEOUT", " 0x20", 31, "1 to 31"),
    ] {
        let config = read(&[(variable, text)]).unwrap();
        assert_eq!(if used == 7 { config.retry_cnt } else { config.timeout }, used, "{variable}={text}");
        let mut found = config.findings(std::iter::empty());
        // An adapter that never gives up is another finding.
        found.retain(|finding| finding.degraded);
        let expected =
            format!("{variable}={text:?}: expected a whole number from {bounds}, or unset; {used} is used");
        assert_eq!(found, [Finding { degraded: true, text: expected }]);
        let strict = bad(&[(variable, text), ("MPIB_STRICT", "1")]);
        assert_eq!((strict.len(), strict[0].variable), (1, variable));
        assert!(strict[0].expected.ends_with(&format!("{bounds}, or unset")), "{}", strict[0]);
    }
    let within = read(&[("NCCL_IB_RETRY_CNT", "0"), ("NCCL_IB_TIMEOUT", "1")]).unwrap();
    assert_eq!(within.findings(std::iter::empty()), []);
    let within = read(&[("NCCL_IB_RETRY_CNT", "7"), ("NCCL_IB_TIMEOUT", "31")]).unwrap();
    assert_eq!((within.retry_cnt, within.timeout, within.substituted), (7, 31, Vec::new()));
}

#[test]
fn a_socket_has_a_short_name() {
    let path = |n: usize| format!("/{}", "x".repeat(n - 1));
    assert_eq!(
        read(&[("MPIB_AGENT_SOCKET", &path(107))]).unwrap().agent_socket.unwrap().as_os_str().len(),
        107
    );
    assert_eq!(bad(&[("MPIB_AGENT_SOCKET", &path(108))])[0].variable, "MPIB_AGENT_SOCKET");
}

#[test]
fn numbers_may_be_hexadecimal_and_have_space_around() {
    assert_eq!(read(&[("NCCL_IB_TC", " 0x6A\n")]).unwrap().tc, Some(106));
    assert_eq!(read(&[("NCCL_IB_TC", "-1")]).unwrap().tc, None);
    assert_eq!(read(&[("MPIB_SUP_SHARE", "010")]).unwrap().sup_share, Some(10));
}

#[test]
fn the_error_says_what_stands_there_and_what_may() {
    let text = read(&[("MPIB_SUP_SHARE", "half"), ("MPIB_STRICT", "yes")]).unwrap_err().to_string();
    assert_eq!(
        text,
        "MPIB_SUP_SHARE=\"half\": expected a whole number from 0 to 1024, or unset; \
         MPIB_STRICT=\"yes\": expected 0 or 1, or unset"
    );
    let long = bad(&[("MPIB_STRICT", &"x".repeat(5000))]);
    assert_eq!(long[0].found.chars().count(), 123, "120 characters, a dot, two quotes");
    let raw = Config::read(|name| (name == "MPIB_HCA_SOUT").then(|| OsString::from_vec(vec![b'a', 0xff])));
    assert!(raw.unwrap_err().to_string().starts_with("MPIB_HCA_SOUT=\"a\u{fffd}\": expected `name[:port]`"));
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let first = |pairs: &[(&str, &str)]| bad(pairs)[0].to_string();
    assert!(
        first(&[("MPIB_HCA_SOUT", "a")])
            .starts_with("MPIB_HCA_SUP=(unset): expected an HCA, since MPIB_HCA_SOUT=a")
    );
    assert!(
        first(&[("MPIB_HCA_SUP", "a")])
            .starts_with("MPIB_HCA_SOUT=(unset): expected an HCA, since MPIB_HCA_SUP=a")
    );
    assert!(
        first(&[("MPIB_HCA_SUP", "a:1"), ("MPIB_HCA_SOUT", "a:1")])
            .starts_with("MPIB_HCA_SUP=\"a:1\": expected another")
    );
    assert!(read(&[("MPIB_HCA_SUP", "a:1"), ("MPIB_HCA_SOUT", "a:2")]).is_ok());
}

#[test]
fn the_own_interface_filter_goes_first() {
    let variable = |pairs: &[(&str, &str)]| read(pairs).unwrap().oob_filter().map(|f| f.0);
    assert_eq!(variable(&[]), None);
    assert_eq!(variable(&[("NCCL_SOCKET_IFNAME", "a")]), Some("NCCL_SOCKET_IFNAME"));
    assert_eq!(variable(&[("NCCL_SOCKET_IFNAME", "a"), ("MPIB_OOB_IF", "b")]), Some("MPIB_OOB_IF"));
}

#[test]
fn the_manual_is_the_table() {
    stands_in_the_guide("configuration.md", "settings", &Config::manual());
}

/// Makes the second table in `docs/guide/configuration.md`.
fn others_manual() -> String {
    let mut out =
        String::from("| variable, level, silent values | why it has no effect on this plugin |\n|---|---|\n");
    for Other { variable, as_is, missed, why } in unsupported::OTHERS.iter().chain(unsupported::OBSOLETE) {
        let level = if *missed { "warning" } else { "info" };
        let silent = if as_is.is_empty() { String::new() } else { format!(", {}", as_is.join(", ")) };
        out += &format!("| `{variable}` {level}{silent} | {why} |\n");
    }
    out
}

#[test]
fn the_manual_has_every_variable_without_effect() {
    stands_in_the_guide("configuration.md", "without effect", &others_manual());
}

/// Every `NCCL_IB_` variable of NCCL 2.32. Each is either a setting or one of `OTHERS`.
const NCCL_IB: &[&str] = &[
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_DATA_DIRECT",
    "NCCL_IB_DEVICE_PCI_ORDER",
    "NCCL_IB_DISABLE",
    "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_EVENT_BASED_LB",
    "NCCL_IB_EVENT_BASED_LB_REMOTE",
    "NCCL_IB_FIFO_TC",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_MERGE_VFS",
    "NCCL_IB_MQP_RETRY_ALL",
    "NCCL_IB_MQP_RETRY_CNT",
    "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
    "NCCL_IB_OOO_RQ",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_PKEY",
    "NCCL_IB_PKEY_VALUE",
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_QUERY_PORT_SPEED",
    "NCCL_IB_RAIL_POLICY",
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_RETURN_ASYNC_EVENTS",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
    "NCCL_IB_SL",
    "NCCL_IB_SORT_MERGE_NICS",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_SUBNET_AWARE_ROUTING",
    "NCCL_IB_SUBNET_PREFIX_LEN",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_USE_INLINE",
    "NCCL_IB_WARN_RAIL_LOCAL",
    "NCCL_IB_WQE_LATENCY_REPORT",
    "NCCL_IB_WQE_LATENCY_THRESHOLD_NS",
];

#[test]
fn each_variable_of_nccls_transport_is_either_read_or_explained() {
    let read = Config::VARIABLES.iter().filter(|v| v.starts_with("NCCL_IB_"));
    let others = unsupported::OTHERS.iter().map(|o| o.variable).filter(|v| v.starts_with("NCCL_IB_"));
    let mut all: Vec<&str> = read.copied().chain(others).collect();
    all.sort_unstable();
    assert_eq!(all, NCCL_IB, "a setting is none of OTHERS");
}

//= from-net-ib.md: empty items of lists are skipped
#[test]
fn lists_with_empty_items_are_read_and_reported() {
    let lists = [
        ("MPIB_OOB_IF", ",eth0"),
        ("NCCL_SOCKET_IFNAME", "eth0,"),
        ("NCCL_IB_HCA", "mlx5_0,,mlx5_1"),
        ("MPIB_RAIL_SPEED", "mlx5_0:5,"),
        ("NCCL_IB_GID_INDEX", ",mlx5_0:3"),
    ];
    let config = read(&lists).unwrap();
    let found: Vec<_> =
        config.findings(std::iter::empty()).into_iter().map(|f| (f.degraded, f.text)).collect();
    let line = |(name, _): (&str, &str)| (false, format!("{name} has empty items, which are skipped"));
    assert_eq!(found, lists.map(line));
    assert_eq!(config.differing()[2], "NCCL_IB_HCA=mlx5_0,mlx5_1");
    // What does not fit is named among the others.
    let wrong =
        [("NCCL_IB_HCA", "mlx5_0,,mlx5_1:x"), ("MPIB_RAIL_SPEED", "a:5,a:1:6"), ("NCCL_IB_GID_INDEX", "a")];
    let ends =
        ["its item \"a:1:6\" names a a second time", "its item \"mlx5_1:x\" does not fit", ", or unset"];
    let bad = bad(&wrong).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(bad.iter().all(|text| ends.iter().any(|end| text.ends_with(end))), "{bad:?}");
}

fn vain(pairs: &[(&str, &str)]) -> Vec<(bool, String)> {
    let env = pairs.iter().map(|(name, value)| (name.into(), value.into()));
    without_effect(env).into_iter().map(|f| (f.degraded, f.text)).collect()
}

#[test]
fn unknown_variables_are_reported_with_the_nearest_name() {
    for (name, nearest) in [
        ("MPIB_SUPSHARE", "MPIB_SUP_SHARE"),
        ("MPIB_HCA_SOTU", "MPIB_HCA_SOUT"),
        ("MPIB_STRICTLY", "MPIB_STRICT"),
        ("MPIB_GID_INDEX", "NCCL_IB_GID_INDEX"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_IB_TIME_OUT", "NCCL_IB_TIMEOUT"),
    ] {
        let found = vain(&[(name, "1")]);
        assert!(matches!(&found[..], [(true, _)]), "{found:?}");
        assert!(
            found[0].1.starts_with(&format!("{name}=\"1\" has no effect: "))
                && found[0].1.ends_with(&format!("the nearest name is {nearest}")),
            "{found:?}"
        );
    }
    for (name, far) in
        [("MPIB_", true), ("MPIB_FOO", true), ("NCCL_IB_CUDA_SUPPORTED", true), ("MPIB_MODES", false)]
    {
        assert_eq!(!vain(&[(name, "1")])[0].1.contains("nearest"), far, "{name}");
    }
    // As for every setting, an empty one of NCCL's is none, and one of ours is.
    assert_eq!(vain(&[("NCCL_IB_FOO", "")]), []);
    assert_eq!(vain(&[("MPIB_FOO", "")]).len(), 1);
    // Of others.
    assert_eq!(
        vain(&[("NCCL_IBEXT_DISABLE", "1"), ("MPIBX", "1"), ("NCCL_NET", "x"), ("mpib_mode", "7")]),
        []
    );
    let long = &vain(&[(&format!("MPIB_{}", "x".repeat(100_000)), &"y".repeat(100_000))])[0].1;
    assert!(long.len() < 400 && !long.contains('\n'), "{} bytes", long.len());
}

#[test]
fn ignored_nccl_variables_are_reported_unless_redundant() {
    for Other { variable, as_is, missed, why } in unsupported::OTHERS.iter().chain(unsupported::OBSOLETE) {
        let found = vain(&[(variable, "7\n")]);
        assert_eq!(found, [(*missed, format!("{variable}=\"7\\n\" has no effect on this plugin: {why}"))]);
        for value in *as_is {
            assert_eq!(vain(&[(variable, value), ("PATH", "x")]), [], "{variable}={value}");
        }
    }
    assert!(Config::VARIABLES.iter().all(|v| vain(&[(v, "1")]).is_empty()), "what is read has its effect");
}
