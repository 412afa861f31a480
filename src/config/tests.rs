//! The whole table, without touching the environment.

use std::os::unix::ffi::OsStringExt;

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
        ("MPIB_SOUT_QP", "32"),
        ("MPIB_SUP_QP", "1"),
        ("MPIB_STRICT", "1"),
        ("MPIB_OOB_IF", "=eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo"),
        ("NCCL_SOCKET_FAMILY", "AF_INET6"),
        ("NCCL_IB_HCA", "^mlx5_3:1"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_IB_ADDR_RANGE", "2001:db8::/32"),
        ("NCCL_IB_ROCE_VERSION_NUM", "1"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_IB_RETRY_CNT", "0"),
        ("NCCL_IB_PKEY", "65535"),
        ("NCCL_IB_SL", "15"),
        ("NCCL_IB_TC", "0"),
        ("MPIB_CONNECT_TIMEOUT_MS", "3600000"),
        ("MPIB_PROBE_TIMEOUT_MS", "1"),
        ("NCCL_IB_PCI_RELAXED_ORDERING", "0"),
        ("MPIB_FLUSH", "1"),
        ("MPIB_SRQ_LOW", "1"),
        ("MPIB_SRQ_HIGH", "2"),
        ("MPIB_CTS_SIGNAL_INTERVAL", "256"),
        ("MPIB_AGENT_SOCKET", "/run/mpib/agent"),
        ("MPIB_HINTS", "/run/mpib/hints file"),
        ("MPIB_HINT_POLL_US", "100"),
        ("MPIB_STATS", "0"),
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
    assert_eq!((config.srq_low, config.srq_high, config.probe_timeout), (1, 2, Duration::from_millis(1)));
}

#[test]
fn a_bad_value_of_any_variable_is_an_error_that_names_it() {
    for &variable in Config::VARIABLES {
        for text in ["", "  ", "a b", "-2", "99999999999999999999999", "^", ",", "0x", "+1", "1.5", "a\nb"] {
            // Names of one letter or digit are good names, everything else here is bad everywhere.
            if matches!(text, "-2" | "99999999999999999999999" | "0x" | "+1" | "1.5") && names(variable) {
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
                bad[0].expected.ends_with(", or unset") && !bad[0].to_string().contains('\n'),
                "{}",
                bad[0]
            );
        }
    }
}

fn names(variable: &str) -> bool {
    variable.contains("HCA") || variable.ends_with("_IF") || variable.ends_with("IFNAME")
}

#[test]
fn bounds_are_exact() {
    for (variable, below, above) in [
        ("MPIB_MODE", "-1", "2"),
        ("MPIB_ISLAND_PREFIX_LEN", "-1", "33"),
        ("MPIB_SUP_SHARE", "-1", "1025"),
        ("MPIB_BDP_THRESHOLD", "-1", "1073741825"),
        ("MPIB_SOUT_QP", "0", "33"),
        ("MPIB_SUP_QP", "0", "33"),
        ("MPIB_STRICT", "-1", "2"),
        ("NCCL_IB_GID_INDEX", "-2", "256"),
        ("NCCL_IB_ROCE_VERSION_NUM", "0", "3"),
        ("NCCL_IB_TIMEOUT", "0", "32"),
        ("NCCL_IB_RETRY_CNT", "-1", "8"),
        ("NCCL_IB_PKEY", "-1", "65536"),
        ("NCCL_IB_SL", "-2", "16"),
        ("NCCL_IB_TC", "-2", "256"),
        ("MPIB_CONNECT_TIMEOUT_MS", "0", "3600001"),
        ("MPIB_PROBE_TIMEOUT_MS", "0", "3600001"),
        ("MPIB_SRQ_LOW", "0", "32768"),
        ("MPIB_SRQ_HIGH", "1", "32769"),
        ("MPIB_CTS_SIGNAL_INTERVAL", "0", "257"),
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

#[test]
fn a_socket_has_a_short_name() {
    let path = |n: usize| format!("/{}", "x".repeat(n - 1));
    assert_eq!(read(&[("MPIB_AGENT_SOCKET", &path(107))]).unwrap().agent_socket.as_os_str().len(), 107);
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
    assert_eq!(
        first(&[("MPIB_SRQ_LOW", "512")]),
        "MPIB_SRQ_LOW=\"512\": expected less than MPIB_SRQ_HIGH=512"
    );
    assert!(first(&[("MPIB_SRQ_HIGH", "64")]).starts_with("MPIB_SRQ_LOW=\"64\""));
}

#[test]
fn the_own_interface_filter_goes_first() {
    let variable = |pairs: &[(&str, &str)]| read(pairs).unwrap().oob_filter().map(|f| f.0);
    assert_eq!(variable(&[]), None);
    assert_eq!(variable(&[("NCCL_SOCKET_IFNAME", "a")]), Some("NCCL_SOCKET_IFNAME"));
    assert_eq!(variable(&[("NCCL_SOCKET_IFNAME", "a"), ("MPIB_OOB_IF", "b")]), Some("MPIB_OOB_IF"));
}

/// To mend the page, put what this test prints between its markers.
#[test]
fn the_manual_is_the_table() {
    let page = include_str!("../../docs/configuration.md");
    let table = page
        .split_once("<!-- settings -->\n")
        .and_then(|(_, rest)| rest.split_once("<!-- end of settings -->"));
    let (table, _) = table.expect("docs/configuration.md has its two markers");
    assert!(
        table == Config::manual(),
        "docs/configuration.md must have between its markers:\n{}",
        Config::manual()
    );
}
