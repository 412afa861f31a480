//! Invalid settings: each variable of the manual, in each way, through the tables. The tests check
//! the code and the line in NCCL's log.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{LOG, take_warning, take_warnings};
use mpib_tests::pair::{connect, init};
use mpib_tests::paths::workspace;
use mpib_tests::table::{TABLES, Table, newest};
use mpib_tests::{here, isolated, mpib, set, two_adapters};
use nccl_net_mpib_agent_iface::environment::WITHOUT_HOST;

/// Variable and form of each section of the manual: a new setting cannot be forgotten here.
fn manual() -> Vec<(&'static str, String)> {
    let page = include_str!("../../../docs/guide/configuration.md");
    let (_, rest) = page.split_once("<!-- settings -->\n").unwrap();
    let (sections, _) = rest.split_once("<!-- end of settings -->").unwrap();
    let section = |section: &'static str| {
        let (variable, rest) = section.split_once("\n\n").unwrap();
        let line = rest.split("\n\n").next().unwrap().replace('\n', " ");
        (variable, line.rsplit_once("; default ").unwrap().0.to_owned())
    };
    sections.split("### ").skip(1).map(section).collect()
}

/// The bounds in "a whole number from 1 to 31".
fn bounds(form: &str) -> Option<(i64, i64)> {
    let (low, rest) = form.split_once("whole number from ")?.1.split_once(" to ")?;
    let high = rest.split(' ').next()?;
    Some((low.parse().unwrap(), high.parse().unwrap()))
}

const HUGE: &str = "99999999999999999999999999";

/// Texts that are not of a form: words, overflow, negative, garbage behind.
fn misfits(variable: &str, form: &str) -> Vec<String> {
    let own = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect();
    if let Some((low, high)) = bounds(form) {
        let mut texts: Vec<String> = own(&["many", HUGE, "-3", "-", "0x", "1.5", "1e3", "1,2", "+1", "٣"]);
        if !form.starts_with("-2 or") {
            texts.push("-2".into());
        }
        // -1 has a meaning in some.
        let below = if form.starts_with("-1 or") { -2 } else { low - 1 };
        texts.extend([
            below.to_string(),
            (high + 1).to_string(),
            format!("{low}x"),
            format!("{high} {high}"),
        ]);
        texts.extend([format!("0x{:x}", high + 1), format!("{high}\u{7f}"), (1u64 << 32).to_string()]);
        return texts;
    }
    match form {
        "-2 or 0 or 1" => own(&["yes", "true", HUGE, "-1", "-3", "2", "01", "1x", "0 1", "auto"]),
        "0 or 1" => own(&["yes", "true", HUGE, "-1", "2", "01", "1x", "0 1"]),
        "any, strict, prefer-subnet or subnet" => {
            own(&["Any", "prefer_subnet", "subnets", "any strict", "any,subnet", "0", "-1", HUGE])
        }
        "speed, measured or share" => own(&["Speed", "measure", "shares", "speed,share", "1", "-1", HUGE]),
        "AF_INET or AF_INET6" => own(&["inet", "af_inet", "AF_INET4", "AF_INET6x", "2", "-1", HUGE]),
        "`name[:port]`, as ibv_devices lists it" => {
            let long = "n".repeat(64);
            own(&[
                "a b", "a:", "a:x", "a:0", "a:-1", "a:256", "a:1x", "a:+1", ":1", "a:1:2", "a,b", "^a", &long,
            ])
        }
        _ if form.starts_with("`[^][=]name[:port[:rail[:plane]]],…`") => own(&[
            "^",
            "=",
            "^=",
            ",",
            "a b",
            "a:",
            "a:0",
            "a:256",
            "a:1x",
            "=^a",
            "a/b",
            "a:1:",
            "a:1:x",
            "a:1:-1",
            "a:1:2:32768",
            "a:1:2:3:4",
        ]),
        _ if form.starts_with("`name[:port]:number,…` with each port named once and numbers") => own(&[
            "a",
            "5",
            "a:",
            "a:0",
            "a:x",
            "a:-1",
            "a:1.5",
            "a:1,a:2",
            "a:100000001",
            "a:1:2:3",
            "a b:1",
            HUGE,
        ]),
        _ if form.starts_with("`[^][=]interface,…`") => {
            own(&["^", "=", ",", "a b", "=^a", "a/b", &"n".repeat(64)])
        }
        _ if form.starts_with("a name without blanks") => {
            own(&["a b", "-a", "_", ".a", "a\u{7f}", &"n".repeat(41)])
        }
        _ if form.starts_with("an absolute path of a file, at most ") => {
            let limit: usize = form.split(' ').rev().nth(1).unwrap().parse().unwrap();
            let mut texts = own(&["agent.sock", "./hints", "~/hints", "/", "/tmp/", HUGE, "-1"]);
            // A longer one is not repeated whole.
            if limit < 120 {
                texts.push(format!("/{}", "n".repeat(limit)));
            }
            texts
        }
        _ if form.starts_with("an IPv4 or IPv6 address and a prefix length") => own(&[
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/8x",
            "10.0.0.0/+8",
            "10.0.0/8",
            "/8",
            "::/129",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/8,11.0.0.0/8",
            "host/8",
            HUGE,
            "-1",
        ]),
        _ => panic!("{variable}: tell this test which values are not {form:?}"),
    }
}

/// `init` with one setting fails, and says which, what and what else it may be.
fn refused(table: &Table, variable: &str, value: &OsStr, form: &str) {
    set(variable, Some(value));
    let (rc, ctx) = table.init();
    set(variable, None::<&str>);
    let (version, lines) = (table.version(), take_warnings());
    assert_eq!((rc, ctx.is_null()), (InvalidUsage, true), "v{version} {variable}={value:?}: {lines:?}");
    let [line] = &lines[..] else { panic!("v{version} {variable}={value:?}: not one line but {lines:?}") };
    let found: String = value.to_string_lossy().chars().take(120).collect();
    // The log shows no sign that could end or change a line.
    let printable = |text: String| mpib_proto::printable(&text).to_string();
    let expected = printable(format!("NET/MPIB : init: {variable}={found:?}: expected {form}, or unset"));
    // A list's error names the item.
    let rest =
        line.strip_prefix(&expected).unwrap_or_else(|| panic!("v{version} {variable}={value:?}: {line}"));
    assert!(rest.is_empty() || rest.starts_with("; it"), "v{version}: {rest}");
}

//= configuration.md: every variable refuses values that do not fit its form
#[test]
fn every_variable_refuses_malformed_values() {
    isolated(here!(), &[], || {
        let variables = manual();
        assert!(variables.len() >= 19, "{variables:?}");
        for (i, (variable, form)) in variables.into_iter().enumerate() {
            // The tables take turns: each variable is tried with old and new ones.
            let table = |n: usize| TABLES[(i + n) % TABLES.len()];
            let cut = ["NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"].contains(&variable);
            let mut texts = misfits(variable, &form);
            // Numbers are cut for these: see the next test.
            texts
                .retain(|text| !cut || !text.trim_start_matches("0x").bytes().all(|b| b.is_ascii_hexdigit()));
            for (n, text) in texts.iter().enumerate() {
                refused(table(n), variable, text.as_ref(), &form);
            }
            for bytes in [b"\xff".to_vec(), b"1\xff".to_vec(), b"soft0\xc3".to_vec()] {
                refused(table(0), variable, &OsString::from_vec(bytes), &form);
            }
            for blank in [" ", "\t", "\n", "1\n2", "a\nb"] {
                refused(table(1), variable, blank.as_ref(), &form);
            }
        }
        // No refused value has a lasting effect.
        TABLES.iter().for_each(|table| assert_eq!(table.init().0, Success));
    });
}

//= configuration.md: NCCL_IB_TIMEOUT
//= configuration.md: NCCL_IB_RETRY_CNT
//= adapters.md: A13: retries and timeouts out of range are clamped
#[test]
fn timeouts_and_retries_out_of_bounds_are_cut_or_refused() {
    let env = [("NCCL_IB_TIMEOUT", "0"), ("NCCL_IB_RETRY_CNT", "13")];
    isolated(here!(), &env, || {
        let ctx = init(newest());
        let lines = take_warnings();
        let reported = [
            "NCCL_IB_TIMEOUT=\"0\": expected a whole number from 1 to 31, or unset; 31 is used",
            "NCCL_IB_RETRY_CNT=\"13\": expected a whole number from 0 to 7, or unset; 7 is used",
        ];
        assert_eq!(lines, reported.map(|t| format!("NET/MPIB : {t}")));
        let pair = connect(newest(), ctx, 0);
        let used: Vec<_> = softverbs::qp_attributes().iter().map(|qp| (qp.timeout, qp.retry_cnt)).collect();
        assert!(!used.is_empty() && used.iter().all(|qp| *qp == (31, 7)), "{used:?}");
        pair.close();
        assert_eq!(newest().finalize(ctx), Success);
        set("MPIB_STRICT", Some("1"));
        assert_eq!(newest().init().0, InvalidUsage);
        take_warning(&["NCCL_IB_TIMEOUT=\"0\"", "1 to 31, or unset; NCCL_IB_RETRY_CNT=\"13\"", "0 to 7"]);
    });
}

#[test]
fn an_empty_variable_is_unset_where_nccl_reads_it_and_an_error_where_only_we_do() {
    isolated(here!(), &[], || {
        let (nccl, ours): (Vec<_>, Vec<_>) =
            manual().into_iter().partition(|(variable, _)| variable.starts_with("NCCL_"));
        assert!(!nccl.is_empty() && !ours.is_empty());
        for (i, (variable, form)) in ours.into_iter().enumerate() {
            refused(TABLES[i % TABLES.len()], variable, "".as_ref(), &form);
        }
        for (variable, _) in nccl {
            set(variable, Some(""));
        }
        let ctx = init(newest());
        assert_eq!(newest().devices(), (Success, 2));
        let pair = connect(newest(), ctx, 1);
        pair.message(1000, 1000, 1);
        pair.close();
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    isolated(here!(), &[], || {
        let all = manual();
        all.iter().for_each(|(variable, _)| set(variable, Some("not good\u{1b}[31m")));
        for table in TABLES {
            assert_eq!(table.init().0, InvalidUsage);
            let lines = take_warnings();
            // NCCL cuts a line, with its own beginning, at 1023 bytes.
            assert!(lines.len() > 1 && lines.iter().all(|l| l.len() < 850), "{lines:?}");
            assert!(!lines.iter().any(|l| l.chars().any(char::is_control)), "{lines:?}");
            let text = |l: &String| {
                let l = l.strip_prefix("NET/MPIB : ").unwrap();
                l.trim_start_matches("… ").trim_end_matches(" …").to_owned()
            };
            let whole = lines.iter().map(text).collect::<Vec<_>>().join(" ");
            assert!(whole.starts_with("init: MPIB_HCA_SOUT="), "{lines:?}");
            for (variable, form) in &all {
                let said = format!("{variable}=\"not good\\u{{1b}}[31m\": expected {form}, or unset");
                assert!(whole.contains(&said), "{said}: {lines:?}");
            }
        }
    });
}

#[test]
fn a_long_value_is_cut() {
    isolated(here!(), &[("MPIB_STRICT", &"y".repeat(100_000))], || {
        assert_eq!(newest().init().0, InvalidUsage);
        let lines = take_warnings();
        assert!(lines[0].len() < 300 && lines[0].contains("expected 0 or 1"), "{lines:?}");
    });
}

/// `init` in this environment fails with one line that has all `parts`.
fn contradiction(env: &[(&str, &str)], parts: &[&str]) {
    env.iter().for_each(|(name, value)| set(name, Some(value)));
    for table in [TABLES[0], newest()] {
        assert_eq!(table.init().0, InvalidUsage, "{env:?}");
        take_warning(parts);
    }
    env.iter().for_each(|(name, _)| set(name, None::<&str>));
}

//= configuration.md: errors in several settings are reported together
#[test]
fn contradictory_settings_are_reported_together() {
    isolated(here!(), &[], || {
        let (sout, sup) = ("MPIB_HCA_SOUT", "MPIB_HCA_SUP");
        for (set, missing) in [(sout, sup), (sup, sout)] {
            let (unset, given) = (format!("{missing}=(unset): expected an HCA"), format!("{set}=soft1"));
            contradiction(&[(set, "soft1")], &[&unset, &given, "set both or neither"]);
        }
        for (a, b) in [("soft0", "soft0"), ("soft0:1", "soft0"), ("soft0", "soft0:1"), ("soft0:1", "soft0:1")]
        {
            let (found, expected) =
                (format!("{sup}=\"{b}\""), format!("expected another HCA or port than {sout}={a}"));
            contradiction(&[(sout, a), (sup, b)], &[&found, &expected]);
        }
        contradiction(
            &[(sout, "soft0"), ("MPIB_SPLIT", "share")],
            &["MPIB_HCA_SUP=(unset)", "MPIB_SPLIT=\"share\": expected speed or measured"],
        );
        assert_eq!(newest().init().0, Success);
    });
}

//= configuration.md: interfaces that do not exist fail init
#[test]
fn interfaces_that_do_not_exist_are_an_error_of_init_that_lists_those_that_do() {
    for (variable, filter) in
        [("MPIB_OOB_IF", "=nosuch0,nosuch1"), ("NCCL_SOCKET_IFNAME", "nosuch"), ("MPIB_OOB_IF", "=l")]
    {
        isolated(here!(), &[(variable, filter)], || {
            let (variable, filter) = ["MPIB_OOB_IF", "NCCL_SOCKET_IFNAME"]
                .into_iter()
                .find_map(|v| Some((v, std::env::var(v).ok()?)))
                .unwrap();
            for table in TABLES {
                assert_eq!(table.init().0, InvalidUsage);
                let lines = take_warnings();
                let [line] = &lines[..] else { panic!("{lines:?}") };
                for part in [&format!("init: {variable}=\"{filter}\": expected a filter"), "lo 127.0.0.1/8"] {
                    assert!(line.contains(part), "{part} in {line}");
                }
            }
        });
    }
}

//= configuration.md: quotes that no shell has removed are named
#[test]
fn quotes_are_named_with_the_value_that_was_meant() {
    isolated(here!(), &[], || {
        for (variable, value, meant) in [
            ("NCCL_IB_HCA", "\"soft0\"", "soft0"),
            ("NCCL_IB_HCA", "\"soft0\",\"soft1\"", "soft0,soft1"),
            ("NCCL_IB_HCA", "^'soft1'", "^soft1"),
            ("NCCL_SOCKET_IFNAME", "\"lo\"", "lo"),
            ("MPIB_HCA_SOUT", "'soft0'", "soft0"),
            ("MPIB_RAIL_SPEED", "\"soft0:100\"", "soft0:100"),
            ("NCCL_IB_GID_INDEX", "'soft0:3'", "soft0:3"),
            ("NCCL_IB_TC", "'106'", "106"),
            ("MPIB_AGENT_SOCKET", "\"/run/a\"", "/run/a"),
        ] {
            set(variable, Some(value));
            assert_eq!(newest().init().0, InvalidUsage, "{variable}={value}");
            take_warning(&[&format!("its quotes are part of the value: write {variable}={meant}")]);
            set(variable, None::<&str>);
        }
    });
}

/// Good in form, and no P_Key of any port, of one, of one that is not used, and of a later init.
//= configuration.md: NCCL_IB_PKEY
//= configuration.md: NCCL_IB_PKEY_VALUE
#[test]
fn a_port_without_the_partition_is_left_out_at_init() {
    const DEVICES: &str = "soft0:addr=10.0.0.1/24,pkey=0xffff+0x8001;soft1:addr=10.0.1.1/24";
    isolated(here!(), &[("SOFTVERBS_DEVICES", DEVICES)], || {
        for (variable, nowhere, of_one) in
            [("NCCL_IB_PKEY", "77", "1"), ("NCCL_IB_PKEY_VALUE", "0x8005", "0x8001")]
        {
            let table = newest();
            set(variable, Some(nowhere));
            for table in TABLES {
                assert_ne!(table.init().0, Success);
                take_warning(&[
                    "init: no usable RDMA port",
                    &format!("soft0:1 ({variable}={nowhere} is not "),
                    "P_Key table, which has 0xffff at 0, 0x8001 at 1)",
                    &format!("soft1:1 ({variable}={nowhere}"),
                ]);
            }
            set(variable, Some(of_one));
            set("MPIB_STRICT", Some("1"));
            assert_eq!(table.init().0, InvalidUsage);
            take_warning(&["init: ports that cannot be used: soft1:1", of_one, "(MPIB_STRICT=1)"]);
            set("MPIB_STRICT", None::<&str>);
            set(variable, None::<&str>);
        }
        set("NCCL_IB_PKEY_VALUE", Some("0x8001"));
        let ctx = init(newest());
        take_warning(&["ports that cannot be used: soft1:1 (NCCL_IB_PKEY_VALUE=0x8001"]);
        assert_eq!(newest().devices(), (Success, 1));
        // A later init has other settings, for the same devices.
        for (variable, value) in [("NCCL_IB_PKEY_VALUE", "5"), ("NCCL_IB_PKEY", "2")] {
            set("NCCL_IB_PKEY_VALUE", None::<&str>);
            set(variable, Some(value));
            assert_eq!(newest().init().0, InvalidUsage);
            take_warning(&[&format!("{variable}="), "soft0:1", "P_Key table"]);
        }
        assert_eq!(newest().finalize(ctx), Success);
    });
}

//= receives.md: slots and receive queues hold with a late sender
#[test]
fn receive_queues_may_be_as_small_as_an_adapter_has_them() {
    // bnxt_re refuses as many as it reports.
    for queue in ["max_srq_wr=2", "max_srq_wr=3", "max_srq_wr=67", "max_srq_wr=2,quirks=bnxt_re"] {
        let devices = two_adapters(queue);
        isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", &devices)]), || {
            let ctx = init(newest());
            let pair = connect(newest(), ctx, 0);
            for size in [0, 1, 100_000, 50, 7_000, 128] {
                pair.message(size, size, 1);
            }
            // As many at once as are taken, which is one at least.
            let (to, from) = (pair.recv_buffer(100), pair.send_buffer(vec![1; 100]));
            let mut receives = vec![pair.irecv(&[(to.addr(), 100, 1, to.mr)])];
            while let (Success, more) = newest().irecv(pair.recv, &[(to.addr(), 100, 1, to.mr)])
                && !more.is_null()
            {
                receives.push(more);
            }
            let sends: Vec<_> = receives.iter().map(|_| pair.isend(from.addr(), 100, 1, from.mr)).collect();
            for request in sends.into_iter().chain(receives) {
                assert_eq!(pair.wait(request)[0], 100);
            }
            to.dereg();
            from.dereg();
            pair.close();
            assert_eq!(newest().finalize(ctx), Success);
        });
    }
}

/// NCCL adds it to its own table.
//= configuration.md: MPIB_LATENCY_US
#[test]
fn nccl_has_the_latency_of_the_setting() {
    isolated(here!(), &mpib("512", &[("MPIB_LATENCY_US", "12")]), || {
        for table in TABLES {
            let ctx = init(table);
            assert_eq!(table.properties(0).1.unwrap().latency, 12.0, "v{}", table.version());
            assert_eq!(table.finalize(ctx), Success);
        }
    });
}

/// A setting without effect is logged once, by the first successful init, and fails each init if
/// that is asked for.
//= configuration.md: variables without effect are logged, and fail a strict init
#[test]
fn settings_without_effect_are_reported_and_fail_a_strict_init() {
    let vain = [
        ("MPIB_SUPSHARE", "512"),
        ("NCCL_IB_HAC", "soft1"),
        ("NCCL_IB_OOO_RQ", "1"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_IB_EVENT_BASED_LB", "1"),
        ("NCCL_MESH_GID_INDEX", "3"),
        ("NCCL_MESH_DEBUG", "1"),
        ("MPIB_BDP_THRESHOLD", "65536"),
        ("MPIB_SOUT_QP", "4"),
        ("MPIB_SRQ_LOW", "0"),
        ("MPIB_SRQ_HIGH", "many"),
        ("MPIB_CTS_SIGNAL_INTERVAL", "256"),
    ];
    isolated(here!(), &vain, || {
        TABLES.iter().for_each(|table| assert_eq!(table.init().0, Success));
        let log: Vec<String> = LOG.lock().unwrap().iter().map(|(_, text)| text.clone()).collect();
        let lines = take_warnings();
        let reported = [
            "MPIB_SUPSHARE=\"512\" has no effect: there is no such setting; the nearest name is MPIB_SUP_SHARE",
            "NCCL_IB_HAC=\"soft1\" has no effect: neither NCCL 2.32 nor this plugin knows it; the nearest name is NCCL_IB_HCA",
            "NCCL_IB_OOO_RQ=\"1\" has no effect on this plugin: queue pairs are made without mlx5's out-of-order delivery",
            "NCCL_MESH_GID_INDEX=\"3\" has no effect on this plugin: NCCL_IB_GID_INDEX is the setting, and without it each connection chooses its GIDs",
            "MPIB_BDP_THRESHOLD=65536 has no effect: it is for two rails, and MPIB_HCA_SOUT and MPIB_HCA_SUP are not set",
            "MPIB_SOUT_QP=4 has no effect: it is for two rails, and MPIB_HCA_SOUT and MPIB_HCA_SUP are not set",
        ];
        assert_eq!(lines, reported.map(|t| format!("NET/MPIB : {t}")));
        let log = log.join("\n");
        assert!(
            log.contains("NCCL_IB_DISABLE=\"1\" has no effect on this plugin: it turns NCCL's own")
                && !log.contains("EVENT_BASED_LB"),
            "{log}"
        );
        assert!(
            log.contains("NCCL_MESH_DEBUG=\"1\" has no effect on this plugin: NCCL_DEBUG=INFO and "),
            "{log}"
        );
        for noted in [
            "MPIB_SRQ_LOW=\"0\" has no effect on this plugin: a shared receive queue is refilled",
            "MPIB_SRQ_HIGH=\"many\" has no effect on this plugin: a shared receive queue has 128 entries",
            "MPIB_CTS_SIGNAL_INTERVAL=\"256\" has no effect on this plugin: a CTS write requests",
        ] {
            assert!(log.contains(noted), "{log}");
        }
        set("MPIB_STRICT", Some("1"));
        for name in [
            "MPIB_SUPSHARE",
            "NCCL_IB_HAC",
            "NCCL_IB_OOO_RQ",
            "NCCL_MESH_GID_INDEX",
            "MPIB_BDP_THRESHOLD",
            "MPIB_SOUT_QP",
        ] {
            assert_eq!(newest().init().0, InvalidUsage);
            let line = take_warning(&[name]);
            assert!(line.ends_with("(MPIB_STRICT=1)"), "{line}");
            set(name, None::<&str>);
        }
        assert_eq!(newest().init().0, Success);
    });
}

#[test]
fn scripts_that_show_or_measure_keep_settings_of_the_shell_out() {
    let script = ". scripts/own-settings.sh; env | grep -E '^(MPIB|NCCL|RCCL|SOFTVERBS)_|CONF' | sort";
    let mut shell = std::process::Command::new("bash");
    shell
        .args(["-euc", script])
        .current_dir(workspace())
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap());
    for name in [
        "MPIB_MODE",
        "MPIB_NOT_YET",
        "NCCL_IB_TC",
        "NCCL_NET",
        "NCCL_DEBUG",
        "RCCL_NET",
        "SOFTVERBS_DEVICES",
        "SOFTVERBS_FABRIC",
        "SOFTVERBS_REPORT",
        "SOFTVERBS_COPY",
    ] {
        shell.env(name, "x");
    }
    let output = shell.output().unwrap();
    let without_host = WITHOUT_HOST.map(|(name, value)| format!("{name}={value}"));
    let mut left = [&without_host[..], &["NCCL_DEBUG=x".into(), "SOFTVERBS_COPY=x".into()]].concat();
    left.sort();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().collect::<Vec<_>>(), left, "{output:?}");
    for script in ["demo", "bench", "bench-rails"] {
        let path = workspace().join(format!("scripts/{script}.sh"));
        assert!(std::fs::read_to_string(path).unwrap().contains(". scripts/own-settings.sh"), "{script}");
    }
}
